"""How an attempt ended over all nodes: one outcome, and the first failure by time. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from entrypoint.errors import OWN_BUG, STOPPED
from entrypoint.failure import Ended, describe, first_to_fail, sentence
from entrypoint.messages import MessageError
from entrypoint.restarts import Outcome

KILLED = 137
_LINES = 100
_LINE = 400


@dataclass(frozen=True, slots=True)
class Report:
    """What one node tells of an attempt. `for_others`: it was ended because of another node, and blames nobody."""

    outcome: Outcome
    failed: tuple[Ended, ...] = ()
    for_others: bool = False

    def to_message(self) -> dict[str, Any]:
        failed = [replace(one, lines=tuple(line[:_LINE] for line in one.lines[-_LINES:])) for one in self.failed[:1]]
        return {
            "outcome": asdict(self.outcome),
            "failed": [asdict(one) for one in failed],
            "for_others": self.for_others,
        }

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "Report":
        """MessageError where a field is missing or another's."""
        try:
            outcome = Outcome(**message["outcome"])
            failed = tuple(Ended(**{**one, "lines": tuple(map(str, one["lines"]))}) for one in message["failed"])
            int(outcome.exit_code), [float(one.failed_at) for one in failed]
            return cls(outcome, failed, bool(message["for_others"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MessageError(f"a report: {error}") from None


@dataclass(frozen=True, slots=True)
class Tally:
    outcome: Outcome
    failure: dict[str, Any] | None  # the content of failure.json


def tally(
    attempt: int,
    reports: Mapping[int, Report],
    lost: Mapping[int, str],
    offsets: Mapping[int, float],
    *,
    stopping: bool = False,
) -> Tally:
    """One end of an attempt from what each node told.

    `lost`: nodes that went, with a sentence each. `offsets`: seconds that a node's clock is ahead of node 0's. A node
    that went makes the others fail, so it comes first; then the process that failed first, whichever node it was on.
    """
    stepped = any(report.outcome.stepped for report in reports.values())
    if lost:
        rank = min(lost)
        return Tally(
            Outcome(KILLED, lost[rank], stepped, by_itself=False, ours=stopping), _no_process(attempt, rank, lost[rank])
        )
    asked = stopping or any(report.outcome.ours for report in reports.values())
    blamed = {rank: report for rank, report in reports.items() if not report.for_others}
    first = first_to_fail(_in_time(reports, offsets), fine=(0, STOPPED))
    if first is not None:
        hung = any(report.outcome.first_collective for report in reports.values())
        outcome = Outcome(first.exit_code, sentence(first), stepped, first.exit_code != KILLED, asked, hung)
        return Tally(outcome, describe(first, attempt))
    for rank, report in sorted(blamed.items()):
        if report.outcome.exit_code not in (0, STOPPED):
            outcome = replace(report.outcome, stepped=stepped, ours=asked)
            return Tally(outcome, _no_process(attempt, rank, outcome.text or "", outcome.exit_code))
    codes = {report.outcome.exit_code for report in blamed.values()}
    if codes == {0}:
        return Tally(Outcome(0, stepped=stepped), None)
    if STOPPED in codes:
        return Tally(Outcome(STOPPED, stepped=stepped, ours=True), None)
    return Tally(Outcome(OWN_BUG, "no node tells why the attempt ended", stepped, by_itself=False), None)


def _in_time(reports: Mapping[int, Report], offsets: Mapping[int, float]) -> list[Ended]:
    """All failures, their times by node 0's clock."""
    return [
        replace(ended, failed_at=ended.failed_at - offsets.get(rank, 0.0))
        for rank, report in reports.items()
        for ended in report.failed
    ]


def _no_process(attempt: int, node: int, text: str, code: int = KILLED) -> dict[str, Any]:
    return {
        "node": node,
        "rank": None,
        "attempt": attempt,
        "exit_code": code,
        "signal": None,
        "text": text,
        "lines": [],
    }
