"""One start of a run: its folder, its samples, and what every recipe does around its own step."""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import checkpoint
import flops
import numpy as np
import pretrained
import process_group
import samples
import tokenized
import torch
import torch.distributed as dist
from checkpoint import Found, NotSaved
from loss import summed_loss
from metrics import Metrics
from model import Decoder
from options import Options, Problem, accumulation, settle_batch
from order import samples_of_step
from process_group import Process
from samples import IGNORE, Samples
from schedule import Cadence, learning_rate
from stop import EXIT_CODE as STOPPED
from stop import StopRequest
from torch import Tensor, nn

VALIDATION_SAMPLES = 128
MOST_SKIPPED = 10  # steps in a row


class Diverged(Exception):
    """The gradient was not finite for MOST_SKIPPED steps in a row; the last checkpoint is from before."""


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's rows (samples, seq_length) of the global batch, and the tokens that all ranks' rows teach."""

    inputs: Tensor
    targets: Tensor
    learnt_tokens: int

    def passes(self, count: int) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.inputs.chunk(count), self.targets.chunk(count), strict=True))


@dataclass(frozen=True, slots=True)
class Due:
    """What all ranks do after a step, agreed by all."""

    validate: bool
    save: bool
    stop: bool


class Run:
    """What is the same for every recipe. `found` is the checkpoint of an earlier start, if there is one."""

    def __init__(self, recipe: str, options: Options, process: Process) -> None:
        self.process = process
        self.directory = Path(os.environ.get("TRAIN_RUN_DIR", f"runs/{recipe}")).absolute()
        self.checkpoints = Path(os.environ.get("TRAIN_CHECKPOINT_DIR", self.directory / "checkpoints"))
        self.found: Found | None = checkpoint.newest(self.checkpoints)
        began_with = self.found.about["global_batch"] if self.found else None
        self.options = settle_batch(options, process.world_size, began_with)
        self.passes = accumulation(self.options, process.world_size)
        self.samples = open_samples(self.options, self.directory / "data")
        if options.epochs is not None:
            steps = math.ceil(options.epochs * len(self.samples.train) / self.options.global_batch)
            self.options = replace(self.options, steps=steps)
        self.bfloat16 = wants_bfloat16(options, process.device)
        self.metrics = Metrics(self.directory, self.options, speak=process.is_first)
        self._stop, self._saves = StopRequest.from_environment(), Cadence(options.save_every)
        self._skipped = 0
        self._leaving = False  # the next save is the last
        self._travel: dist.Work | None = None  # of the flags, between agree() and step_done()
        self.form = "torch.distributed.checkpoint"

    @property
    def identity(self) -> dict[str, object]:
        """What must be the same when a run goes on; kept in the manifest of each checkpoint."""
        shared = ("seq_length", "global_batch", "seed")
        weights = ("model", "lora_rank") if self.options.model else ("model_size",)
        chosen = {name: getattr(self.options, name) for name in (*weights, *shared)}
        return chosen | {"data": self.samples.fingerprint, "form": self.form}

    def resume(self, read: Callable[[Path], None]) -> int:
        """The step to go on from, after `read` has read its checkpoint; 0 where there is none."""
        if self.found is None:
            return 0
        for damaged in self.found.damaged:
            self.metrics.say(f"passed over a damaged checkpoint: {damaged}")
        for name, value in self.identity.items():
            if self.found.about.get(name) != value:
                raise Problem(
                    f"{name} is {value} now, but {self.found.path} was written with {self.found.about.get(name)}",
                    fix="use the same options and data, or give this run another name (TRAIN_RUN)",
                )
        read(self.found.path)
        self.metrics.say(f"going on from {self.found.path}")
        return self.found.step

    def describe(self, model: nn.Module) -> None:
        count = sum(parameter.numel() for parameter in model.parameters())
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self.metrics.say(
            f"model {self.options.model or self.options.model_size}, {count:,} parameters"
            f"{f' ({trained:,} trained)' if trained < count else ''}, {'bf16' if self.bfloat16 else 'fp32'}"
        )
        card = flops.peak(self.process.device)
        self.metrics.set_flops(flops.per_token(model, self.options.seq_length), card and card * self.process.world_size)
        train = self.samples.train
        self.metrics.say(f"data  {len(train.tokens):,} tokens to train on from {self.samples.files:,} files")
        if cut := train.cut():
            self.metrics.say(
                f"data  {cut:,} of {len(train):,} conversations are longer than --seq-length "
                f"{self.options.seq_length}; their ends are not learnt"
            )

    def batch(self, step: int) -> Batch:
        """The global batch of a step, of which this rank takes every world-size-th sample."""
        train, options = self.samples.train, self.options
        together = self._together(step)
        inputs, targets = train.rows(together[self.process.rank :: self.process.world_size])
        # Dropout, too, is a function of seed, step and rank: a resume needs no state of a random generator.
        seed_all(hash((options.seed, step, self.process.rank)), self.process.device)
        # At least 1: of conversations that are cut before an answer, a whole batch may teach nothing.
        learnt = max(1, train.learnt(together))
        return Batch(inputs.to(self.process.device), targets.to(self.process.device), learnt)

    def _together(self, step: int) -> np.ndarray:
        options = self.options
        return samples_of_step(options.seed, step, options.global_batch, len(self.samples.train))

    def rate(self, step: int) -> float:
        return learning_rate(self.options, step)

    def agree(self, step: int) -> None:
        """Tell all ranks what this one wants after this step; `step_done` reads what all want.

        The flags travel while the optimizer steps, and as a CPU tensor, so that nobody waits for a GPU. Where a recipe
        does not call this, step_done does, and waits.
        """
        wanted = self._stop.seen(), self.process.is_first and self._saves.due(step)
        self._flags = torch.tensor(wanted, dtype=torch.int)
        self._travel = dist.all_reduce(self._flags, async_op=True)

    def step_done(self, step: int, loss: Tensor, *, finite: bool = True) -> Due:
        """Count the step, log it where it is due, and return what all ranks do now.

        `loss` is this rank's share of the global mean; only a step that is logged waits for it.
        """
        self.metrics.step_done(step, self.samples.train.inputs(self._together(step - 1)))
        self._count_skipped(step, finite)
        last = step == self.options.steps
        if self._travel is None:
            self.agree(step)
        self._travel.wait()
        self._travel = None
        stop, save = (flag > 0 for flag in self._flags.tolist())
        self._leaving = last or stop
        validate = last or step % self.options.eval_every == 0
        if last or stop or validate or step % self.options.log_every == 0:
            dist.all_reduce(loss)
            self.metrics.log(step, loss.item(), self.rate(step - 1))
        return Due(validate, save or stop or last, stop and not last)

    def validate(self, step: int, model: nn.Module) -> None:
        """Log the mean loss in nats per token on the first validation samples, shared out over the ranks."""
        with self.metrics.apart(), torch.no_grad():
            inputs, targets = self._validation_rows()
            mine = slice(self.process.rank, None, self.process.world_size)
            total = torch.zeros((), device=self.process.device)
            model.eval()
            # No more at once than in training: what fits there fits here.
            at_once = self.options.global_batch // (self.passes * self.process.world_size)
            for rows, wanted in zip(inputs[mine].split(at_once), targets[mine].split(at_once), strict=True):
                total += summed_loss(model, rows.to(total.device), wanted.to(total.device), bfloat16=self.bfloat16)
            model.train()
            dist.all_reduce(total)
        self.metrics.log_validation(step, total.item() / int((targets != IGNORE).sum()))

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """A checkpoint of this step; then the older ones beyond --keep are deleted.

        One that fails is told, and training goes on; NotSaved is raised where it was the last chance.
        """
        self._saves.done()
        with self.metrics.apart():
            try:
                path = checkpoint.save(self.checkpoints, step, write, self.identity)
            except NotSaved as error:
                if self._leaving:
                    raise
                self.metrics.say(f"warning: {error}; training goes on to the next save")
                return
            checkpoint.prune(self.checkpoints, self.options.keep)
        self.metrics.say(f"saved {path}")

    def stopped(self, step: int) -> int:
        self.metrics.say(f"stopped on request after step {step}; start it again to go on")
        return STOPPED

    def report(self, model: nn.Module, state: Mapping[str, Tensor] | None = None) -> None:
        """The end, on all ranks: the validation loss, and of our own model a bigram's beside it and a text it wrote.

        A model of Hugging Face is saved for from_pretrained; `state`: its whole state, where only the recipe can
        gather it.
        """
        if self.metrics.validation_loss is None:  # the run had reached its last step before
            self.validate(self.options.steps, model)
        summary = {"step": self.options.steps, "validation_loss": self.metrics.validation_loss}
        if pretrained.is_pretrained(model):
            self._save_model(model, pretrained.gathered(model) if state is None else state)
        if isinstance(model, Decoder):  # of bytes
            inputs, targets = self._validation_rows()
            bigram = samples.bigram_loss(
                self.samples.train.tokens, inputs[targets != IGNORE], targets[targets != IGNORE]
            )
            summary["bigram_loss"] = bigram
            self.metrics.say(
                f"validation loss {self.metrics.validation_loss:.4f} nats/byte; "
                f"a bigram model of the same data: {bigram:.4f}"
            )
            # On all ranks: a sharded model gathers its weights in each forward.
            prompt = torch.tensor([list(b"def ")], device=self.process.device)
            text = model.generate(prompt, 240, self.options.seq_length, temperature=0.7, seed=self.options.seed)
            self.metrics.say("a sample:\n" + samples.printable(bytes(text[0].tolist()).decode(errors="replace")))
        if self.process.is_first:
            (self.directory / "summary.json").write_text(json.dumps(summary) + "\n")

    def _save_model(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        name = self.options.model
        assert name is not None
        process_group.first_does(lambda: pretrained.save(model, state, name, self.directory / "model"))
        self.metrics.say(f"saved {self.directory / 'model'} for from_pretrained")

    def _validation_rows(self) -> tuple[Tensor, Tensor]:
        """As many rows for each rank: a sharded model gathers its weights in each pass, so all must make the same."""
        split, world_size = self.samples.validation, self.process.world_size
        count = min(VALIDATION_SAMPLES, len(split))
        padding = -count % world_size
        inputs, targets = split.rows([*range(count), *[0] * padding])
        targets[count:] = IGNORE
        return inputs, targets

    def _count_skipped(self, step: int, finite: bool) -> None:
        self._skipped = 0 if finite else self._skipped + 1
        if not finite:
            self.metrics.skipped(step)
        if self._skipped >= MOST_SKIPPED:
            raise Diverged(f"the gradient was not finite for {MOST_SKIPPED} steps in a row, up to step {step}")


def open_samples(options: Options, folder: Path) -> Samples:
    """Rank 0 writes the samples to the volume, however long it takes; everybody maps them."""
    process_group.first_does(lambda: tokenized.prepare(options, folder))
    return samples.open_prepared(folder, options.seq_length)


def seed_all(seed: int, device: torch.device) -> None:
    """As torch.manual_seed, which looks at every kind of accelerator each time: 0.1 ms."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def wants_bfloat16(options: Options, device: torch.device) -> bool:
    if options.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return options.precision == "bf16"
