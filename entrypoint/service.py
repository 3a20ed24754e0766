"""A program beside training (sshd, JupyterLab, TensorBoard), as supervisor is told of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Service:
    """`reach`, in words, is said at start: where it listens and what lets a person in."""

    name: str  # of its state, its log and its prefix
    command: tuple[str, ...]  # everybody sees it in `ps`: no secret
    reach: str
    folder: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # beside the container's own
