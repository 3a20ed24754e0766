"""Started by test_save_faults.py: a child that goes on and saves without a pause is killed, again and again.

killed_saves.py FOLDER TIMES

The child's log has a line for each checkpoint that it went on from, and for each that it was told is saved. Torch is
imported once, since that takes longer than all the rest.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "train"))
import checkpoint
import process_group
import torch


def make(step):
    """A model of 200 kB whose weights all are the number of its step."""
    model = torch.nn.Linear(100, 500)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, step)
    return model, torch.optim.AdamW(model.parameters())


def resume(folder, log):
    found = checkpoint.newest(folder)
    if found is None:
        step = 0
    else:
        model, optimizer = make(-1)
        checkpoint.read_state(found.path, model, optimizer)
        step = found.step
        assert all((parameter == step).all() for parameter in model.parameters()), found
    print(f"resumed {step}", file=log, flush=True)
    return step


def save_without_end(folder, log):
    step = resume(folder, log)
    while True:
        step += 1
        checkpoint.save(folder, step, lambda path, step=step: checkpoint.write_state(path, *make(step)), {})
        print(f"saved {step}", file=log, flush=True)
        checkpoint.prune(folder, 2)


def child(folder, act):
    """A process of its own that does this and leaves."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            process_group.start({})
            with open(folder / "log", "a") as log:
                act(folder / "checkpoints", log)
            code = 0
        finally:
            os._exit(code)
    return pid


def count(folder, word):
    return (folder / "log").read_text().count(word) if (folder / "log").exists() else 0


def main():
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    checkpoint._state(*make(0))  # imports in children what is imported at its first use
    chances = random.Random(0)
    for number in range(times):
        pid = child(folder, save_without_end)
        while count(folder, "resumed") <= number:  # however slow this machine is
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it ended by itself"
            time.sleep(0.005)
        time.sleep(chances.uniform(0.1, 0.8))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print("left", *sorted(path.name for path in (folder / "checkpoints").glob("*")), flush=True)
    assert os.waitpid(child(folder, resume), 0)[1] == 0


if __name__ == "__main__":
    main()
