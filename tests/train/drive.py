"""Several runs of the recipes in one start of the processes: `torchrun drive.py JOBS.json`.

A job has "recipe", "arguments" and "run_dir", and may have "stop_at", "report", "poison", "samples" (train on so many,
and note in run_dir/seen-RANK which ones a step sees), "full" (steps whose save finds no room) and "ends". It is the
recipe's own code; the process group is left up in between, since starting it is most of the time of a small run.
"""

import contextlib
import dataclasses
import errno
import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "train"))
import process_group
from checkpoint import NotSaved
from options import KINDS, parse
from run import Diverged, Run
from samples import Split


class StopAt:
    """A request to stop that comes while step `step` is made, to one rank alone."""

    def __init__(self, step):
        self.left = step

    def seen(self):
        self.left -= 1
        return self.left == 0


@contextlib.contextmanager
def poisoned(recipe, run, steps):
    """In these steps the last rank's loss is no number."""
    batch, loss, now = run.batch, recipe.summed_loss, []

    def noted_batch(step):
        now[:] = [step]
        return batch(step)

    def bad_loss(*arguments, **options):
        bad = now[0] + 1 in steps and run.process.rank == run.process.world_size - 1
        return loss(*arguments, **options) * (float("nan") if bad else 1.0)

    run.batch, recipe.summed_loss = noted_batch, bad_loss
    try:
        yield
    finally:
        recipe.summed_loss = loss


def few(run, count):
    """Train on the first so many samples alone, and note which ones this rank sees."""
    train = run.samples.train
    train = dataclasses.replace(train, tokens=train.tokens[: count * train.seq_length + 1])

    class Noted(Split):
        def rows(self, indices):
            with open(run.directory / f"seen-{run.process.rank}", "a") as stream:
                print(*indices, file=stream)
            return super().rows(indices)

    parts = {field.name: getattr(train, field.name) for field in dataclasses.fields(train)}
    run.samples = dataclasses.replace(run.samples, train=Noted(**parts))


def no_room_at(run, steps):
    """The last rank finds the disk full in the middle of these steps' saves."""
    save = run.save

    def filled(step, write):
        def write_some(folder):
            write(folder)
            if step in steps and run.process.rank == run.process.world_size - 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        save(step, write_some)

    run.save = filled


def main():
    jobs = json.loads(Path(sys.argv[1]).read_text())
    process = process_group.start()
    for job in jobs:
        recipe = importlib.import_module(job["recipe"])
        os.environ["TRAIN_RUN_DIR"] = job["run_dir"]
        run = Run(job["recipe"], parse(job["arguments"], KINDS[job["recipe"]]), process)
        if not job.get("report"):
            run.report = lambda *_: None  # writing a sample takes longer than these runs
        if job.get("stop_at") and process.rank == process.world_size - 1:  # the others hear of it from this rank
            run._stop = StopAt(job["stop_at"])
        if job.get("samples"):
            few(run, job["samples"])
        no_room_at(run, job.get("full", []))
        with poisoned(recipe, run, job.get("poison", [])):
            try:
                code = recipe.train(run)
            except (Diverged, NotSaved) as error:
                code = type(error).__name__
        assert code == job.get("ends", 143 if job.get("stop_at") else 0), (job, code)
    process_group.stop()
    process_group.leave(0)


if __name__ == "__main__":
    main()
