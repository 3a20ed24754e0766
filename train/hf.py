"""The Trainer of Hugging Face, over DDP, DeepSpeed ZeRO or FSDP, with the samples, loss and log of the other recipes.

python -m entrypoint train hf --model FOLDER --data chat.jsonl  # two processes on a laptop's CPU
torchrun --nproc-per-node 8 train/hf.py --strategy zero --zero-stage 3 --model FOLDER --data chat.jsonl
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import checkpoint
import deepspeed_setup
import pretrained
import process_group
import torch
import torch.distributed as dist
from deepspeed_config import wanted_ops
from hf_arguments import arguments, deepspeed_config, form, refuse_impossible, refused_config, stage_of
from loss import summed_loss
from main import main
from model import build_model
from optimizer import complete_state, make_optimizer, refuse_unused, set_rate
from options import HfOptions
from process_group import Process
from run import Due, Run
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments


def train(run: Run) -> int:
    options, process = run.options, run.process
    assert isinstance(options, HfOptions)
    refuse_impossible(options, process)
    config = deepspeed_config(options, process.world_size)

    # 1) What an earlier start left: rank 0 has chosen, the Trainer reads it when it has wrapped the model.
    run.form = form(options, process, config)
    step = run.resume(lambda folder: None)
    left = str(run.found.path / f"checkpoint-{step}") if run.found else None

    # 2) The same model on every rank, and the Trainer around it.
    model = process_group.all_do(lambda: build_model(options, run.samples.vocabulary))
    run.describe(model)
    if config:
        deepspeed_setup.load(process)
        deepspeed_setup.refuse_without_ops(wanted_ops(config), run.metrics.say)
    trainer = RunTrainer(model, run, arguments(run, options, config), first_step=step)

    # 3) Step by step.
    try:
        trainer.train(left)
    except ValueError as error:
        raise refused_config(error, options) from error
    if trainer.due.stop:
        return run.stopped(trainer.state.global_step)
    run.report(trainer.model, trainer.whole_state() if pretrained.is_pretrained(model) else None)
    return 0


class RunTrainer(Trainer):
    """A Trainer whose samples, loss, learning rate, log, validation and checkpoints are those of the run."""

    loss_is_scaled_for_ga = True

    def __init__(self, model: nn.Module, run: Run, settings: TrainingArguments, first_step: int) -> None:
        self.run, self._first_step = run, first_step
        self.due = Due(validate=False, save=False, stop=False)
        self.finite = True
        self.decays: list[float] = []  # of the optimizer's groups
        self.share = torch.zeros((), device=run.process.device)  # of this step's loss
        super().__init__(model, settings, callbacks=[Steps(self)])
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> DataLoader:
        # Not through accelerate, which would share out, reorder and skip samples by rules of its own.
        return DataLoader(Passes(self.run, self._first_step), batch_size=None)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None:
            self.optimizer = make_optimizer(model or self.model, self.run.options)
            self.decays = [group["weight_decay"] for group in self.optimizer.param_groups]
            if self.is_deepspeed_enabled and self.accelerator.state.deepspeed_plugin.zero_stage == 0:
                self.optimizer.register_step_pre_hook(self._drop_unless_finite)
        return self.optimizer

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """This rank's share of the mean over the tokens of the global batch, times the ranks that are averaged over."""
        autocast = self.run.bfloat16 and not self.args.bf16
        total = summed_loss(model, inputs["input_ids"], inputs["targets"], bfloat16=autocast)
        share = total / inputs["learnt_tokens"]
        self.share += share.detach()
        return share * self.run.process.world_size

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Before the optimizer's step; DeepSpeed has made its own by now, or has dropped the gradient."""
        norm = super()._get_grad_norm(model, grad_norm)
        if self.is_deepspeed_enabled:
            self.finite = self.finite and bool(self.deepspeed.was_step_applied())
        else:
            full = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self.finite = bool(torch.isfinite(torch.as_tensor(full)))
            if not self.finite:
                model.zero_grad(set_to_none=True)  # AdamW leaves alone what has no gradient
        return norm

    def _drop_unless_finite(self, optimizer: Optimizer, *_: Any) -> None:
        """At stage 0 DeepSpeed does not look; gradients are whole there, so every rank sees the same."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.finite = bool(torch.isfinite(nn.utils.get_total_norm(gradients)))
        if not self.finite:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        self.run.validate(self.state.global_step, self.model_wrapped)
        self.control.should_evaluate = False  # else the end of the epoch asks again
        return {}

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.run.save(self.state.global_step, lambda folder: self._write(folder, model))

    def _write(self, folder: Path, model: nn.Module) -> None:
        self.args.output_dir = str(folder)
        if not self.is_deepspeed_enabled:
            complete_state(self.optimizer)
        super()._save_checkpoint(model, None)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        write = super()._save_optimizer_and_scheduler
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            checkpoint.in_step(lambda: write(output_dir), Path(output_dir))
        else:
            write(output_dir)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not self.is_deepspeed_enabled:  # whose own checkpoint has the weights, each rank its share
            super().save_model(output_dir, _internal_call)

    def whole_state(self) -> Mapping[str, Tensor]:
        """The weights on rank 0, in fp32 also where the model computes in bf16."""
        if not self.is_deepspeed_enabled:
            return pretrained.gathered(self.model)
        from deepspeed.utils import safe_get_full_fp32_param

        state = dict(self.accelerator.get_state_dict(self.model_wrapped) or {})
        for name, parameter in self.model.named_parameters(remove_duplicate=False) if self.args.bf16 else ():
            full = safe_get_full_fp32_param(parameter)  # on all ranks; None: frozen
            if full is not None and self.run.process.is_first:
                state[name] = full.cpu()
        return state


class Steps(TrainerCallback):
    """What goes around each step."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer, self.run = trainer, trainer.run

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        assert isinstance(self.run.options, HfOptions)
        assert_in_force(self.trainer, self.run.options, self.run.process)
        # A checkpoint that was read brings the weight decay of the start that wrote it.
        for group, decay in zip(self.trainer.optimizer.param_groups, self.trainer.decays, strict=True):
            group["weight_decay"] = decay

    def on_step_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        # A scheduler that accelerate wraps would count processes as steps (accelerate#662).
        set_rate(self.trainer.optimizer, self.run.rate(state.global_step))
        self.trainer.share.zero_()
        self.trainer.finite = True

    def on_pre_optimizer_step(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        waits = isinstance(self.trainer.model_wrapped, DistributedDataParallel) and not args.ddp_find_unused_parameters
        if waits and self.trainer.finite:  # else the gradients have been dropped
            refuse_unused(self.trainer.model)
        self.run.agree(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        trainer = self.trainer
        trainer.due = self.run.step_done(state.global_step, trainer.share, finite=trainer.finite)
        control.should_evaluate, control.should_save = trainer.due.validate, trainer.due.save
        control.should_training_stop = control.should_training_stop or trainer.due.stop


class Passes(IterableDataset):
    """This rank's passes of each step from `first_step` on."""

    def __init__(self, run: Run, first_step: int) -> None:
        self.run, self.first_step = run, first_step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in range(self.first_step, self.run.options.steps):
            batch = self.run.batch(step)
            for inputs, targets in batch.passes(self.run.passes):
                yield {"input_ids": inputs, "targets": targets, "learnt_tokens": batch.learnt_tokens}


def assert_in_force(trainer: RunTrainer, options: HfOptions, process: Process) -> None:
    """The Trainer wraps the model as it sees fit, or not at all: look at what came of it."""
    wrapped = getattr(trainer.model_wrapped, "_orig_mod", trainer.model_wrapped)
    stage = wrapped.zero_optimization_stage() if trainer.is_deepspeed_enabled else None
    in_force = {
        "ddp": isinstance(wrapped, DistributedDataParallel) or process.world_size == 1,
        "zero": stage == stage_of(deepspeed_config(options, process.world_size)) and stage is not None,
        "fsdp": isinstance(wrapped, FSDPModule),
    }[options.strategy]
    sizes = (dist.get_world_size(), trainer.accelerator.num_processes)
    if not in_force or sizes != (process.world_size, process.world_size):
        raise RuntimeError(
            f"asked for {options.strategy} over {process.world_size} processes, "
            f"got {type(wrapped).__name__} (ZeRO stage {stage}) over {sizes[1]}"
        )


if __name__ == "__main__":
    main("hf", train, HfOptions)
