"""What a program's last words mean that do not say it themselves: a cause and a fix, by what people report. Pure."""

import re
import signal
from collections.abc import Sequence

_SHM = "/dev/shm may be too small: docker run --shm-size 16g, or a memory-backed emptyDir at /dev/shm"
# The first that matches counts: a full disk is also told as "unable to mmap", and a bus error follows from either.
_HINTS = (
    (r"/dev/shm|out of shared memory|Bus error|unable to (?:open|mmap|allocate) shared memory", _SHM),
    (r"Too many open files", "raise the limit of open files: docker run --ulimit nofile=1048576"),
    (r"system not yet initialized|cudaErrorSystemNotReady", "the host's NVLink fabric is not up: take another machine"),
    (r"no kernel image is available", "this GPU is older, or newer, than torch or the ops were built for"),
    (r"driver version is insufficient|driver on your system is too old", "the host's driver is too old for this CUDA"),
    (r"ibv_(?:create_qp|reg_mr\w*)[^\n]* failed", "locked memory is limited: docker run --ulimit memlock=-1"),
    (r"was compiled and installed with a different version|DeepSpeed ops were compiled",
     "another torch was installed over the one that DeepSpeed's ops were built for"),
)  # fmt: skip


def hint(lines: Sequence[str], exit_code: int) -> str | None:
    """A sentence for the last lines of a program that failed, or None where they need none.

    >>> hint(["RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."], 1)[:8]
    '/dev/shm'
    >>> hint(["ValueError: bad data"], 1)
    """
    text = "\n".join(lines[-60:])
    for pattern, said in _HINTS:
        if re.search(pattern, text):
            return f"{said} (`doctor` looks)"
    return f"{_SHM} (`doctor` looks)" if exit_code == 128 + signal.SIGBUS else None
