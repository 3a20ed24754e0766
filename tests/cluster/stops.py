"""steps.py for a platform that stops its jobs: every rank writes its own part of a checkpoint.

    python stops.py STEPS [SECONDS]

After step 17, which has no checkpoint yet, it makes no step before it is asked to stop; then it saves and leaves with
143. Rank 0 takes SECONDS for its part of that checkpoint and the others none, and they do not wait for it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from steps import EVERY, build, make_step, note

HOLD = 17
FOLDER = Path(os.environ.get("TRAIN_CHECKPOINT_DIR", ""))  # pytest imports this file for its doctests


def main():
    steps, seconds = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    dist.init_process_group("gloo")
    model, optimizer = build()
    for step in range(resume(model, optimizer) + 1, steps + 1):
        loss = make_step(model, optimizer, step)
        if dist.get_rank() == 0:
            note(step, loss)
        if step % EVERY == 0 or step == steps:
            save(model, optimizer, step)
        if step == HOLD:
            wait_for_request(asked)
            save(model, optimizer, step, seconds)
            print(f"saved {step}", flush=True)
            sys.exit(143)
    dist.destroy_process_group()


def wait_for_request(asked):
    step_file = Path(os.environ["TRAIN_STEP_FILE"])
    while True:
        leave = torch.tensor(float(bool(asked) or Path(os.environ["TRAIN_STOP_FILE"]).exists()))
        dist.all_reduce(leave)
        if leave:
            return
        if dist.get_rank() == 0:
            step_file.write_text(f"{HOLD}\n")
        time.sleep(0.05)


def resume(model, optimizer):
    done = sorted(int(path.parent.name[5:]) for path in FOLDER.glob("step-*[0-9]/manifest.json"))
    if not done:
        return 0
    state = torch.load(FOLDER / f"step-{done[-1]}" / f"part-{dist.get_rank()}.pt")
    model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optimizer"])
    return done[-1]


def save(model, optimizer, step, seconds=0.0):
    rank, partial = dist.get_rank(), FOLDER / f"step-{step}.{os.environ['TRAIN_ATTEMPT']}.partial"
    partial.mkdir(exist_ok=True)
    if rank == 0:
        time.sleep(seconds)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial / f"part-{rank}.new")
    (partial / f"part-{rank}.new").rename(partial / f"part-{rank}.pt")
    if rank == 0:
        parts = [partial / f"part-{other}.pt" for other in range(dist.get_world_size())]
        while not all(part.exists() for part in parts):
            time.sleep(0.02)
        (partial / "manifest.json").write_text(json.dumps({"parts": len(parts)}))
        partial.rename(FOLDER / f"step-{step}")


if __name__ == "__main__":
    main()
