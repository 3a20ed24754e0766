"""What the training processes write, on the screen: prefixed lines, and on a terminal a bar with the newest numbers."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_CHUNK_BYTES = 1 << 20
_BEHIND_BYTES = 8 << 20


class LogTail:
    """Lines that come into a run's logs after this was made: `n<node>r<rank>.log` of any attempt, the agent's, and
    TRAIN_SETUP's.

    Of one node, or of all; with `names`, of other files.

    Who writes faster than is shown is shown in part: the newest, with a line that says how much was left out.
    """

    def __init__(
        self, logs: Path, *, lines_before: int = 0, node: int | None = None, names: tuple[str, ...] = ()
    ) -> None:
        self._logs = logs
        name = "n[0-9]*" if node is None else f"n{node}"
        agent = "agent*.log" if node is None else f"agent-n{node}.log" if node else "agent.log"
        self._names = names or (agent, agent.replace("agent", "setup"), f"{name}r*.log")
        self._offsets = {path: _offset_before(path, lines_before) for path in self._files()}
        self._files_seen = {path: path.stat().st_ino for path in self._offsets}
        self._rests: dict[Path, bytes] = {}

    def lines(self) -> Iterator[tuple[str, str]]:
        """Pairs of `n0r3` and a line, whole lines only, at most a mebibyte of each file a call."""
        for path in self._files():
            yield from self._new_lines(path)

    def drain(self) -> Iterator[tuple[str, str]]:
        """All that is left, an unfinished last line too."""
        while batch := list(self.lines()):
            yield from batch
        for path, rest in self._rests.items():
            if rest:
                yield path.stem, _text(rest)
        self._rests.clear()

    def _files(self) -> list[Path]:
        return [path for name in self._names for path in sorted(self._logs.rglob(name))]

    def _new_lines(self, path: Path) -> Iterator[tuple[str, str]]:
        try:
            stream = open(path, "rb")  # noqa: SIM115
        except OSError:  # turned over in this moment
            return
        with stream:
            about = os.fstat(stream.fileno())
            if self._files_seen.setdefault(path, about.st_ino) != about.st_ino:  # a new file under the same name
                self._files_seen[path], self._offsets[path] = about.st_ino, 0
            offset = self._offsets.get(path, 0)
            if about.st_size - offset > _BEHIND_BYTES:
                skipped = about.st_size - _CHUNK_BYTES - offset
                offset += skipped
                self._rests.pop(path, None)
                yield path.stem, f"({skipped:,} bytes are not shown here; they are in {path})"
            stream.seek(offset)
            new = stream.read(_CHUNK_BYTES)
        self._offsets[path] = offset + len(new)
        *whole, rest = (self._rests.get(path, b"") + new).split(b"\n")
        self._rests[path] = rest[-_CHUNK_BYTES:]
        for line in whole:
            yield path.stem, _text(line)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _offset_before(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = max(0, size - _CHUNK_BYTES)
        stream.seek(start)
        end = stream.read()
    parts = end.split(b"\n")
    return size - len(b"\n".join(parts[-lines - 1 :])) if lines else size


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
