"""The folder of a run on the volume: the names in it, and files that are whole or not there."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

_COMPLETE = re.compile(r"step-(\d+)")
_ATTEMPT = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run as one node uses them: node 0 has exit.json, node 3 exit-n3.json."""

    path: Path
    node: int = 0

    def of_node(self, name: str) -> Path:
        stem, _, suffix = name.partition(".")
        return self.path / (f"{stem}-n{self.node}.{suffix}" if self.node else name)

    @property
    def lock(self) -> Path:
        """Beside the folder, so that it stays where it is when the folder is put aside; each node has its own."""
        return self.path.with_name(f".{self.path.name}-n{self.node}.lock" if self.node else f".{self.path.name}.lock")

    @property
    def rival(self) -> Path:
        """Left by a second node that says it is node 0."""
        return self.path.with_name(f".{self.path.name}.rival")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def agent_log(self) -> Path:
        return self.logs / (f"agent-n{self.node}.log" if self.node else "agent.log")

    @property
    def services_log(self) -> Path:
        return self.logs / (f"services-n{self.node}.log" if self.node else "services.log")

    @property
    def setup_log(self) -> Path:
        return self.logs / (f"setup-n{self.node}.log" if self.node else "setup.log")

    @property
    def step(self) -> Path:
        return self.path / "step"

    @property
    def stop(self) -> Path:
        return self.path / "stop"

    def attempt(self, number: int) -> Path:
        return self.logs / f"attempt-{number}"

    def attempts(self) -> list[int]:
        """Numbers of the attempts that have a folder, in order."""
        return _numbers(self.logs, _ATTEMPT)

    def newest_checkpoint(self) -> int | None:
        """Step of the newest complete checkpoint: `step-N` with a manifest, as ours and the documented ones have."""
        steps = _numbers(self.checkpoints, _COMPLETE)
        return next((n for n in reversed(steps) if (self.checkpoints / f"step-{n}" / "manifest.json").is_file()), None)

    def refuses_writes(self) -> str | None:
        """Why nothing can be written here (a full volume, a quota, one that is away); None: it can."""
        probe = self.path / f".{uuid4().hex}.probe"
        try:
            probe.write_bytes(bytes(1 << 20))  # less may have become free since: a lock, a file half written
        except OSError as error:
            return error.strerror or str(error)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return None

    def current_step(self) -> int | None:
        """What the step file says; None: no step yet, or a script that does not tell."""
        try:
            return int(self.step.read_text())
        except (OSError, ValueError):
            return None


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def read_json(path: Path) -> Any:
    """The document, or None where there is none that can be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def write_json(path: Path, document: Any) -> None:
    write_text(path, json.dumps(document, indent=1) + "\n")


def note_json(path: Path, document: Any) -> None:
    """Write it if that can be done: a full volume must not hide how the training went."""
    try:
        write_json(path, document)
    except OSError as error:
        print(f"{path.name} could not be written: {error.strerror}", file=sys.stderr)


def write_text(path: Path, text: str) -> None:
    """By rename: a reader sees the old file or the new one."""
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")  # other processes may be writing it too
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def last_lines(path: Path, count: int, *, of_bytes: int = 1 << 16) -> tuple[str, ...]:
    """The last lines of a log, however long it is."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - of_bytes))
            lines: Sequence[str] = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[-count:])
