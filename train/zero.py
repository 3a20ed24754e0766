"""DeepSpeed ZeRO: each process keeps its share of the optimizer (stage 1), gradients (2) and weights (3).

python -m entrypoint train zero --zero-stage 3 --steps 300  # two processes on a laptop's CPU
torchrun --nproc-per-node 8 train/zero.py --model-size 8b   # the same without us
python train/zero.py --deepspeed-config mine.json           # a configuration of your own; one process, no launcher
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import checkpoint
import deepspeed_setup
import process_group
import torch
import torch.distributed as dist
from deepspeed_config import make_config, offloads, stage_of, wanted_ops
from loss import summed_loss
from main import main
from model import build_model, compile_blocks
from optimizer import keeping_decay, make_optimizer, set_rate
from options import Problem, ZeroOptions
from pydantic import ValidationError
from run import Batch, Run
from torch import Tensor, nn

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

BOUND = "zero.json"  # in a checkpoint: what must be the same for DeepSpeed to read it
_TAG = "state"


def train(run: Run) -> int:
    options, process = run.options, run.process
    config = settle_config(run)
    bound = {
        "world_size": process.world_size,
        "zero_stage": stage_of(config),
        "offload": offloads(config),
        "bf16": run.bfloat16,
    }
    refuse_other_form(run, bound)

    # 1) The same model on every rank, and the line that differs between the recipes.
    model = process_group.all_do(lambda: build_model(options, run.samples.vocabulary))
    if options.compile:
        compile_blocks(model)
    run.describe(model)  # now: stage 3 leaves each rank a share of the weights
    run.metrics.say(f"ZeRO stage {bound['zero_stage']}{', optimizer in CPU memory' * bound['offload']}")
    engine = start_engine(model, config, run)
    assert_in_force(engine, bound)

    # 2) What an earlier start left.
    step = run.resume(lambda folder: read_state(folder, engine))

    # 3) Step by step.
    code = 0
    while step < options.steps:
        set_rate(engine.optimizer, run.rate(step))
        loss = gradients(engine, run.batch(step), run)
        run.agree(step + 1)
        finite = update(engine)
        step += 1
        due = run.step_done(step, loss, finite=finite)
        if due.validate:
            run.validate(step, model)
        if due.save:
            run.save(step, lambda folder: write_state(folder, engine, bound))
        if due.stop:
            code = run.stopped(step)
            break
    else:
        # Of sharded weights only DeepSpeed can tell the whole.
        run.report(model, deepspeed_setup.whole_state(model, keep=process.is_first) if options.model else None)
    engine.destroy()  # while the process group is still there
    return code


def settle_config(run: Run) -> dict[str, Any]:
    """DeepSpeed's configuration, of rank 0: the file may not be on other nodes, or be another one there."""
    found: dict[str, Any] | Problem | None = None
    if run.process.is_first:
        try:
            found = make_config(
                run.options, world_size=run.process.world_size, passes=run.passes, bfloat16=run.bfloat16
            )
        except Problem as problem:
            found = problem
    found = process_group.from_first(found)
    if isinstance(found, Problem):
        raise found
    return found


def refuse_other_form(run: Run, bound: dict[str, Any]) -> None:
    """Problem where DeepSpeed could not read the checkpoint that is there; before anything large is built."""
    if run.found is None:
        return
    path = run.found.path / BOUND
    here = run.process.is_first and path.exists()
    written = process_group.from_first(json.loads(path.read_text()) if here else None)
    fix = "or give this run another name (TRAIN_RUN)"
    if written is None:
        raise Problem(f"{run.found.path} was not written by zero", fix=f"go on with the recipe that wrote it, {fix}")
    same = {name for name in bound if written.get(name) == bound[name]}
    if written["zero_stage"] == 0:  # nothing was sharded
        same.add("world_size")
    if differing := [name for name in bound if name not in same]:
        theirs, ours = (", ".join(f"{name} {side[name]}" for name in differing) for side in (written, bound))
        raise Problem(
            f"{run.found.path} was written with {theirs}; this start has {ours}, and DeepSpeed cannot change that",
            fix=f"start it with {theirs} again, {fix}",
        )


def start_engine(model: nn.Module, config: dict[str, Any], run: Run) -> "DeepSpeedEngine":
    """The model and our own AdamW under DeepSpeed, in the process group that is there."""
    deepspeed = deepspeed_setup.load(run.process)
    deepspeed_setup.refuse_without_ops(wanted_ops(config), run.metrics.say)
    optimizer = make_optimizer(model, run.options)
    if offloads(config):
        optimizer = deepspeed_setup.cpu_adam(optimizer)
    try:
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    except ValidationError as error:
        first = error.errors()[0]
        raise Problem(
            f"{run.options.deepspeed_config}: {error.title}: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            fix="correct that name or value; DeepSpeed's reference of its configuration lists them",
        ) from None
    return engine


def gradients(engine: "DeepSpeedEngine", batch: Batch, run: Run) -> Tensor:
    """Gradients of the global mean loss; returns this rank's share of that loss."""
    total = torch.zeros((), device=run.process.device)
    passes = batch.passes(run.passes)
    for number, (inputs, targets) in enumerate(passes, start=1):
        # Of passes before the last, stages 0 and 1 reduce nothing yet; DeepSpeed's own count would want a step() each.
        engine.set_gradient_accumulation_boundary(number == len(passes))
        # No autocast: with bf16 the weights themselves are bf16, and DeepSpeed keeps fp32 ones for the optimizer.
        loss = summed_loss(engine, inputs, targets, bfloat16=False) / batch.learnt_tokens
        # DeepSpeed averages over ranks, and by default over passes; the loss is already a share of the global mean.
        engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)
        total += loss.detach()
    return total


def update(engine: "DeepSpeedEngine") -> bool:
    """Clip, step, clear; False where the gradient was not finite and nothing was changed.

    The norm is that of the reduced gradient of the whole model, so every rank comes to the same answer. From stage 1
    on DeepSpeed looks at it before it steps, and drops the gradient where it is not finite; at stage 0 it would step.
    """
    if engine.zero_optimization_stage() == 0:
        norm = nn.utils.get_total_norm(p.grad for p in engine.parameters() if p.grad is not None)
        if not torch.isfinite(norm):
            engine.zero_grad()
            return False
    engine.step()
    return bool(engine.was_step_applied())


def write_state(folder: Path, engine: "DeepSpeedEngine", bound: dict[str, Any]) -> None:
    """Model and optimizer into `folder` in DeepSpeed's own form, each rank its share."""
    checkpoint.in_step(lambda: engine.save_checkpoint(str(folder), tag=_TAG), folder)
    if dist.get_rank() == 0:
        (folder / BOUND).write_text(json.dumps(bound) + "\n")


def read_state(folder: Path, engine: "DeepSpeedEngine") -> None:
    """Model and optimizer from `folder`, in place."""
    with keeping_decay(engine.optimizer):
        path, _ = engine.load_checkpoint(str(folder))
    if path is None:
        raise RuntimeError(f"DeepSpeed found no checkpoint in {folder}")


def assert_in_force(engine: "DeepSpeedEngine", bound: dict[str, Any]) -> None:
    """Processes that do not know of each other would each train the whole run."""
    stage, world_size = engine.zero_optimization_stage(), dist.get_world_size(engine.data_parallel_group)
    if (stage, world_size) != (bound["zero_stage"], bound["world_size"]):
        raise RuntimeError(f"asked for {bound}, got ZeRO stage {stage} over {world_size}")


if __name__ == "__main__":
    main("zero", train, ZeroOptions)
