"""What `train` looks at between its plan and its first process: that the volume can be written, and CUDA starts."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from entrypoint.caches import COMPILED
from entrypoint.check_examined import check_cuda, check_locks
from entrypoint.checkpoint_size import checkpoint_bytes
from entrypoint.errors import MachineError
from entrypoint.examine import build_locks, cache_folders, start_cuda, trial_of
from entrypoint.facts import Facts
from entrypoint.plan import Plan
from entrypoint.reasons import Check
from entrypoint.volume import check_trial, shares_disk


def preflight(plan: Plan, facts: Facts, variables: Mapping[str, str], say: Callable[[str], None]) -> tuple[Check, ...]:
    """Answers that need the machine; takes some 0.1 s, and a second before the first start on a network volume."""
    return tuple(_look(plan, facts, variables, say))


def _look(plan: Plan, facts: Facts, variables: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Check]:
    first = plan.directories.run is not None and not plan.directories.run.exists()
    trial = trial_of(plan.directories.volume, speed=first and shares_disk(facts))
    size, keep = checkpoint_bytes(plan.recipe)
    yield from check_trial(trial, checkpoint_bytes=size, keep=keep)
    if any(gpu.fabric_state not in (None, "completed", "not supported") for gpu in facts.gpus or ()):
        yield from check_cuda(start_cuda(variables))
    yield from _compiled(plan, variables, say)


def _compiled(plan: Plan, variables: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Check]:
    """Folders for what is compiled: made private, and without the locks of builds that were killed."""
    for setting in plan.settings:
        if setting.name in COMPILED:
            try:
                _make_private(Path(setting.value))
            except OSError as error:  # a root that is read-only: who compiles nothing needs no folder
                text = f"{setting.name}={setting.value} cannot be made: {error.strerror}"
                fix = "set TMPDIR to a folder that may be written, on a file system that may hold programs"
                yield Check("cache.compiled", "warn", text, fix)
                break
    for name, path, ours in cache_folders(plan.settings, variables):
        if name != "TORCH_EXTENSIONS_DIR":
            continue
        left = [lock for lock in build_locks(iter((Path(path),))) if not lock.held]
        if not ours:  # it may be on a volume where another node builds
            yield from check_locks(tuple(left))
            continue
        for lock in left:
            say(f"removed {lock.path}: the process that built there is gone")
            Path(lock.path).unlink(missing_ok=True)


def _make_private(folder: Path) -> None:
    """Make a folder below the shared /tmp that only this user writes to, since programs are loaded from it; OSError."""
    top = folder.parents[1]  # TMPDIR/roundhouse-UID
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(top)
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise MachineError(
            f"{top} belongs to user {found.st_uid} or may be written by others: no compiled code is loaded from there",
            fix=f"remove {top}, or set TMPDIR to a folder of your own",
        )
    folder.mkdir(parents=True, exist_ok=True)
