"""Fully sharded data parallel (FSDP2): weights, gradients and optimizer are shared out over the processes.

python -m entrypoint train fsdp --steps 300
torchrun --nproc-per-node 8 train/fsdp.py --model-size 1b --activation-checkpointing
torchrun --nnodes 2 ... train/fsdp.py --strategy hybrid     # shard within a node, replicate over nodes
"""

import os

import checkpoint
import process_group
import torch
import torch.distributed as dist
from loss import summed_loss
from main import main
from model import blocks_of, build_model, build_skeleton, compile_blocks
from optimizer import make_optimizer, set_rate, update
from options import FsdpOptions, Problem
from process_group import Process
from run import Batch, Run
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor


def train(run: Run) -> int:
    options, process = run.options, run.process
    assert isinstance(options, FsdpOptions)

    # 1) Rank 0 alone holds the whole model, in CPU memory; the others get their shards from it.
    build = build_model if process.is_first else build_skeleton
    model = process_group.all_do(lambda: build(options, run.samples.vocabulary))
    weights = model.state_dict() if process.is_first else {}
    if options.compile:
        compile_blocks(model)
    shard(model, options, process, bfloat16=run.bfloat16)
    fill(model, weights, process, offload=options.offload)
    assert_in_force(model, process)
    optimizer = make_optimizer(model, options)

    # 2) What an earlier start left: of this recipe or of ddp, of as many processes or of others.
    step = run.resume(lambda folder: checkpoint.read_state(folder, model, optimizer))
    run.describe(model)

    # 3) Step by step.
    while step < options.steps:
        set_rate(optimizer, run.rate(step))
        loss = gradients(model, run.batch(step), run)
        run.agree(step + 1)
        finite = update(model, optimizer, options.clip)
        step += 1
        due = run.step_done(step, loss, finite=finite)
        if due.validate:
            run.validate(step, model)
        if due.save:
            run.save(step, lambda folder: checkpoint.write_state(folder, model, optimizer))
        if due.stop:
            return run.stopped(step)

    run.report(model)
    return 0


def shard(model: nn.Module, options: FsdpOptions, process: Process, *, bfloat16: bool) -> None:
    """Each layer is a group that is gathered together; what is left is the root's group."""
    settings = {
        "mesh": make_mesh(options, process),
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bfloat16 else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy(pin_memory=process.device.type == "cuda")
        if options.offload
        else OffloadPolicy(),
        # None: all but the root, which the backward pass would gather again at once.
        "reshard_after_forward": False if options.strategy == "grad-op" else None,
    }
    for block in blocks_of(model):
        fully_shard(block, **settings)
    fully_shard(model, **settings)


def make_mesh(options: FsdpOptions, process: Process) -> DeviceMesh:
    """All processes in a row; hybrid: nodes × processes of a node, sharded along the second."""
    if options.strategy != "hybrid":
        return init_device_mesh(process.device.type, (process.world_size,), mesh_dim_names=("shard",))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", process.world_size))
    if process.world_size % local:
        raise Problem(
            f"--strategy hybrid: {process.world_size} processes are no whole number of nodes of {local}",
            fix="the same number of processes on every node, or --strategy full",
        )
    shape = (process.world_size // local, local)
    return init_device_mesh(process.device.type, shape, mesh_dim_names=("replicate", "shard"))


def fill(model: nn.Module, weights: dict[str, Tensor], process: Process, *, offload: bool) -> None:
    """Give every rank its shards of rank 0's weights."""
    device = torch.device("cpu") if offload else process.device
    # Not to_empty(): it would also empty the buffers, which no state dict brings back.
    model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)  # which wants all of the model on one device
    for module in model.modules():  # offload is of parameters; a layer computes with its buffers where they are
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(process.device))


def gradients(model: nn.Module, batch: Batch, run: Run) -> Tensor:
    """Sharded gradients of the global mean loss; returns this rank's share of that loss."""
    total = torch.zeros((), device=run.process.device)
    # Each pass reduces: gradients that wait for the last one are whole, on the GPUs that could not hold the model.
    for inputs, targets in batch.passes(run.passes):
        loss = summed_loss(model, inputs, targets, bfloat16=False) / batch.learnt_tokens  # the policy casts
        # FSDP averages gradients over ranks, but the loss is already a share of the global mean.
        (loss * dist.get_world_size()).backward()
        total += loss.detach()
    return total


def assert_in_force(model: nn.Module, process: Process) -> None:
    """A parameter that is not sharded over all processes would be trained apart on each."""
    apart = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
    sizes = {p.device_mesh.size() for p in model.parameters() if isinstance(p, DTensor)}
    if not isinstance(model, FSDPModule) or apart or sizes != {process.world_size}:
        raise RuntimeError(f"asked for FSDP over {process.world_size}, got meshes of {sizes}; not sharded: {apart}")


if __name__ == "__main__":
    main("fsdp", train, FsdpOptions)
