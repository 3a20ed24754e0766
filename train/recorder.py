"""What this rank's last collectives were, from torch's flight recorder: a file from which a hang is explained.

NCCL's process group writes such a file by itself, gloo's does not. Whoever keeps this process asks for it through a
pipe, as for NCCL's; and a rank that ends by an error of its group leaves one too.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from types import TracebackType

import torch


def watch(rank: int, variables: Mapping[str, str]) -> None:
    """Listen for the wish for a trace, where a launcher said where to; no recorder, or no launcher: do nothing."""
    traces, pipes = variables.get("TORCH_FR_DUMP_TEMP_FILE"), variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not traces or variables.get("TORCH_FR_BUFFER_SIZE", "0") == "0":
        return
    path = f"{traces}{rank}.gloo.json"
    _on_errors(path)
    if pipes:
        # A thread, because the main one may be stuck in a collective, where Python runs no signal handler.
        threading.Thread(target=_listen, args=(f"{pipes}{rank}.gloo.pipe", path), name="recorder", daemon=True).start()


def dump(path: str) -> None:
    """Write the trace, whole or not at all; a full volume is no reason to end a training."""
    with contextlib.suppress(OSError):
        with open(f"{path}.partial", "wb") as stream:
            stream.write(torch._C._distributed_c10d._dump_fr_trace_json())
        os.replace(f"{path}.partial", path)


def _listen(pipe: str, path: str) -> None:
    with contextlib.suppress(OSError):
        os.mkfifo(pipe)
        while True:
            with open(pipe, "rb") as wishes:  # waits until somebody opens the other end
                wishes.read()
            dump(path)


def _on_errors(path: str) -> None:
    earlier = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, RuntimeError):  # of gloo: a timeout, a lost peer
            dump(path)
        earlier(kind, error, traceback)

    sys.excepthook = hook
