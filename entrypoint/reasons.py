"""Values that carry their reason: a setting, a finding. Every part of a plan is told in them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that we set for the training processes, with its reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw, and what to do about it (empty where nothing is to be done)."""

    level: Literal["ok", "warn", "stop"]
    text: str
    fix: str = ""


Level = Literal["ok", "warn", "stop", "n/a"]  # n/a: the question does not arise here


@dataclass(frozen=True, slots=True)
class Check:
    """One question asked of this machine and its answer, as `doctor` tells it; `name` is promised to programs."""

    name: str  # subject and question: "gpu.fabric"
    level: Level
    text: str  # one line, with what was measured
    fix: str = ""
    value: Any = None  # what was measured, for programs; JSON must be able to hold it

    @property
    def subject(self) -> str:
        """The word before the dot."""
        return self.name.partition(".")[0]


def findings_of(checks: Iterable[Check]) -> tuple[Finding, ...]:
    """What a plan tells of checks: those that warn or stop, and how the processes are to find each other."""
    return tuple(
        Finding(check.level, check.text, check.fix)
        for check in checks
        if check.level in ("warn", "stop") or (check.subject == "cluster" and check.level != "n/a")
    )
