"""`health`, what HEALTHCHECK asks every half minute: cheap, and judged by steps as the launcher judges a hang.

It imports little, because an image's check should not take seconds of a core every half minute for days.
"""

import contextlib
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.run_folder import RunFolder, read_json
from entrypoint.runtime import State, runtime_of

HANG_SECONDS = 120.0  # liveness.py's, where the launcher has not told its own bound


@dataclass(frozen=True, slots=True)
class Health:
    """`text` is one line for `docker inspect`."""

    healthy: bool
    text: str


def main(words: Sequence[str], variables: Mapping[str, str]) -> int:
    """`health [--seconds S]`: 0 or 1, as HEALTHCHECK understands it, and a line of why."""
    parser = ArgumentParser(prog="roundhouse health")
    parser.add_argument("--seconds", type=float, help="from one step to the next, instead of the launcher's own bound")
    found = look(variables, parser.parse_args(words).seconds)
    print(found.text)
    return 0 if found.healthy else 1


def look(variables: Mapping[str, str], seconds: float | None = None) -> Health:
    """This container's health; `seconds`: from one step to the next, in place of the launcher's own bound."""
    state = runtime_of(variables).read()
    if state is None:
        return Health(True, "nothing is trained here")
    if state.trouble or state.exit_code is not None:
        return _ended(state)
    assert state.run is not None  # a start that never got so far has an exit code
    return _training(RunFolder(Path(state.run), state.node), seconds)


def _ended(state: State) -> Health:
    name = Path(state.run).name if state.run else "the start"
    if state.trouble:
        return Health(False, state.trouble)
    if state.exit_code in (0, 143):
        return Health(True, f"{name} has ended with {state.exit_code}")
    return Health(False, f"{name} has failed with exit code {state.exit_code}")


def _training(folder: RunFolder, seconds: float | None) -> Health:
    name = folder.path.name
    history: list[dict[str, Any]] = read_json(folder.path / "attempts.json") or []
    if not history or history[-1].get("exit_code") is not None:
        return Health(True, f"{name}: between attempts, or before the first")
    since = _age(folder.step)
    if since is None:
        return Health(True, f"{name}: attempt {history[-1].get('attempt')}, no step yet")
    told: dict[str, Any] = read_json(folder.of_node("liveness.json")) or {}
    bound = told.get("bound_seconds", HANG_SECONDS) if seconds is None else seconds
    text = f"{name}: step {folder.current_step()}, {since:.0f} s ago (bound {bound:.0f} s)"
    if since <= bound or _saves(folder, bound):
        return Health(True, text)
    return Health(False, f"{text}: no step is made any more")


def _saves(folder: RunFolder, bound: float) -> bool:
    """A checkpoint is being written: no step is made meanwhile."""
    ages = (_age(path) for path in folder.checkpoints.rglob("*"))
    return any(age is not None and age <= bound for age in ages)


def _age(path: Path) -> float | None:
    with contextlib.suppress(OSError):
        return max(0.0, time.time() - path.stat().st_mtime)
    return None
