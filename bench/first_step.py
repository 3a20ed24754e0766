"""Seconds from `docker run` to the first optimizer step, cold and warm; one JSON line each.

    python bench/first_step.py [IMAGE] [TIMES]

What is timed: `docker run --rm IMAGE train ddp --steps 1`, to the line that tells of step 1, and to the end. Cold: the
kernel's cache of files is emptied before, so all that is read comes from the disk (root); warm: it was just run.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

WORDS = ("train", "ddp", "--steps", "1")


def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else "roundhouse:cpu"
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for cold in (True, False):
        for _ in range(times):
            if cold:
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
            print(
                json.dumps({"image": image, "cold": cold, "load": round(os.getloadavg()[0], 1), **run(image)}),
                flush=True,
            )


def run(image: str) -> dict[str, float]:
    began = time.monotonic()
    first = None
    command = ["docker", "run", "--rm", image, *WORDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if first is None and "step 1/1" in line:
                first = time.monotonic() - began
    if process.returncode != 0 or first is None:
        sys.exit("".join(lines) + f"the run ended with {process.returncode}")
    return {"first_step_seconds": round(first, 2), "end_seconds": round(time.monotonic() - began, 2)}


if __name__ == "__main__":
    main()
