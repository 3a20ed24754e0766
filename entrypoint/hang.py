"""Traces and stacks of all ranks → one short text: who was behind, and in which collective the others waited. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SHOWN_RANKS = 8
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
# Where a main thread is that waits for other ranks; gradient hooks wait below autograd's C++.
_WAITS = ("torch/distributed/", "torch/autograd/graph.py", "deepspeed/comm/", "torch/nn/parallel/")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")


@dataclass(frozen=True, slots=True)
class Collective:
    """The newest entry of one process group in one rank's trace."""

    sequence: int  # torch's collective_seq_id, counted from 1 in each group
    operation: str  # "nccl:all_reduce", "gloo:broadcast"
    sizes: str
    state: str  # "scheduled", "started", "completed"; gloo's stay "scheduled"
    at_ns: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank's flight recorder held. `completed`: some collective of NCCL had come to its end."""

    rank: int
    newest: Mapping[str, Collective]  # by process group, as torch names it
    completed: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a main thread was: the innermost line outside of libraries, and whether it waited for other ranks."""

    file: str
    line: int
    function: str
    waits: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def parse_trace(rank: int, document: Mapping[str, Any]) -> Trace:
    """A dump of torch's flight recorder, unpickled or from JSON; entries that are no collective are passed over."""
    newest: dict[str, Collective] = {}
    completed = False
    entries = document.get("entries") or ()
    for entry in entries if isinstance(entries, Sequence) else ():
        if entry.get("is_p2p") or not isinstance(entry.get("collective_seq_id"), int):
            continue
        one = _collective(entry)
        completed |= one.state == "completed"
        group = ":".join(str(part) for part in entry.get("process_group") or ("?",))
        if group not in newest or newest[group].sequence <= one.sequence:
            newest[group] = one
    return Trace(rank, newest, completed)


def _collective(entry: Mapping[str, Any]) -> Collective:
    return Collective(
        sequence=entry["collective_seq_id"],
        operation=str(entry.get("profiling_name", "?")),
        sizes="".join(str(list(size)) for size in entry.get("input_sizes") or () if isinstance(size, Sequence)),
        state=str(entry.get("state", "?")),
        at_ns=int(entry.get("time_created_ns") or 0),
    )


def parse_stacks(text: str) -> Place | None:
    """The main thread in what faulthandler wrote, which comes last; None: no such text."""
    _, found, block = text.rpartition("(most recent call first):")
    frames = [match for line in block.splitlines() if (match := _FRAME.match(line))] if found else []
    if not frames:
        return None
    own = next((frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)), frames[0])
    waits = any(part in frame["file"] for frame in frames[: frames.index(own)] for part in _WAITS)
    return Place(own["file"], int(own["line"]), own["name"], waits)


def explain(traces: Sequence[Trace], places: Mapping[int, Place], ranks: Sequence[int]) -> str | None:
    """One or two sentences; None where nothing is known. `ranks` are all that ran."""
    told = _by_traces(traces, ranks) if traces and len(ranks) > 1 else None
    if told is None:
        return _by_places(places, ranks)
    culprits, text = told
    where = [f"rank {rank} was at {places[rank]}" for rank in culprits[:_SHOWN_RANKS] if rank in places]
    return ". ".join([text, *where])


def _by_traces(traces: Sequence[Trace], ranks: Sequence[int]) -> tuple[Sequence[int], str] | None:
    """The group in which the newest entry was made decides: older ones may differ where they were left in peace."""
    groups = sorted({group for trace in traces for group in trace.newest}, key=lambda group: -_newest(traces, group))
    for group in groups:
        at = {trace.rank: trace.newest[group] for trace in traces if group in trace.newest}
        last = max(one.sequence for one in at.values())
        behind = sorted(rank for rank, one in at.items() if one.sequence < last)
        ahead = {rank: one for rank, one in at.items() if one.sequence == last}
        waiting = next(iter(ahead.values()))
        if behind:
            return behind, _behind(group, behind, at, sorted(ahead), waiting)
        if len({(one.operation, one.sizes) for one in ahead.values()}) > 1:
            return _odd_ones(ahead), _different(group, last, ahead)
        if silent := sorted(set(ranks) - {trace.rank for trace in traces}):
            text = f"{_listed(silent)} left no trace; {_listed(sorted(ahead))} waited in {_told(waiting, group)}"
            return silent, text
    if not groups:
        return None
    one = next(trace.newest[groups[0]] for trace in traces if groups[0] in trace.newest)
    if all(trace.newest[groups[0]].state == "completed" for trace in traces if groups[0] in trace.newest):
        return (), f"all ranks had completed {_told(one, groups[0])}: they were busy outside of collectives"
    return (), f"all ranks were in {_told(one, groups[0])}: the network or a GPU between them is the suspect"


def _newest(traces: Sequence[Trace], group: str) -> int:
    return max(trace.newest[group].at_ns for trace in traces if group in trace.newest)


def _behind(
    group: str, behind: Sequence[int], at: Mapping[int, Collective], ahead: Sequence[int], waiting: Collective
) -> str:
    last = at[behind[0]]
    verb = "is" if len(behind) == 1 else "are"
    return (
        f"{_listed(behind)} {verb} behind: last in number {last.sequence} ({last.operation}), "
        f"while {_listed(ahead)} waited in {_told(waiting, group)}"
    )


def _odd_ones(ahead: Mapping[int, Collective]) -> list[int]:
    (most, _), *_ = Counter((one.operation, one.sizes) for one in ahead.values()).most_common(1)
    return sorted(rank for rank, one in ahead.items() if (one.operation, one.sizes) != most)


def _different(group: str, last: int, ahead: Mapping[int, Collective]) -> str:
    kinds: dict[str, list[int]] = {}
    for rank, one in sorted(ahead.items()):
        kinds.setdefault(f"{one.operation} {one.sizes}", []).append(rank)
    parts = ", ".join(f"{_listed(ranks)} called {kind}" for kind, ranks in kinds.items())
    return f"the ranks do not agree on number {last} of group {group}: {parts}"


def _told(one: Collective, group: str) -> str:
    return f"number {one.sequence} of group {group} ({one.operation} {one.sizes})"


def _by_places(places: Mapping[int, Place], ranks: Sequence[int]) -> str | None:
    """Without traces, as of a script of the user's own on gloo: who was not waiting for others."""
    outside = sorted(rank for rank, place in places.items() if not place.waits)
    waiting = sorted(rank for rank, place in places.items() if place.waits)
    silent = sorted(set(ranks) - places.keys())
    if waiting and silent and not outside:
        return f"{_listed(silent)} left no stack (stopped?); {_listed(waiting)} waited at {places[waiting[0]]}"
    if not outside or not waiting:
        return None
    first = f"rank {outside[0]} was at {places[outside[0]]}"
    more = f" (and {_listed(outside[1:])} too)" if len(outside) > 1 else ""
    return f"{first}{more}, in no collective; {_listed(waiting)} waited for it at {places[waiting[0]]}"


def at_first_collective(traces: Sequence[Trace]) -> bool:
    """Whether GPUs have never completed a collective: then the way between them is the suspect, not the program."""
    on_gpus = [trace for trace in traces if any("nccl" in one.operation for one in trace.newest.values())]
    return bool(on_gpus) and not any(trace.completed for trace in on_gpus)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN_RANKS])
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
