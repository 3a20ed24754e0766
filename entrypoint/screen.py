"""What the training processes write, on the screen: prefixed lines, and on a terminal a bar with the newest numbers."""

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_CHUNK_BYTES = 1 << 20
_RECENT_LINES = 20


class LogTail:
    """Lines that come into the logs of one node after this was made; None: of all nodes.

    `n0r3.log` is what local rank 3 of node 0 writes, `n0.log` what its launcher does.
    """

    def __init__(self, logs: Path, node: int | None = None) -> None:
        self._logs = logs
        name = "n[0-9]*" if node is None else f"n{node}"
        self._names = (f"{name}.log", f"{name}r*.log")
        self._offsets = {path: path.stat().st_size for path in self._paths()}
        self._rests: dict[Path, bytes] = {}
        self._recent: dict[str, deque[str]] = {}

    def lines(self) -> Iterator[tuple[str, str]]:
        """Pairs of the log's name (`n0r3`) and a line, whole lines only, at most a mebibyte of each file a call."""
        for path in self._paths():
            with open(path, "rb") as stream:
                stream.seek(self._offsets.get(path, 0))
                new = stream.read(_CHUNK_BYTES)
            self._offsets[path] = self._offsets.get(path, 0) + len(new)
            *whole, rest = (self._rests.get(path, b"") + new).split(b"\n")
            self._rests[path] = rest
            yield from (self._noted(path.stem, line) for line in whole)

    def drain(self) -> Iterator[tuple[str, str]]:
        """All that is left, an unfinished last line too."""
        while batch := list(self.lines()):
            yield from batch
        for path, rest in self._rests.items():
            if rest:
                yield self._noted(path.stem, rest)
        self._rests.clear()

    def _paths(self) -> list[Path]:
        return sorted({path for name in self._names for path in self._logs.glob(name)})

    def recent(self, rank: str) -> tuple[str, ...]:
        """The last lines of one rank that were given out."""
        return tuple(self._recent.get(rank, ()))

    def _noted(self, rank: str, line: bytes) -> tuple[str, str]:
        text = line.decode(errors="replace").rstrip("\r")
        self._recent.setdefault(rank, deque(maxlen=_RECENT_LINES)).append(text)
        return rank, text


class Screen:
    """Shows lines and, on a terminal, the progress that rank 0 writes into metrics.jsonl."""

    def __init__(self, stream: TextIO, metrics: Path) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, soft_wrap=True)
        self._metrics = metrics
        self._offset = metrics.stat().st_size if metrics.exists() else 0
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
            self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def line(self, text: str) -> None:
        self._console.print(text)

    def tick(self) -> None:
        """Move the bar to the newest record, if there is one."""
        if self._progress and (record := self._newest()):
            loss = "not finite" if record["loss"] is None else f"{record['loss']:.4f}"
            numbers = (
                f"loss {loss}  {record['tokens_per_second']:,.0f} tokens/s  "
                f"{record['samples_per_second']:,.1f} samples/s"
            )
            if self._task is None:
                self._task = self._progress.add_task("training", total=record["steps"], numbers=numbers)
            self._progress.update(
                self._task,
                completed=record["step"],
                total=record["steps"],
                description=f"step {record['step']}/{record['steps']}",
                numbers=numbers,
            )

    def _newest(self) -> dict[str, float] | None:
        try:
            size = os.stat(self._metrics).st_size
        except OSError:
            return None
        if size <= self._offset:
            return None
        with open(self._metrics, "rb") as stream:
            stream.seek(self._offset)
            whole, newline, _ = stream.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        record: dict[str, float] = json.loads(whole.rpartition(b"\n")[2]) if whole else {}
        return record if {"step", "steps", "loss"} <= record.keys() else None
