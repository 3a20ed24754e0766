"""What the files of a run's folder say of it, while it runs and after its end, from any machine that has the volume."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from entrypoint.errors import STOPPED, SettingError
from entrypoint.run_folder import RunFolder, last_lines, read_json
from entrypoint.run_lock import living_holder
from entrypoint.tally import KILLED


def find_run(volume: Path, name: str | None) -> RunFolder:
    """The run of that name; without one, the run that was started last."""
    runs = volume / "runs"
    if name is not None:
        if (runs / name / "plan.json").is_file():
            return RunFolder(runs / name)
        there = ", ".join(sorted(path.parent.name for path in runs.glob("*/plan.json"))) or "none"
        raise SettingError(f"no run {name!r} in {runs}", fix=f"one of: {there}; TRAIN_VOLUME names the volume")
    found = all_runs(volume)
    if not found:
        raise SettingError(f"no run in {runs}", fix="start one with `train`, or name the volume with TRAIN_VOLUME")
    return found[0]


def all_runs(volume: Path) -> list[RunFolder]:
    """Those that have been started, the one that was started last before the others."""
    plans = sorted((volume / "runs").glob("*/plan.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [RunFolder(path.parent) for path in plans]


def read_status(folder: RunFolder) -> dict[str, Any]:
    """State (running, finished, failed, stopped, lost) and numbers; None where nothing tells them."""
    holder = living_holder(folder.lock)
    ended = read_json(folder.of_node("exit.json"))
    history = read_json(folder.path / "attempts.json") or []
    record = _newest_record(folder)
    return {
        "run": folder.path.name,
        "folder": str(folder.path),
        "state": _state(alive=holder is not None, ended=ended),
        "pid": holder.pid if holder else None,
        "host": holder.host if holder else None,
        "attempt": history[-1]["attempt"] if history else None,
        "step": folder.current_step(),
        "steps": record.get("steps"),
        "loss": record.get("loss"),
        "step_age_seconds": _age(folder.step),
        "checkpoint": folder.newest_checkpoint(),
        "exit_code": ended["exit_code"] if ended and not holder else None,
        "text": ended["text"] if ended and not holder else None,
        "services": read_json(folder.of_node("services.json")) or [],
    }


def exit_code(status: dict[str, Any]) -> int:
    """0 while it runs, and how it ended; of a run whose launcher was killed what the kernel would say."""
    return KILLED if status.get("state") == "lost" else status.get("exit_code") or 0


def to_text(status: dict[str, Any]) -> str:
    """
    >>> sshd = {"name": "sshd", "state": "gave up", "reach": "port 22", "text": "Address already in use"}
    >>> run = {"run": "ddp", "state": "running", "step": 7, "steps": 9, "loss": None, "pid": 5, "host": "a"}
    >>> print(to_text({**run, "services": [sshd]}))
    ddp: running, step 7/9, pid 5 of a
    sshd: gave up: Address already in use
    """
    lines = [_run(status) if status.get("run") else _no_run(status.get("exit_code"))]
    lines += [_service(one) for one in status.get("services", ()) if one["state"] != "stopped"]
    return "\n".join(lines)


def _service(one: dict[str, Any]) -> str:
    """
    >>> _service({"name": "sshd", "state": "running", "reach": "port 22", "text": None})
    'sshd: running, port 22'
    """
    more = f": {one['text']}" if one["text"] else f", {one['reach']}"
    return f"{one['name']}: {one['state']}{more}"


def without_run(refused: int | None) -> dict[str, Any]:
    """Of a container that trains nothing; `refused`: the exit code of a start that came to nothing."""
    return {"run": None, "state": "failed" if refused else None, "exit_code": refused}


def _no_run(refused: int | None) -> str:
    return (
        f"no run: the start has failed with exit code {refused}; the container's log says why"
        if refused
        else "no run yet"
    )


def _run(status: dict[str, Any]) -> str:
    parts = [status["state"]]
    if status.get("step") is not None:
        parts.append(f"step {status['step']}" + (f"/{status['steps']}" if status.get("steps") else ""))
    if status.get("loss") is not None:
        parts.append(f"loss {status['loss']:.4f}")
    if status.get("step_age_seconds") is not None:
        parts.append(f"last step {status['step_age_seconds']:.0f} s ago")
    if status.get("attempt"):
        parts.append(f"attempt {status['attempt']}")
    if status.get("checkpoint") is not None:
        parts.append(f"newest checkpoint step {status['checkpoint']}")
    if status.get("exit_code") is not None:
        parts.append(f"exit code {status['exit_code']}")
    if status.get("pid") is not None:
        parts.append(f"pid {status['pid']} of {status['host']}")
    line = f"{status['run']}: {', '.join(parts)}"
    return f"{line}\n{status['text']}" if status.get("text") else line


def newest_logs(folder: RunFolder, count: int) -> Iterator[tuple[str, str]]:
    """Name and line: the last `count` of the agent, of TRAIN_SETUP and of each process in the newest attempt."""
    attempts = folder.attempts()
    paths = [*sorted(folder.logs.glob("agent*.log")), *sorted(folder.logs.glob("setup*.log"))]
    if attempts:
        paths += sorted(folder.attempt(attempts[-1]).glob("n*r*.log"))
    for path in paths:
        for line in last_lines(path, count, of_bytes=1 << 20):
            yield path.stem, line


def _state(*, alive: bool, ended: dict[str, Any] | None) -> str:
    if alive:
        return "running"
    if ended is None:
        return "lost"
    return {0: "finished", STOPPED: "stopped"}.get(ended["exit_code"], "failed")


def _newest_record(folder: RunFolder) -> dict[str, Any]:
    for line in reversed(last_lines(folder.path / "metrics.jsonl", 2)):
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:  # being written
            continue
        return record
    return {}


def _age(path: Path) -> float | None:
    try:
        return round(max(0.0, time.time() - path.stat().st_mtime), 1)
    except OSError:
        return None
