"""Requests to end this process, where it waits for something else."""

import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Interrupts:
    """SIGTERM, Ctrl-C and SIGQUIT end its waiting and nothing else, until `restore` or the end of a `with`."""

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked = asked  # what came before this was made
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.seen = False
        self._before = {number: signal.signal(number, self._note) for number in _NUMBERS}
        self._descriptor = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> bool:
        """True as soon as one has come, False after `seconds`."""
        until = time.monotonic() + seconds
        while not (self.seen or self._asked()) and (left := until - time.monotonic()) > 0:
            if select.select([self._read], [], [], left)[0]:
                os.read(self._read, 64)
        return self.seen or self._asked()

    def restore(self) -> None:
        signal.set_wakeup_fd(self._descriptor)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def __enter__(self) -> "Interrupts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
