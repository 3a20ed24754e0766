"""What services write, on the container's log with a prefix, and in the run's folder once there is a run."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from entrypoint.run_folder import RunFolder
from entrypoint.screen import LogTail

_LINES_A_MINUTE = 30  # of one service on the screen: sshd alone tells of every stranger at the door of a public machine
_FILE_BYTES = 8 << 20  # in the run's folder, and as much again in services.log.1


class Relay:
    """Follows the files that supervisor writes, which are bounded; `step` shows what is new."""

    def __init__(self, logs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.run: RunFolder | None = None
        self._logs = logs
        self._tail = LogTail(logs, names=("*.log",))
        self._clock = clock
        self._minute = 0.0
        self._shown: dict[str, int] = {}

    def step(self) -> None:
        if self._clock() - self._minute >= 60:
            self._tell_more()
            self._minute = self._clock()
        for name, line in self._tail.lines():
            self._write(f"[{name}] {line}", on_screen=self._may_show(name))

    def say(self, text: str) -> None:
        """A line of our own."""
        self._write(text, on_screen=True)

    def end(self) -> None:
        """What is left; of more than a screen may have, the number."""
        self._minute = self._clock()
        self.step()
        self._tell_more()

    def _may_show(self, name: str) -> bool:
        self._shown[name] = self._shown.get(name, 0) + 1
        return self._shown[name] <= _LINES_A_MINUTE

    def _tell_more(self) -> None:
        for name, count in self._shown.items():
            if count > _LINES_A_MINUTE:
                self.say(f"[{name}] ({count - _LINES_A_MINUTE} more lines are in {self._logs / name}.log)")
        self._shown.clear()

    def _write(self, line: str, *, on_screen: bool) -> None:
        if on_screen:
            _show(line)
        if self.run is not None:
            _append(self.run.services_log, line)


def _show(line: str) -> None:
    """In one write: `up` writes to the same place."""
    try:
        os.write(1, f"{line}\n".encode(errors="replace"))
    except OSError:  # nobody reads any more; the services go on
        return


def _append(path: Path, line: str) -> None:
    try:
        with open(path, "a") as stream:
            stream.write(f"{line}\n")
            if stream.tell() > _FILE_BYTES:
                os.replace(path, path.with_name(f"{path.name}.1"))
    except OSError:  # the volume is full or away
        return
