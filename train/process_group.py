"""This process among the others: the launcher's variables → device and process group."""

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, cast

import recorder
import torch
import torch.distributed as dist
from options import Problem

Result = TypeVar("Result")

TIMEOUT = timedelta(minutes=10)
PATIENCE = timedelta(days=1)  # for what one rank does while the others have nothing else to do
_LAUNCHER_SETS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Process:
    """One training process; world size counts the processes of all nodes."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def start(variables: Mapping[str, str] = os.environ) -> Process:
    """Join the process group that the launcher describes, or make one of this process alone if none does."""
    rank, local_rank, world_size = read_ranks(variables)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # gloo beside NCCL: checkpoints and object broadcasts travel as CPU tensors
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if world_size == 1 else {}
    dist.init_process_group(backend, timeout=TIMEOUT, **alone)
    recorder.watch(rank, variables)
    return Process(rank, local_rank, world_size, device)


def read_ranks(variables: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, local rank and world size; Problem where a size is set but no launcher set the ranks.

    A pod's WORLD_SIZE in a plain shell would make this process wait for peers that nobody starts
    (pytorch/examples#458).
    """
    missing = [name for name in _LAUNCHER_SETS if not variables.get(name)]
    if not missing:
        return _number(variables, "RANK"), _number(variables, "LOCAL_RANK"), _number(variables, "WORLD_SIZE")
    if "RANK" in missing and "LOCAL_RANK" in missing and variables.get("WORLD_SIZE", "1") in ("", "1"):
        return 0, 0, 1
    given = ", ".join(f"{name}={variables[name]}" for name in _LAUNCHER_SETS if variables.get(name))
    raise Problem(
        f"{given} without {', '.join(missing)}: this process was not started by a launcher",
        fix="start it with `roundhouse train`, torchrun or accelerate, or unset these variables to train alone",
    )


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise Problem(f"{name}={variables[name]!r} is not a number", fix="start it with a launcher") from None


def leave(code: int) -> NoReturn:
    """End this process with a code, after Python's own exit functions but without C++'s static destructors.

    They abort it ("terminate called without an active exception") where a thread of gloo is still there: seen once in
    some hundred exits, after all was done, on an idle machine. A finished run must not look like a crash.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def stop() -> None:
    dist.destroy_process_group()


def from_first(value: object) -> object:
    """Rank 0's value on every rank, so that nobody decides on what it alone sees of a shared file system."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def first_does(work: Callable[[], Result]) -> Result:
    """Rank 0 does it while the others wait, up to a day; its result, or its Problem, is everybody's."""
    waiting = dist.new_group(backend="gloo", timeout=PATIENCE)
    box = list(_tried(work)) if dist.get_rank() == 0 else [None, None]
    dist.broadcast_object_list(box, src=0, group=waiting)
    dist.destroy_process_group(waiting)
    if box[1] is not None:
        raise box[1]
    return box[0]


def from_all(value: Result) -> list[Result]:
    """Every rank's value on every rank, in their order; waits for the slowest, up to a day."""
    waiting = dist.new_group(backend="gloo", timeout=PATIENCE)
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=waiting)
    dist.destroy_process_group(waiting)
    return values


def all_do(work: Callable[[], Result]) -> Result:
    """Every rank does it, however long the slowest takes; the Problem of the first that has one is everybody's.

    For what can be wrong on one node alone, as a folder that is not there: only rank 0 tells what is wrong.
    """
    result, problem = _tried(work)
    for rank, each in enumerate(from_all(problem)):
        if each is not None:
            raise Problem(f"rank {rank}: {each.problem}" if rank else each.problem, fix=each.fix)
    return cast(Result, result)


def _tried(work: Callable[[], Result]) -> tuple[Result | None, Problem | None]:
    try:
        return work(), None
    except Problem as problem:
        return None, problem
