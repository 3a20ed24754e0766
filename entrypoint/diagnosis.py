"""A hang at the very first collective on GPUs: two trials that tell whether P2P or shared memory is broken. Pure.

A trial is an attempt with one of NCCL's ways switched off, ended as soon as it makes a step. It finds a fault, it is no
cure: the setting never stays, and a suspect once named is not tried for again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from entrypoint.reasons import Setting

Switch = Literal["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]
_ORDER: tuple[Switch, ...] = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
_SUSPECTS = {
    "NCCL_P2P_DISABLE": (
        "direct access between GPUs (P2P): with NCCL_P2P_DISABLE=1 the first collective came through",
        "on the host: switch off ACS on PCIe bridges or the IOMMU, check nvidia-smi topo -p2p r and NVLink; or use "
        "another machine. NCCL_P2P_DISABLE=1 trains, several times slower",
    ),
    "NCCL_SHM_DISABLE": (
        "shared memory between processes: with NCCL_SHM_DISABLE=1 the first collective came through",
        "give the container a larger /dev/shm (--shm-size, or a memory-backed emptyDir)",
    ),
}
_NEITHER = (
    "neither P2P nor shared memory: the first collective hangs without them too",
    "look at the network between the nodes, and whether all ranks call the same collective (the attempt's traces)",
)


@dataclass(frozen=True, slots=True)
class Attempted:
    """What is remembered of an attempt. `first_collective`: it hung there, on GPUs."""

    first_collective: bool
    stepped: bool
    switch: Switch | None = None  # set: it was a trial


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """For the next attempt: `switch` makes it a trial. `suspect` and `fix`: what the trials so far have shown."""

    switch: Switch | None = None
    suspect: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt that is one. It ends with its first step; a script that tells none, when it has lived so long."""

    switch: str
    seconds: float

    @classmethod
    def of(cls, told: object) -> "Trial | None":
        """From a message; only the two switches are taken from anybody."""
        if not isinstance(told, Mapping) or told.get("switch") not in _ORDER:
            return None
        return cls(str(told["switch"]), float(told["seconds"]))

    @property
    def text(self) -> str:
        return f"this attempt is a trial with {self.switch}=1: the last one hung at its first collective"

    @property
    def settings(self) -> tuple[Setting, ...]:
        return (Setting(self.switch, "1", "a trial: the last attempt hung at its first collective"),)


def diagnostic_settings(history: Sequence[Attempted]) -> Diagnosis:
    """What the attempts of a start, oldest first, ask of the next one.

    No trial yet and the last attempt hung at its first collective: P2P off. That hung too: P2P on again, shared memory
    off. Then the verdict, once.
    """
    trials = [attempt for attempt in history if attempt.switch]
    if not trials:
        return Diagnosis(_ORDER[0]) if history and history[-1].first_collective else Diagnosis()
    last = trials[-1]
    if history[-1] is not last:  # an ordinary attempt came after the trials
        return Diagnosis(None, *_verdict(trials))
    if last.stepped or last.switch == _ORDER[-1] or not last.first_collective:
        return Diagnosis(None, *_verdict(trials))
    return Diagnosis(_ORDER[1])


def _verdict(trials: Sequence[Attempted]) -> tuple[str | None, str | None]:
    """A trial that ended by something else than a hang says nothing."""
    for trial in trials:
        if trial.stepped and trial.switch:
            return _SUSPECTS[trial.switch]
    return _NEITHER if all(trial.first_collective for trial in trials) else (None, None)
