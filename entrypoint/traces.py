"""The flight recorder's traces and the stacks in an attempt's folder. A trace may be a pickle, and is not trusted."""

import io
import json
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from entrypoint.hang import Place, Trace, at_first_collective, explain, parse_stacks, parse_trace
from entrypoint.run_folder import read_json

_MOST_BYTES = 64 << 20
_PATIENCE_SECONDS = 3.0
_TRACE = re.compile(r"n\d+\.trace-(\d+)(\.gloo\.json)?")


class _Plain(pickle.Unpickler):
    """Numbers, texts, lists and dicts, which is all that torch writes; anything that would be called is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("persistent id")


def read_trace(path: Path) -> Any:
    """The document in a dump of the flight recorder, JSON or pickle; None where it is neither, cut off or too large."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        data = path.read_bytes()
        return json.loads(data) if data[:1] == b"{" else _Plain(io.BytesIO(data)).load()
    except Exception:  # a pickle that is cut off or made up may raise anything
        return None


def read_traces(folder: Path) -> tuple[Trace, ...]:
    """One trace a rank; what NCCL and gloo have each written is put together."""
    found: dict[int, Trace] = {}
    for rank, path in sorted(_trace_files(folder)):
        document = read_trace(path)
        if not isinstance(document, dict):
            continue
        try:
            trace = parse_trace(rank, document)
        except (AttributeError, KeyError, TypeError, ValueError):  # of another version, or made up
            continue
        before = found.get(rank, Trace(rank, {}, completed=False))
        found[rank] = Trace(rank, {**before.newest, **trace.newest}, completed=before.completed or trace.completed)
    return tuple(found.values())


def _trace_files(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("n*.trace-*"):
        if match := _TRACE.fullmatch(path.name):
            yield int(match[1]), path


def read_places(folder: Path) -> dict[int, Place]:
    """Where the main thread of each rank was when it was ended for a hang."""
    places = {}
    for path in folder.glob("n*r*.stacks"):
        started = read_json(path.with_name(f"{path.stem}.started.json"))
        if started and (place := parse_stacks(path.read_text(errors="replace"))):
            places[int(started["rank"])] = place
    return places


def explain_folder(folder: Path) -> str | None:
    """Why an attempt hung, in one line, as far as the ranks of all nodes have told; None: they have not.

    Other nodes end at about the same time: up to 3 s are waited for them.
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    while _still_run(folder) and time.monotonic() < until:
        time.sleep(0.2)
    started = (read_json(path) for path in folder.glob("n*r*.started.json"))
    ranks = sorted(int(one["rank"]) for one in started if one)
    return explain(read_traces(folder), read_places(folder), ranks)


def _still_run(folder: Path) -> bool:
    return len(list(folder.glob("n*r*.started.json"))) > len(list(folder.glob("n*r*.ended.json")))


def hung_at_first_collective(folder: Path) -> bool:
    """Whether an attempt on GPUs never got through a collective, by its traces."""
    return at_first_collective(read_traces(folder))
