"""A training script of the kind of docs/own-script.md: steps of 50 ms, a checkpoint every few, a loss that tells all.

    python steps.py STEPS [PACE]

Each step's data is 12 samples, whatever the number of processes, and a function of the step alone: a step that is
left out, done twice or done from an older checkpoint than it should changes all losses after it. Started alone, without
ranks, it prints the losses of an undisturbed run as fast as it can.

After step 15, whose checkpoint is complete, it makes no step before there is a file `go` in the run's folder; all
processes stay in touch meanwhile. So a fault comes at the same step however busy the machine is.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

SAMPLES, WIDTH, EVERY, HOLD = 12, 16, 5, 15


def main():
    steps, pace = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
    model, optimizer = build()
    if "RANK" in os.environ:
        train(model, optimizer, steps, pace)
    else:
        train_alone(model, optimizer, steps)


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(step):
    data = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(step))
    return data, data.sin().sum(1, keepdim=True)


def train_alone(model, optimizer, steps):
    for step in range(1, steps + 1):
        data, wanted = batch(step)
        loss = mse_loss(model(data), wanted)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        print(json.dumps({"step": step, "loss": loss.item()}))


def train(model, optimizer, steps, pace):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = Path(os.environ["TRAIN_CHECKPOINT_DIR"])
    for step in range(resume(model, optimizer, folder) + 1, steps + 1):
        time.sleep(pace)
        loss = make_step(model, optimizer, step)
        if rank == 0:
            note(step, loss)
        if step % EVERY == 0 or step == steps:
            if rank == 0:
                save(model, optimizer, folder, step)
            dist.barrier()
        if step == HOLD:
            hold(rank)
    dist.destroy_process_group()


def make_step(model, optimizer, step):
    """One step of all ranks together: its loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)
    data, wanted = batch(step)
    loss = mse_loss(model(data[mine]), wanted[mine]) / world
    optimizer.zero_grad(), loss.backward()
    summed = torch.cat([p.grad.flatten() for p in model.parameters()] + [loss.detach().reshape(1)])
    dist.all_reduce(summed)
    sizes = [parameter.numel() for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), summed[:-1].split(sizes), strict=True):
        parameter.grad = gradient.view_as(parameter)
    optimizer.step()
    return summed[-1].item()


def hold(rank):
    go, step_file = Path(os.environ["TRAIN_RUN_DIR"], "go"), Path(os.environ["TRAIN_STEP_FILE"])
    while True:
        held = torch.tensor(float(not go.exists()))
        dist.all_reduce(held)
        if not held:
            return
        if rank == 0:
            step_file.write_text(f"{HOLD}\n")
        time.sleep(0.05)


def resume(model, optimizer, folder):
    done = sorted(int(path.parent.name[5:]) for path in folder.glob("step-*[0-9]/manifest.json"))
    if not done:
        return 0
    state = torch.load(folder / f"step-{done[-1]}" / "state.pt")
    model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optimizer"])
    return done[-1]


def note(step, loss):
    record = {"step": step, "loss": loss, "time": time.time(), "attempt": int(os.environ["TRAIN_ATTEMPT"])}
    with open(Path(os.environ["TRAIN_RUN_DIR"], "metrics.jsonl"), "a") as stream:
        stream.write(json.dumps(record) + "\n")
    Path(os.environ["TRAIN_STEP_FILE"]).write_text(f"{step}\n")


def save(model, optimizer, folder, step):
    partial = folder / f"step-{step}.{os.environ['TRAIN_ATTEMPT']}.partial"
    partial.mkdir()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial / "state.pt")
    (partial / "manifest.json").write_text("{}")
    partial.rename(folder / f"step-{step}")


if __name__ == "__main__":
    main()
