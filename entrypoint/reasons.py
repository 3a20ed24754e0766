"""Values that carry their reason: a setting, a finding. Every part of a plan is told in them."""

from dataclasses import dataclass
from typing import Literal


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
