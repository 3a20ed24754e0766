"""The options that the recipes take, one line of help each, and the batch arithmetic that follows from them.

Imports no torch: the launcher reads this file too, so that a wrong option is refused before any process starts.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import click

BETAS = (0.9, 0.95)  # of AdamW


class Problem(Exception):
    """Something a person can put right: one line that quotes what was given, and a fix. Exit code 78."""

    exit_code: ClassVar[int] = 78

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:  # rank 0's problem is sent to the other ranks
        return _problem, (self.problem, self.fix)

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


def _problem(problem: str, fix: str) -> Problem:
    return Problem(problem, fix=fix)


def _option(default: Any, kind: click.ParamType, text: str, *, many: bool = False, flag: bool = False) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "help": text, "many": many, "flag": flag})


@dataclass(frozen=True, slots=True)
class Interval:
    """How often something is done: every so many steps, or every so many seconds. Exactly one is set."""

    steps: int | None = None
    seconds: int | None = None

    def __str__(self) -> str:
        return str(self.steps) if self.steps is not None else f"{self.seconds}s"


class _Interval(click.ParamType):
    """`500` (steps) or `90s`, `30m`, `2h` (time)."""

    name = "steps or time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Interval:
        if isinstance(value, Interval):
            return value
        text = str(value).strip()
        number, unit = (text[:-1], text[-1:]) if text[-1:] in ("s", "m", "h") else (text, "")
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            self.fail(f"{value!r} is neither a number of steps (500) nor a time (90s, 30m, 2h)", param, ctx)
        if unit:
            return Interval(seconds=int(number) * {"s": 1, "m": 60, "h": 3600}[unit])
        return Interval(steps=int(number))


class _Number(click.FloatRange):
    """click's range lets nan through, which is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


_COUNT, _COUNT0 = click.IntRange(min=1), click.IntRange(min=0)
_POSITIVE, _POSITIVE0 = _Number(min=0, min_open=True), _Number(min=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every recipe takes."""

    steps: int = _option(500, _COUNT, "optimizer updates to make")
    epochs: float | None = _option(None, _POSITIVE, "passes over the data, instead of --steps")
    data: tuple[str, ...] = _option(
        (),
        click.STRING,
        "files, folders or globs: text, .jsonl or .parquet; none: the Python library's sources",
        many=True,
    )
    text_field: str = _option("text", click.STRING, "field of .jsonl and .parquet records that holds the text")
    seq_length: int = _option(256, _COUNT, "tokens in a sample")
    global_batch: int | None = _option(
        None, _COUNT, "samples in an optimizer update, over all processes; none: as the run began, or at least 8"
    )
    micro_batch: int | None = _option(None, _COUNT, "samples a process takes at once; none: no accumulation")
    lr: float | None = _option(
        None, _POSITIVE, "peak learning rate; none: 3e-3 for our own model, 2e-5 for --model, 2e-4 for --lora-rank"
    )
    warmup: int = _option(20, _COUNT0, "steps of linear warm-up")
    schedule: str = _option("cosine", click.Choice(["cosine", "linear", "constant"]), "decay after the warm-up")
    weight_decay: float = _option(0.1, _POSITIVE0, "AdamW weight decay of matrices")
    clip: float = _option(1.0, _POSITIVE0, "largest gradient norm; 0: no clipping")
    seed: int = _option(0, _COUNT0, "seed of the weights and of the data order")
    precision: str = _option(
        "auto", click.Choice(["auto", "fp32", "bf16"]), "auto: bf16 on a GPU that has it, else fp32"
    )
    compile: bool = _option(False, click.BOOL, "compile the model; wants a C++ compiler on CPU", flag=True)
    activation_checkpointing: bool = _option(
        False, click.BOOL, "compute each block's activations again in backward instead of keeping them", flag=True
    )
    model: str | None = _option(None, click.STRING, "a causal language model of Hugging Face: folder or hub id")
    model_size: str = _option("tiny", click.Choice(["tiny", "124m", "350m", "1b", "3b", "8b"]), "size of our own model")
    lora_rank: int = _option(
        0, _COUNT0, "train adapters of this rank instead of all weights of --model; 0: all weights"
    )
    save_every: Interval = _option(Interval(seconds=1800), _Interval(), "steps or time between checkpoints: 500, 30m")
    keep: int = _option(2, _COUNT, "complete checkpoints to keep")
    eval_every: int = _option(
        100, _COUNT, "steps between validations, on the first 128 samples held out; there is always one at the end"
    )
    log_every: int = _option(10, _COUNT, "steps between log lines")

    def __post_init__(self) -> None:
        if self.lr is None:  # a rate for weights that begin at random would undo those that are trained already
            rate = 3e-3 if self.model is None else 2e-4 if self.lora_rank else 2e-5
            object.__setattr__(self, "lr", rate)


_FIND_UNUSED = "let DDP look, in each step, for weights without gradient; slower, for models that have such weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpOptions(Options):
    find_unused_parameters: bool = _option(False, click.BOOL, _FIND_UNUSED, flag=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpOptions(Options):
    strategy: str = _option(
        "full",
        click.Choice(["full", "grad-op", "hybrid"]),
        "full: shard weights, gradients and optimizer; grad-op: keep the weights whole between forward and backward; "
        "hybrid: shard within a node, replicate over nodes",
    )
    offload: bool = _option(False, click.BOOL, "keep shards and optimizer in CPU memory", flag=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroOptions(Options):
    zero_stage: int | None = _option(
        None,
        click.IntRange(0, 3),
        "what is sharded: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights; none: 2, or as the file says",
    )
    offload: bool = _option(False, click.BOOL, "keep the optimizer in CPU memory", flag=True)
    deepspeed_config: str | None = _option(None, click.STRING, "a DeepSpeed JSON file of your own, instead of a stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class HfOptions(Options):
    strategy: str = _option("ddp", click.Choice(["ddp", "zero", "fsdp"]), "how the Trainer distributes the model")
    zero_stage: int | None = _option(
        None, click.IntRange(0, 3), "stage of --strategy zero; none: 2, or as the file of --deepspeed-config says"
    )
    deepspeed_config: str | None = _option(None, click.STRING, "a DeepSpeed JSON file of your own for --strategy zero")
    find_unused_parameters: bool = _option(False, click.BOOL, _FIND_UNUSED, flag=True)


KINDS: dict[str, type[Options]] = {"ddp": DdpOptions, "fsdp": FsdpOptions, "zero": ZeroOptions, "hf": HfOptions}


AnyOptions = TypeVar("AnyOptions", bound=Options)


def parse(arguments: Sequence[str], kind: type[AnyOptions] = Options) -> AnyOptions:  # type: ignore[assignment]
    """The options in `arguments`; Problem for an unknown name (the nearest is named) or a value out of range."""
    command = click.Command("recipe", params=list(_click_options(kind)), add_help_option=True)
    try:
        context = command.make_context("recipe", list(_one_value_each(arguments)))
    except click.exceptions.Exit:  # --help was asked for and is printed
        raise SystemExit(0) from None
    except click.NoSuchOption as error:
        names = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind)]
        near = difflib.get_close_matches(error.option_name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "--help lists the options"
        raise Problem(f"no such option: {error.option_name}", fix=hint) from None
    except click.UsageError as error:
        raise Problem(error.format_message(), fix="--help lists the options") from None
    options = kind(**context.params)
    if options.lora_rank and options.model is None:
        raise Problem(
            f"--lora-rank {options.lora_rank} without --model: there are no weights to adapt",
            fix="--model FOLDER or hub id, or leave --lora-rank out",
        )
    return options


def help_text(kind: type[Options] = Options) -> str:
    command = click.Command("recipe", params=list(_click_options(kind)))
    return command.get_help(click.Context(command, info_name="recipe"))


def settle_batch(options: AnyOptions, processes: int, began_with: int | None = None) -> AnyOptions:
    """The options with a global batch: the one asked for, or the run's own, or the least multiple of processes from 8.

    >>> [settle_batch(Options(), processes).global_batch for processes in (1, 2, 3, 8, 16)]
    [8, 8, 9, 8, 16]
    """
    if options.global_batch is not None:
        return options
    return dataclasses.replace(options, global_batch=began_with or math.ceil(8 / processes) * processes)


def accumulation(options: Options, processes: int) -> int:
    """Passes per optimizer update: global batch ÷ (micro batch × processes), which must come out whole.

    >>> accumulation(Options(global_batch=256, micro_batch=4), processes=16)
    4
    """
    assert options.global_batch is not None
    if options.micro_batch is None:
        unit, counted = processes, f"the {processes} processes"
    else:
        unit = options.micro_batch * processes
        counted = f"{unit} (micro batch {options.micro_batch} x {processes} processes)"
    if options.global_batch % unit == 0:
        return 1 if options.micro_batch is None else options.global_batch // unit
    below = options.global_batch // unit * unit
    nearest = " or ".join(str(batch) for batch in (below, below + unit) if batch)
    raise Problem(
        f"--global-batch {options.global_batch} is not a multiple of {counted}",
        fix=f"--global-batch {nearest}, or another --micro-batch",
    )


def _click_options(kind: type[Options]) -> Iterator[click.Option]:
    for field in dataclasses.fields(kind):
        meta = field.metadata
        yield click.Option(
            [f"--{field.name.replace('_', '-')}"],
            type=meta["kind"],
            default=field.default,
            multiple=meta["many"],
            is_flag=meta["flag"],
            help=meta["help"],
            show_default=field.default not in (None, (), False),
        )


def _one_value_each(arguments: Sequence[str]) -> Iterator[str]:
    """`--data a b c` → `--data a --data b --data c`: click's options take a fixed number of values."""
    in_data = first = False
    for argument in arguments:
        if argument.startswith("--"):
            in_data = first = argument == "--data"
        elif in_data and not first:
            yield "--data"
        else:
            first = False
        yield argument
