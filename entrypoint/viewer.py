"""A run as a person follows it, from its files alone: what happens to this process never reaches the training."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from entrypoint.errors import STOPPED
from entrypoint.run_folder import RunFolder, read_json
from entrypoint.run_lock import living_holder
from entrypoint.screen import LogTail, Screen
from entrypoint.tally import KILLED

_POLL_SECONDS = 0.2
_QUESTION = "stop the run? [y/N] (Ctrl-C again: kill it at once, without saving) "


def show(tail: LogTail, folder: RunFolder, stream: TextIO, over: Callable[[], bool]) -> None:
    """Lines and the bar until the run is over; a reader who has gone away ends the showing and nothing else."""
    try:
        with Screen(stream, folder.path / "metrics.jsonl") as screen:
            while not over():
                _step(tail, screen)
                time.sleep(_POLL_SECONDS)
            for name, line in tail.drain():
                screen.line(prefixed(name, line))
            screen.tick()
    except BrokenPipeError:
        return


@contextlib.contextmanager
def showing(folder: RunFolder, tail: LogTail) -> Iterator[None]:
    """Meanwhile a thread shows the run on stdout: a full pipe may hold it up, and must hold up nothing else."""
    over = threading.Event()
    thread = threading.Thread(target=show, args=(tail, folder, sys.stdout, over.is_set), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=30)


def prefixed(name: str, line: str) -> str:
    return line if name.startswith("agent") else f"[{name}] {line}"


def _step(tail: LogTail, screen: Screen) -> None:
    for name, line in tail.lines():
        screen.line(prefixed(name, line))
    screen.tick()


def tell_end(folder: RunFolder, stream: TextIO, code: int = KILLED) -> int:
    """The last words on the screen are the first failing process's own; returns the run's exit code.

    `code`: the agent's, where its parent knows it and the volume may not.
    """
    ended = read_json(folder.of_node("exit.json"))
    if ended is None:
        if (why := folder.refuses_writes()) is not None:
            print(f"{folder.path}: {why}; what the run wrote last is not there", file=stream)
        else:
            print(f"lost: the launcher of {folder.path} was killed before it could tell how it ended", file=stream)
        return code
    code = int(ended["exit_code"])
    if code not in (0, STOPPED):
        failure: dict[str, Any] = read_json(folder.of_node("failure.json")) or {}
        name = f"n{failure.get('node')}r{failure.get('local_rank')}"
        for line in failure.get("lines", ()):
            print(prefixed(name if failure.get("rank") is not None else "agent", line), file=stream)
    if ended["text"]:
        print(ended["text"], file=stream)
    stream.flush()
    return code


class Follower:
    """Follows a run from a terminal that may come and go; Ctrl-C asks before it ends anything."""

    def __init__(self, folder: RunFolder, *, lines: int = 20) -> None:
        self._folder = folder
        self._tail = LogTail(folder.logs, lines_before=lines)
        self._interrupts = 0
        signal.signal(signal.SIGINT, self._on_interrupt)

    def follow(self) -> None:
        show(self._tail, self._folder, sys.stdout, self._is_over)

    def _is_over(self) -> bool:
        if self._interrupts:
            self._ask()
            self._interrupts = 0
        return living_holder(self._folder.lock) is None

    def _ask(self) -> None:
        print(f"\n{_QUESTION}", end="", flush=True)
        while living_holder(self._folder.lock) is not None:
            if self._interrupts > 1:
                print("\nkilling it")
                return self._signal(signal.SIGQUIT)
            ready, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
            if ready:
                if sys.stdin.readline().strip().lower() in ("y", "yes"):
                    return self._signal(signal.SIGTERM)
                return print("it goes on")
        return None

    def _signal(self, number: signal.Signals) -> None:
        holder = living_holder(self._folder.lock)
        if holder and holder.is_here:
            os.kill(holder.pid, number)
        else:  # on another machine, which looks at this file
            self._folder.stop.touch()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1


def main() -> None:
    """What the pane of a tmux session runs: FOLDER NODE."""
    Follower(RunFolder(Path(sys.argv[1]), int(sys.argv[2]))).follow()
