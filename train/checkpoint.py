"""Checkpoints on the shared volume: `step-N` is complete or does not exist.

A recipe writes into `step-N.partial`; a manifest that names every file with its size, and a rename, make it `step-N`.
Rank 0 alone looks at the folder and decides; the others are told. Model and optimizer of `ddp` and `fsdp` go through
torch.distributed.checkpoint under the model's own names, so that each reads the other's, at any number of processes.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from optimizer import complete_state, keeping_decay
from process_group import from_all, from_first
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim import Optimizer

MANIFEST = "manifest.json"
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
_COMPLETE = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Found:
    """The newest complete checkpoint, what its manifest says, and why newer ones were passed over."""

    path: Path
    step: int
    about: dict[str, Any]
    damaged: tuple[str, ...] = ()


class NotSaved(Exception):
    """A checkpoint could not be written; the ones before it are as they were."""


class Stranded(Exception):
    """One rank's write failed where the others wait for it in a library's collective: only its end frees them."""


def write_state(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Model and optimizer into `folder`, each rank its share; without what is frozen, which never changes."""
    complete_state(optimizer)
    dcp.save(_state(model, optimizer), checkpoint_id=folder)


def read_state(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Model and optimizer from `folder`, in place, whatever number of processes wrote them."""
    state = _state(model, optimizer)  # allocates Adam's moments, which dcp.load then fills
    dcp.load(state, checkpoint_id=folder)
    with keeping_decay(optimizer):
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=_TRAINED
        )


def in_step(write: Callable[[], None], folder: Path) -> None:
    """Let a library write that has collectives of its own between its files, as DeepSpeed's barriers.

    Stranded where it fails and others may wait in one: to try again, or to tell them, would be another collective.
    """
    try:
        write()
    except (OSError, RuntimeError) as error:
        if dist.get_world_size() == 1:
            raise
        raise Stranded(f"rank {dist.get_rank()}: {folder} was not written: {_why(error, folder)}") from error


def save(folder: Path, step: int, write: Callable[[Path], None], about: dict[str, Any]) -> Path:
    """Make `step-<step>` in `folder` of what `write` puts into the folder that it is given, on all ranks.

    Returns after the rename, on all ranks; NotSaved on all ranks, with nothing left behind, where it failed twice or
    the volume has less room than the newest checkpoint takes. `about` is kept in the manifest. What `write` raises
    besides OSError and RuntimeError goes through, and leaves the partial folder to the next save.
    """
    final, partial = folder / f"step-{step}", folder / f"step-{step}.partial"
    if from_first(dist.get_rank() == 0 and _is_complete(final)):
        return final
    manifest = {"step": step, "world_size": dist.get_world_size(), "about": about}
    _try(lambda: _sweep(folder) if dist.get_rank() == 0 else None, folder)
    failed = from_first(_no_room(folder) if dist.get_rank() == 0 else None)
    # Each ends with all ranks: one that failed must not meet the others in a collective of the next.
    acts: tuple[Callable[[], object], ...] = (
        lambda: _empty(partial) if dist.get_rank() == 0 else None,
        lambda: write(partial),
        lambda: _commit(partial, final, manifest) if dist.get_rank() == 0 else None,
    )
    for _ in range(0 if failed else 2):  # a network file system hiccups
        failed = next(filter(None, (_try(act, folder) for act in acts)), None)
        if failed is None:
            return final
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
    dist.barrier()
    raise NotSaved(f"step {step} was not saved to {folder}: {failed}")


def _empty(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)  # left by a try that failed
    partial.mkdir(parents=True)


def _try(act: Callable[[], object], folder: Path) -> str | None:
    """Do something on all ranks; what went wrong on the first that it went wrong on, the same answer on all."""
    wrong: str | None = None
    try:
        act()
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        wrong = _why(error, folder)
    # Where one rank writes for all, the others may wait for it longer than a collective may take.
    return next((each for each in from_all(wrong) if each is not None), None)


def _why(error: BaseException, folder: Path) -> str:
    """One line with the room that is left: torch tells a full disk as "unexpected pos 704 vs 598"."""
    if isinstance(error, dcp.api.CheckpointException):  # its own text is the tracebacks of all ranks
        error, _ = next(iter(error.failures.values()))
    text = " ".join(str(error).split())[:300] or type(error).__name__
    with contextlib.suppress(OSError):
        text += f" ({shutil.disk_usage(folder).free:,} bytes are free)"
    return text


def _sweep(folder: Path) -> None:
    """Remove what a killed run was writing or deleting: nobody would come back to it, and it takes a checkpoint's room.

    A run has one writer, which holds its lock and writes one checkpoint at a time.
    """
    for left in (*folder.glob("step-*.partial"), *folder.glob("step-*.old")):
        shutil.rmtree(left, ignore_errors=True)


def _no_room(folder: Path) -> str | None:
    """Why another checkpoint of the size of the newest one does not fit; None: it does, or there is none to compare."""
    found = _look(folder)
    if found is None:
        return None
    needed = sum(json.loads((found.path / MANIFEST).read_text())["files"].values())
    free = shutil.disk_usage(folder).free
    return None if free >= needed else f"{free:,} bytes are free and {found.path.name} takes {needed:,}"


def newest(folder: Path) -> Found | None:
    """The newest complete checkpoint as rank 0 sees it, the same answer on all ranks; None: there is none."""
    return from_first(_look(folder) if dist.get_rank() == 0 else None)  # type: ignore[return-value]


def prune(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest complete checkpoints. Only after a save has returned on all ranks."""
    if dist.get_rank() == 0:
        complete = [step for step in _steps(folder) if _is_complete(folder / f"step-{step}")]
        for step in set(_steps(folder)) - set(complete):  # out of the way: its number may be the highest
            shutil.rmtree(folder / f"step-{step}.damaged", ignore_errors=True)
            os.rename(folder / f"step-{step}", folder / f"step-{step}.damaged")
        for step in to_delete(complete, keep):
            old = folder / f"step-{step}.old"  # what is half deleted must not look like a checkpoint, nor a damaged one
            os.rename(folder / f"step-{step}", old)
            shutil.rmtree(old, ignore_errors=True)  # NFS: a file that a node still has open; the next save tries again


def to_delete(steps: Sequence[int], keep: int) -> list[int]:
    """Steps to delete so that the `keep` newest stay, oldest first."""
    return sorted(steps)[:-keep]


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint by its own manifest: the first file that is missing or of another size."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"{path.name}: no readable {MANIFEST} ({error})"
    for name, size in files.items():
        try:
            actual = (path / name).stat().st_size
        except OSError:
            return f"{path.name}: {name} is missing"
        if actual != size:
            return f"{path.name}: {name} has {actual} bytes instead of {size}"
    return None


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer, options=_TRAINED)
    return {"model": model_state, "optimizer": optimizer_state}


def _look(folder: Path) -> Found | None:
    damaged: list[str] = []
    for step in sorted(_steps(folder), reverse=True):
        path = folder / f"step-{step}"
        if wrong := damage(path):
            damaged.append(wrong)
            continue
        about = json.loads((path / MANIFEST).read_text())["about"]
        return Found(path, step, about, tuple(damaged))
    return None


def _steps(folder: Path) -> list[int]:
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return [int(match[1]) for name in names if (match := _COMPLETE.fullmatch(name))]


def _is_complete(path: Path) -> bool:
    return path.is_dir() and damage(path) is None


def _commit(partial: Path, final: Path, manifest: dict[str, Any]) -> None:
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    manifest["files"] = {str(path.relative_to(partial)): path.stat().st_size for path in files}
    for path in files:  # DCP has done so, torch.save has not
        _sync(path)
        os.utime(partial)  # the launcher takes files that change for life
    for folder in (path for path in partial.rglob("*") if path.is_dir()):
        _sync(folder)
    with open(partial / MANIFEST, "w") as stream:
        json.dump(manifest, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    _sync(partial)
    if final.exists():  # a damaged one of the same step: this is its replacement
        shutil.rmtree(final)
    os.rename(partial, final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    """To the disk, a file's content or a folder's names; else a power cut may forget them and keep the rename."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
