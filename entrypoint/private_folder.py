"""A folder of this machine's own that only this user reads: the services' files, and the variables for shells.

Never on the volume: what lies in it holds secrets, and is of one start of one container. image/shell.sh knows the
same two places.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from entrypoint.errors import MachineError


def places(user: int) -> tuple[Path, ...]:
    """/tmp for users other than root, and for root where its own file system is read-only."""
    return (Path("/run/roundhouse"), Path(f"/tmp/roundhouse-{user}/run"))


def make(candidates: tuple[Path, ...]) -> Path:
    """The first of these that can be had, 0700; MachineError where none can."""
    for folder in candidates:
        with contextlib.suppress(OSError):
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            if is_ours(folder):
                folder.chmod(0o700)
                return folder
    wanted = " or ".join(map(str, candidates))
    raise MachineError(f"no folder of this user's own can be made: {wanted}", fix="give the container a --tmpfs /tmp")


def find(candidates: tuple[Path, ...]) -> Path | None:
    """The one that is there already."""
    return next((folder for folder in candidates if is_ours(folder)), None)


def is_ours(folder: Path) -> bool:
    """A folder, no link to one, that belongs to this user and not to somebody who was there before."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def write(path: Path, text: str) -> None:
    """0600 and by rename: a reader sees the old file or the new one."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(text.encode(errors="surrogateescape"))  # variables hold bytes, not text
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, document: Any) -> None:
    write(path, json.dumps(document, indent=1) + "\n")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Whether no other process has the folder: of two that come, the second leaves it alone."""
    with open(os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
