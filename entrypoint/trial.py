"""A program that tries a folder by writing to it: one JSON object a line, so that whoever waits knows how far it came.

    python trial.py FOLDER SECONDS

Everything that it makes has one name of its own and is taken away again. On a hard mount whose server is gone any step
may wait for ever; nothing here can prevent that, which is why it is a process of its own. It changes no owner and no
mode: a server with root squash refuses both.
"""

import ctypes
import errno
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

BLOCK = 4 << 20
REPLACEMENTS = 20


def tell(**said: object) -> None:
    print(json.dumps(said), flush=True)


def main(folder: str, seconds: float) -> None:
    name = os.path.join(folder, f".roundhouse-trial-{os.getpid()}-{time.time_ns()}")
    paths = [name, f"{name}.partial", f"{name}.lock", f"{name}.speed"]
    step = "look"
    try:
        tell(user_id=os.geteuid(), **space(folder))
        steps: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
            ("write", lambda: write(paths[1])),
            ("rename", lambda: rename(paths[1], name)),
            ("read back", lambda: read_back(name)),
            ("replace", lambda: replace(name, paths[1])),
            ("lock", lambda: lock(paths[2])),
            ("speed", lambda: speed(paths[3], seconds)),
        )
        for step, act in steps:
            tell(step=step)
            tell(**act())
        step = "delete"
        tell(step=step)
        os.unlink(name)
        tell(done=True)
    except OSError as error:
        tell(failed=step, errno=errno.errorcode.get(error.errno or 0, str(error.errno)), error=error.strerror)
    finally:
        for path in paths:
            with suppress(OSError):
                os.unlink(path)


def space(folder: str) -> dict[str, Any]:
    found = os.statvfs(folder)
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        # btrfs and some network file systems count none and say 0 of 0.
        "free_files": found.f_favail if found.f_files else None,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
    }


def write(path: str, text: bytes = b"roundhouse\n") -> dict[str, Any]:
    began, before = time.perf_counter(), time.time()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, text * 400)  # two blocks: a full file system may still take a few bytes beside the inode
        os.fsync(file)
        status, after = os.fstat(file), time.time()
    finally:
        os.close(file)
    # The clock that stamps files is the server's; on a local disk it is this machine's, up to a tick (10 ms) late.
    stamp = status.st_mtime
    offset = stamp - after if stamp > after else min(0.0, stamp - before + 0.01)
    return {"write_seconds": time.perf_counter() - began, "owner": status.st_uid, "clock_offset": offset}


def rename(source: str, target: str) -> dict[str, Any]:
    os.rename(source, target)
    return {}


def read_back(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"intact": file.read() == b"roundhouse\n" * 400}


def replace(name: str, partial: str) -> dict[str, Any]:
    """Whether a reader sees the old file or the new one, and never none, while it is replaced."""
    over = threading.Event()
    seen = {"missing": 0, "torn": 0, "reads": 0}

    def watch() -> None:
        while not over.is_set():
            seen["reads"] += 1
            try:
                with open(name, "rb") as file:
                    text = file.read()
            except FileNotFoundError:
                seen["missing"] += 1
            except OSError:  # ESTALE of a network file system: the old file is gone from the server
                continue
            else:
                seen["torn"] += len(set(text.split())) != 1

    reader = threading.Thread(target=watch, daemon=True)
    reader.start()
    try:
        for number in range(REPLACEMENTS):
            with open(partial, "wb") as file:
                file.write(b"%d\n" % number * 400)
            os.replace(partial, name)
    finally:
        over.set()
        reader.join(1)
    return {"replaces": not seen["missing"] and not seen["torn"]}


def lock(path: str) -> dict[str, Any]:
    """Whether flock keeps a second process out; a second descriptor is no test: over NFS locks are of processes."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        return {"lock": "none", "lock_error": error.strerror}
    child = os.fork()
    if not child:
        try:
            fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os._exit(1)
        except BlockingIOError:
            os._exit(0)
        except OSError:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    os.close(file)
    return {"lock": {0: "works", 1: "keeps nobody out"}.get(os.waitstatus_to_exitcode(status), "none")}


def speed(path: str, seconds: float) -> dict[str, Any]:
    """Bytes a second of writing with fsync, then of reading what the cache was told to forget."""
    if not seconds:
        return {}
    block = os.urandom(BLOCK)  # a file system that compresses would flatter zeros
    room = space(os.path.dirname(path))["free_bytes"] // 20
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        began = time.perf_counter()
        written = 0
        while written + BLOCK <= min(room, 1 << 30) and time.perf_counter() - began < seconds * 0.6:
            written += os.write(file, block)
            os.fsync(file)
        took = time.perf_counter() - began
        if not written:
            return {}
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file, 0, os.SEEK_SET)
        began, read = time.perf_counter(), 0
        while (got := len(os.read(file, BLOCK))) and time.perf_counter() - began < seconds * 0.4:
            read += got
        return {
            "write_bytes_per_second": written / took,
            "read_bytes_per_second": read / max(time.perf_counter() - began, 1e-9) if read else None,
        }
    finally:
        os.close(file)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: what nobody waits for any more should not go on
    main(sys.argv[1], float(sys.argv[2]))
