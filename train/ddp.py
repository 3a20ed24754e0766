"""Data parallel: every process holds the whole model and all-reduces gradients.

python -m entrypoint train ddp --steps 300                  # two processes on a laptop's CPU
torchrun --nproc-per-node 8 train/ddp.py --model-size 350m  # the same without us
python train/ddp.py --steps 20                              # one process, no launcher
"""

from contextlib import nullcontext

import checkpoint
import process_group
import torch
import torch.distributed as dist
from loss import summed_loss
from main import main
from model import build_model, compile_blocks
from optimizer import make_optimizer, refuse_unused, set_rate, update
from options import DdpOptions
from process_group import Process
from run import Batch, Run
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def train(run: Run) -> int:
    options, process = run.options, run.process
    assert isinstance(options, DdpOptions)

    # 1) The same model on every rank, and the line that differs between the recipes.
    model = process_group.all_do(lambda: build_model(options, run.samples.vocabulary)).to(process.device)
    if options.compile:
        compile_blocks(model)
    devices = [process.local_rank] if process.device.type == "cuda" else None
    ddp = DistributedDataParallel(
        model,
        device_ids=devices,
        gradient_as_bucket_view=True,
        find_unused_parameters=options.find_unused_parameters,
    )
    assert_in_force(ddp, process)
    optimizer = make_optimizer(model, options)

    # 2) What an earlier start left.
    step = run.resume(lambda folder: checkpoint.read_state(folder, ddp, optimizer))
    run.describe(model)

    # 3) Step by step.
    while step < options.steps:
        set_rate(optimizer, run.rate(step))
        loss = gradients(ddp, run.batch(step), run)
        if not options.find_unused_parameters:
            refuse_unused(model)
        run.agree(step + 1)
        finite = update(ddp, optimizer, options.clip)
        step += 1
        due = run.step_done(step, loss, finite=finite)
        if due.validate:
            run.validate(step, model)
        if due.save:
            run.save(step, lambda folder: checkpoint.write_state(folder, ddp, optimizer))
        if due.stop:
            return run.stopped(step)

    run.report(model)
    return 0


def gradients(ddp: DistributedDataParallel, batch: Batch, run: Run) -> Tensor:
    """Gradients of the global mean loss; returns this rank's share of that loss."""
    total = torch.zeros((), device=run.process.device)
    passes = batch.passes(run.passes)
    for number, (inputs, targets) in enumerate(passes, start=1):
        # Gradients are all-reduced in the last pass only.
        with nullcontext() if number == len(passes) else ddp.no_sync():
            loss = summed_loss(ddp, inputs, targets, bfloat16=run.bfloat16) / batch.learnt_tokens
            # DDP averages gradients over ranks, but the loss is already a share of the global mean.
            (loss * dist.get_world_size()).backward()
        total += loss.detach()
    return total


def assert_in_force(ddp: nn.Module, process: Process) -> None:
    """Processes that do not know of each other would each train the whole run."""
    if not isinstance(ddp, DistributedDataParallel) or dist.get_world_size() != process.world_size:
        raise RuntimeError(f"asked for DDP over {process.world_size}, got {type(ddp)} over {dist.get_world_size()}")


if __name__ == "__main__":
    main("ddp", train, DdpOptions)
