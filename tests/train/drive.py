"""Several runs of the recipes in one start of the processes: `torchrun drive.py JOBS.json`.

A job has "recipe", "arguments", "run_dir", and may have "stop_at", "report". It is the recipe's own code; the process
group is left up in between, since starting it is most of the time of a small run.
"""

import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "train"))
import process_group
from options import KINDS, parse
from run import Run


class StopAt:
    """A request to stop that comes while step `step` is made."""

    def __init__(self, step):
        self.left = step

    def seen(self):
        self.left -= 1
        return self.left == 0


def main():
    jobs = json.loads(Path(sys.argv[1]).read_text())
    process = process_group.start()
    for job in jobs:
        recipe = importlib.import_module(job["recipe"])
        os.environ["TRAIN_RUN_DIR"] = job["run_dir"]
        run = Run(job["recipe"], parse(job["arguments"], KINDS[job["recipe"]]), process)
        if not job.get("report"):
            run.report = lambda model: None  # writing a sample takes longer than these runs
        if job.get("stop_at"):
            run._stop = StopAt(job["stop_at"])
        code = recipe.train(run)
        assert code == (143 if job.get("stop_at") else 0), (job, code)
    process_group.stop()


if __name__ == "__main__":
    main()
