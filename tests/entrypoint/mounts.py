"""File systems for tests: real ones, mounted for one test and taken away after it."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from leave_out import leave_out

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
PYTHON_AS = {
    # A user of its own, without privileges; and a root without any, as the root of a container whose server maps it
    # to nobody (root squash) or that was started with --cap-drop ALL.
    "user 1234": ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "--bounding-set=-all"),
    "root without capabilities": ("setpriv", "--inh-caps=-all", "--bounding-set=-all"),
}


@contextmanager
def tmpfs(point: Path, options: str) -> Iterator[Path]:
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


@contextmanager
def hung(point: Path) -> Iterator[Path]:
    """A file system whose server takes requests and never answers: FUSE, and nobody reads."""
    point.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hung", os.fsencode(point), b"fuse", 0, options):
        os.close(server)
        leave_out(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
    try:
        yield point
    finally:
        os.close(server)  # ends the waiting of whoever was left behind
        libc.umount2(os.fsencode(point), 2)  # MNT_DETACH
