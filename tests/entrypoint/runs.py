"""Real runs for the tests: small scripts, started as a user starts them, and what they may not leave behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A script of a user's own: writes the step file and a checkpoint as docs/own-script.md says, and does what it is told.
SCRIPT = """
import ctypes, json, os, signal, sys, time
from pathlib import Path

what = dict(word.split("=") for word in sys.argv[1:])
rank = int(os.environ["RANK"])
checkpoints, stop = Path(os.environ["TRAIN_CHECKPOINT_DIR"]), Path(os.environ["TRAIN_STOP_FILE"])
asked = []
if what.get("term") == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))

def save(step, seconds=0.0):
    time.sleep(seconds)
    if rank == 0:
        partial = checkpoints / f"step-{step}.partial"
        partial.mkdir()
        (partial / "manifest.json").write_text("{}")
        partial.rename(checkpoints / f"step-{step}")

steps = int(what.get("steps", 5))
for step in range(1, steps + 1):
    time.sleep(float(what.get("pace", 0.1)))
    if rank == 0 and "quiet" not in what:
        Path(os.environ["TRAIN_STEP_FILE"]).write_text(f"{step}\\n")
    print(f"step {step}", flush=True)
    if asked or stop.exists():
        save(step, float(what.get("save", 0)))
        sys.exit(143)
    if step % int(what.get("every", 1000)) == 0:
        save(int(os.environ["TRAIN_ATTEMPT"]) * 1000 + step)
    if step == int(what.get("at", 2)) and rank == int(what.get("rank", 1)):
        match what.get("do"):
            case "exit": sys.exit(int(what["code"]))
            case "raise": raise ValueError("bad data")
            case "kill": os.kill(os.getpid(), signal.SIGKILL)
            case "segfault": ctypes.string_at(0)
            case "hang": time.sleep(3600)
            case "orphan": os.kill(os.getppid(), signal.SIGKILL)
    if what.get("others") == "hang" and rank != int(what.get("rank", 1)):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
"""


def write_script(folder, text=SCRIPT, name="own.py"):
    path = folder / name
    path.write_text(text)
    return path


def environment(volume, **variables):
    return {"PATH": os.environ["PATH"], "HOME": str(volume), "TRAIN_VOLUME": str(volume), **variables}


def start(volume, *words, program=("-m", "entrypoint"), cwd=ROOT, start_new_session=False, **variables):
    return subprocess.Popen(
        [sys.executable, *program, "train", *map(str, words)],
        cwd=cwd,
        env=environment(volume, **variables) | ({} if cwd == ROOT else {"PYTHONPATH": str(ROOT)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=start_new_session,
    )


def finish(process, seconds=120):
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output


def train(volume, *words, **options):
    return finish(start(volume, *words, **options))


def read(path):
    return json.loads(path.read_text())


def wait_for(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def step_of(run):
    """The step that a run has reached; 0 while its step file is not there or is just being written."""
    try:
        return int((run / "step").read_text())
    except (OSError, ValueError):
        return 0


def wait_for_step(run, step):
    wait_for(lambda: step_of(run) >= step, "the run did not get that far")


def processes_of(run):
    """Processes that have the run's folder in their environment: the launcher, the keepers, the training itself."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"TRAIN_RUN_DIR={run}".encode() in Path("/proc", pid, "environ").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found
