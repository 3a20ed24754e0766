"""Which process failed first, and its own words: what the user sees last and finds in failure.json."""

import re
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.hints import hint
from entrypoint.run_folder import last_lines, read_json

SHOWN_LINES = 20
# What the others say when one has gone. They may even end before it: it is still busy with its own teardown.
_FOLLOW_UP = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|remote process exited|"
    r"NCCL communicator was aborted|Socket Timeout|ncclRemoteError|Connection was likely closed"
)
_TIMED_OUT = re.compile(r"Timed out waiting|collective operation timeout")


@dataclass(frozen=True, slots=True)
class Ended:
    """How one process ended, as its keeper tells; `lines` are its last ones, `note` explains a hang."""

    node: int
    rank: int
    local_rank: int
    exit_code: int
    by_itself: bool = True
    failed_at: float = 0.0
    after_fault: bool = False
    hung: bool = False
    lines: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        return f"n{self.node}r{self.local_rank}"


def read_ended(folder: Path, node: int) -> tuple[Ended, ...]:
    """All processes of a node that ended in an attempt, by their keepers, or by torch where a keeper was killed."""
    found = []
    for path in sorted(folder.glob(f"n{node}r*.ended.json")):
        if (told := read_json(path)) is not None:
            found.append(Ended(node, **told, lines=last_lines(folder / f"n{node}r{told['local_rank']}.log", 200)))
    launcher = read_json(folder / f"launcher-n{node}.json") or {"exit_code": 0}
    if launcher["exit_code"] and all(ended.local_rank != launcher["local_rank"] for ended in found):
        lines = last_lines(folder / f"n{node}r{launcher['local_rank']}.log", 200)
        found.append(
            Ended(node, launcher["rank"], launcher["local_rank"], launcher["exit_code"], by_itself=False, lines=lines)
        )
    return tuple(found)


def first_to_fail(all_ended: Iterable[Ended], *, fine: Sequence[int]) -> Ended | None:
    """The one whose fault it was: not killed for another's, not complaining of another, and the earliest."""
    failed = [ended for ended in all_ended if ended.exit_code not in fine]
    return min(failed, key=lambda e: (e.after_fault, _complains_of_another(e), e.failed_at, e.rank), default=None)


def describe(first: Ended, attempt: int) -> dict[str, Any]:
    """The content of failure.json."""
    return {
        "node": first.node,
        "rank": first.rank,
        "local_rank": first.local_rank,
        "attempt": attempt,
        "exit_code": first.exit_code,
        "signal": signal_name(first),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first.failed_at or time.time())),
        "traceback": traceback_of(first.lines),
        "lines": list(first.lines[-SHOWN_LINES:]),
        "text": sentence(first),
    }


def sentence(first: Ended) -> str:
    text = f"first to fail: node {first.node} rank {first.rank}, exit code {first.exit_code}"
    name = signal_name(first)
    said = first.note or hint(first.lines, first.exit_code)
    return text + (f" ({name})" if name else "") + (f"; {said}" if said else "")


def timed_out(ended: Ended) -> bool:
    """Whether it waited in vain for other ranks: gloo's words, and those of NCCL's watchdog."""
    return bool(_TIMED_OUT.search("\n".join(ended.lines)))


def signal_name(ended: Ended) -> str | None:
    if ended.by_itself or ended.exit_code <= 128:
        return None
    try:
        return signal.Signals(ended.exit_code - 128).name
    except ValueError:
        return None


def traceback_of(lines: Sequence[str]) -> str | None:
    """The last traceback, to its end."""
    starts = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    return "\n".join(lines[starts[-1] :]) if starts else None


def _complains_of_another(ended: Ended) -> bool:
    return bool(_FOLLOW_UP.search("\n".join(ended.lines[-5:])))
