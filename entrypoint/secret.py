"""The secret of the roll call: TRAIN_TOKEN, else a file on the shared volume, else the run's name.

The file proves the volume as well: whoever can read it sees the volume of node 0. It stays there, so that a node 0 that
comes back is known to the others.
"""

import contextlib
import os
import secrets
from pathlib import Path

from entrypoint.messages import Secret


def given(token: str) -> Secret:
    return Secret("TRAIN_TOKEN", token.encode())


def of_run(run: str) -> Secret:
    """No secret at all: it keeps nodes apart that came to the wrong address by accident."""
    return Secret("run", run.encode())


def token_path(run: Path) -> Path:
    """Beside the run's folder, which may be put aside."""
    return run.with_name(f".{run.name}.token")


def make(path: Path) -> Secret | None:
    """Node 0's: read it, or make it; None where this volume does not let it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        with contextlib.suppress(OSError):  # some volumes have no modes
            path.chmod(0o600)
    except OSError:
        return None
    return read(path)


def read(path: Path) -> Secret | None:
    """None: not there, not whole, or not for this user (see `why_unreadable`)."""
    try:
        key = path.read_bytes().strip()
    except OSError:
        return None
    return Secret("file", key) if len(key) >= 32 else None


def why_unreadable(path: Path) -> str:
    """For the person: why the file of node 0 cannot be read here."""
    try:
        os.listdir(path.parent)  # NFS clients look again at a folder that is listed
        path.read_bytes()
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} is not whole"


def _create(path: Path) -> None:
    """Whole or not there; of two that make it at once, one wins."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(32).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(partial, path)
    except FileExistsError:
        pass
    except OSError:  # a volume without hard links
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
