"""Whether an attempt is followed by another: pure decisions over what the volume remembers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entrypoint.errors import STOPPED

_LONGEST_DELAY = 30
_SETTING = 78
_STUCK = 76


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `ours`: we ended it on request, so nothing is tried again.

    `first_collective`: it hung in the first collective of its GPUs.
    """

    exit_code: int
    text: str | None = None
    stepped: bool = False
    by_itself: bool = True
    ours: bool = False
    first_collective: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Start again after `delay` seconds, or end with a code; the text says why."""

    delay: float | None
    exit_code: int = 0
    text: str | None = None


def in_a_row(history: Sequence[Mapping[str, Any]], newest: int | None) -> int:
    """Attempts up to now that ended, or were lost, without a new complete checkpoint.

    Each record has the newest checkpoint at its start; one without an exit code was lost with its node. Requested
    stops and wrong settings do not count; `anew` marks where a person began the count again.
    """
    count, after = 0, newest
    for record in reversed(history):
        before = record["checkpoint"]
        if record["exit_code"] == 0 or (after is not None and (before is None or after > before)):
            break
        if record["exit_code"] not in (STOPPED, _SETTING):
            count += 1
        if record.get("anew"):
            break
        after = before
    return count


def decide(outcome: Outcome, failures: int, allowed: int) -> Decision:
    """What follows `outcome`; `failures` in a row count it."""
    code = outcome.exit_code
    if outcome.ours or code in (0, STOPPED, _SETTING):
        return Decision(None, code, outcome.text)
    if outcome.by_itself and not (outcome.stepped or outcome.first_collective):
        return Decision(None, code, f"{outcome.text}; not started again: it failed before its first step")
    if allowed <= 1:
        return Decision(None, code, outcome.text)
    if failures >= allowed:
        return Decision(None, _STUCK, outcome.text)
    return Decision(float(min(_LONGEST_DELAY, 2 ** (failures - 1) if failures else 1)))


def refusal(failures: int, allowed: int, last_code: int | None) -> str | None:
    """Why no attempt is made at all; None: one may be."""
    if failures < max(1, allowed) or allowed <= 1:
        return None
    ended = "was lost" if last_code is None else f"ended with {last_code}"
    return f"no new complete checkpoint in {failures} attempts in a row (TRAIN_RESTARTS={allowed}); the last {ended}"
