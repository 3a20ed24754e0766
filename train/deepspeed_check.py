"""What DeepSpeed takes without a word and does not do: misspelt names, "auto" that nobody fills in, no effect.

Its own class passes unknown names at the top, and thinks of one process. Imports neither torch nor DeepSpeed.
"""

import difflib
import json
from collections.abc import Iterator, Set
from typing import Any

from deepspeed_keys import ANY, DEPRECATED, KEYS, REMOVED, STAGE_3_ONLY, WITHOUT_EFFECT
from options import Problem

AUTO = "auto"
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_OPEN = frozenset({*_BATCH, "gradient_clipping", "bf16.enabled", "fp16.enabled"})
_PARAMS = frozenset(
    f"{section}.params.{name}" for section in ("optimizer", "scheduler") for name in KEYS[section]["params"]
)
# Where "auto" may stand: what the recipe zero fills in, and what the Trainer of Hugging Face does.
ZERO_FILLS = _OPEN | _PARAMS | {"torch_autocast.enabled", "torch_autocast.dtype", "zero_optimization.stage"}
HF_FILLS = _OPEN | {
    *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
    *(f"scheduler.params.{name}" for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")),
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
}


def check(config: dict[str, Any], file: str, *, fills: Set[str], world_size: int) -> None:
    """Problem for the first thing in `config` that would be ignored or cannot be; `file` is named in it.

    fills: dotted names where "auto" may stand. world_size: processes over all nodes; batch values must multiply out.
    """
    refuse_unknown(config, KEYS, "", file)
    _refuse_auto(config, fills, file)
    _refuse_batch(config, world_size, file)
    for name, why in _without_effect(config):
        raise Problem(f"{name} in {file} has no effect: {why}", fix="leave it out")


def refuse_unknown(
    section: dict[str, Any], known: dict[str, Any], path: str, file: str, *, reader: str = "DeepSpeed"
) -> None:
    """Problem for the first name that is not in the table `known`, at any depth; the nearest one is named."""
    for name, value in section.items():
        full = f"{path}{name}"
        if full in DEPRECATED:
            raise Problem(f"{full} in {file} is an old name", fix=f"write {DEPRECATED[full]}")
        if full in REMOVED:
            raise Problem(f"{full} in {file} has been removed from DeepSpeed", fix="leave it out")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {path}{near[0]}?" if near else f"one of {', '.join(known)}"
            raise Problem(f"{full} in {file} is no name that {reader} reads", fix=hint)
        below = known[name]
        if isinstance(below, dict) and value is not None:
            if not isinstance(value, dict):
                raise Problem(f"{full} in {file} is {json.dumps(value)}, no object", fix=f"with {', '.join(below)}")
            refuse_unknown(value, below, f"{full}.", file, reader=reader)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _refuse_auto(config: dict[str, Any], fills: Set[str], file: str) -> None:
    for path, value in _leaves(config):
        if value == AUTO and path not in fills and KEYS.get(path.partition(".")[0]) is not ANY:
            raise Problem(f'{path} is "auto" in {file}, and nobody fills it in', fix="write a value, or leave it out")


def _refuse_batch(config: dict[str, Any], world_size: int, file: str) -> None:
    """train_batch_size = micro batch × accumulation × processes, as far as they are given."""
    given = {name: config[name] for name in _BATCH if config.get(name, AUTO) != AUTO}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Problem(f"{name} is {json.dumps(value)} in {file}", fix="a whole number, 1 or more")
    if "train_batch_size" not in given:
        return
    factors = [name for name in _BATCH[1:] if name in given]
    unit = world_size
    for name in factors:
        unit *= given[name]
    total = given["train_batch_size"]
    if total % unit or (len(factors) == 2 and total != unit):
        product = " × ".join([*(f"{name} {given[name]}" for name in factors), f"{world_size} processes"])
        relation = "is not" if len(factors) == 2 else "is not a multiple of"
        raise Problem(
            f"train_batch_size {total} in {file} {relation} {product} = {unit}",
            fix="correct one of them, or leave one out: it follows from the others",
        )


def _without_effect(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names that are set and do nothing, with the reason."""
    yield from ((name, why) for name, why in WITHOUT_EFFECT.items() if name in config)
    zero = config.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    at = "zero_optimization."
    if stage == 0:
        yield from ((at + name, "stage 0 shards nothing") for name in zero if name != "stage")
    if stage in (1, 2):
        yield from ((at + name, f"it is for stage 3, and this is stage {stage}") for name in STAGE_3_ONLY & zero.keys())
    if stage == 3 and "round_robin_gradients" in zero:
        yield at + "round_robin_gradients", "it is for stages 1 and 2"
    yield from _idle_offload(zero, stage, aio="aio" in config)
    if "zenflow" in zero and not zero.get("offload_optimizer"):
        yield at + "zenflow", "without offload_optimizer there is nothing that it could overlap"


def _idle_offload(zero: dict[str, Any], stage: Any, *, aio: bool) -> Iterator[tuple[str, str]]:
    devices = []
    for name in ("offload_optimizer", "offload_param"):
        section = zero.get(name) or {}
        device = section.get("device", "none")
        devices.append(device)
        at = f"zero_optimization.{name}"
        if device == "none" and section.keys() - {"device"}:
            yield at, 'its device is "none", so nothing is offloaded'
        if device != "nvme" and "nvme_path" in section:
            yield f"{at}.nvme_path", f"its device is {json.dumps(device)}"
        if device == "nvme" and stage in (1, 2):
            yield f'{at}.device "nvme"', f"stage {stage} keeps it in CPU memory all the same; stage 3 does not"
    if aio and "nvme" not in devices:
        yield "aio", "nothing is offloaded to NVMe"
