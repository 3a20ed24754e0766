"""Every answer about this node, in one list, for people and for programs. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from textwrap import wrap

from entrypoint.check_examined import Examined, check_examined
from entrypoint.checks import ORDER
from entrypoint.errors import MachineError, Problem
from entrypoint.facts import Facts
from entrypoint.plan import Plan
from entrypoint.reasons import Check

# In this order subjects are told; "plan" is what made a plan impossible.
SUBJECTS = (
    *("plan", "cluster", "gpu", "rdma", "network", "volume", "memory", "cpu", "limits"),
    *("software", "cache", "clock", "tools"),
)
_WIDTH = 110


def diagnose(
    facts: Facts,
    examined: Examined,
    *,
    plan: Plan | None,
    found: Sequence[Check],
    problem: Problem | None,
    checkpoint_bytes: int | None = None,
    keep: int = 2,
) -> tuple[Check, ...]:
    """All answers, by subject. `found` are those from facts; `problem` says why there is no plan, if there is none."""
    checks = [
        *([Check("plan.problem", "stop", problem.problem, problem.fix)] if problem else []),
        *(_of_plan(plan, found) if plan else []),
        *found,
        *check_examined(examined, facts, checkpoint_bytes=checkpoint_bytes, keep=keep),
        _container(facts),
        _tmux(examined),
    ]
    return tuple(sorted(_once(checks), key=lambda each: (SUBJECTS.index(each.subject), ORDER.index(each.level))))


def _of_plan(plan: Plan, found: Sequence[Check]) -> Iterator[Check]:
    """The interface, and what the plan's other parts found wrong."""
    network = plan.network
    names = ", ".join(network.interfaces) or "as given"
    rejected = dict(network.rejected)
    others = _left_out(rejected) if plan.cluster.nodes > 1 else ""
    yield Check("network.interface", "ok", f"{names}: {network.reason}{others}", value={"rejected": rejected})
    told = {each.text for each in found}
    for finding in plan.findings:
        if finding.text not in told and finding.level != "ok":
            yield Check("plan.finding", finding.level, finding.text, finding.fix)


def _left_out(rejected: Mapping[str, str]) -> str:
    """Why each other interface is not used, but loopback, the interfaces of one reason together.

    >>> _left_out({"lo": "leads to no other node", "ens2": "down", "wg0": "a tunnel", "ens3": "down"})
    '; not ens2, ens3: down; not wg0: a tunnel'
    """
    names: dict[str, list[str]] = {}
    for name, why in rejected.items():
        if name != "lo":
            names.setdefault(why, []).append(name)
    return "".join(f"; not {', '.join(alike)}: {why}" for why, alike in names.items())


def _once(checks: Iterable[Check]) -> Iterator[Check]:
    """Facts and the trial may both answer a question: a problem counts before "ok", the trial's "ok" before facts'."""
    kept: dict[str, list[Check]] = {}
    for check in checks:
        kept.setdefault(check.name, []).append(check)
    for same in kept.values():
        bad = [check for check in same if check.level in ("stop", "warn")]
        yield from (bad[-1:] if same[0].subject == "volume" else bad) or same[-1:]


def _container(facts: Facts) -> Check:
    return Check(
        "tools.container",
        "ok",
        f"in {facts.container}" if facts.container else "in no container",
        value=facts.container,
    )


def _tmux(examined: Examined) -> Check:
    if examined.tmux:
        return Check("tools.tmux", "ok", "tmux is here", value=examined.tmux)
    return Check("tools.tmux", "ok", "no tmux: a run on a terminal goes on in the background all the same")


def exit_code(checks: Iterable[Check]) -> int:
    """69 if anything stops, else 0."""
    return MachineError.exit_code if any(check.level == "stop" for check in checks) else 0


def to_json(checks: Sequence[Check], facts: Facts) -> str:
    """For programs; the keys, and the names of checks, are promised."""
    document = {
        "host": facts.hostname,
        "exit_code": exit_code(checks),
        "counts": {level: sum(check.level == level for check in checks) for level in ORDER},
        "checks": [{"subject": check.subject, **asdict(check)} for check in checks],
    }
    return json.dumps(document, indent=1, default=str)


def to_text(checks: Sequence[Check], *, every: bool = False) -> str:
    """For people: problems first with their fixes, then a line for each subject that is well; `every`: a line each."""
    bad = [check for level in ("stop", "warn") for check in checks if check.level == level]
    lines = [line for check in bad for line in _problem(check)]
    longest = max((len(check.name) for check in checks), default=0)
    for subject, group in groupby(checks, key=lambda check: check.subject):
        well = [check for check in group if check not in bad]
        if every:
            lines += [f"{check.level:<5} {check.name:<{longest}} {check.text}" for check in well]
        elif well:
            lines += _together(subject, well)
    counts = {level: sum(check.level == level for check in checks) for level in ORDER}
    told = f"{counts['stop']} stop, {counts['warn']} warn, {counts['ok']} ok, {counts['n/a']} do not apply"
    return "\n".join([*lines, f"{told}; this node only{'' if every else ' (doctor --all: one line each)'}"])


def _problem(check: Check) -> Iterator[str]:
    text = wrap(check.text, _WIDTH - 15, break_long_words=False, break_on_hyphens=False)
    fix = wrap(f"fix: {check.fix}", _WIDTH - 15, break_long_words=False, break_on_hyphens=False) if check.fix else []
    for number, line in enumerate([*text, *fix]):
        yield f"{check.level if not number else '':<5} {check.subject if not number else '':<8} {line}".rstrip()


def _together(subject: str, checks: Sequence[Check]) -> list[str]:
    level = "ok" if any(check.level == "ok" for check in checks) else "n/a"
    said = "; ".join(check.text for check in checks if check.level == level)
    lines = wrap(said, _WIDTH - 15, break_long_words=False, break_on_hyphens=False)
    return [f"{level if not n else '':<5} {subject if not n else '':<8} {line}" for n, line in enumerate(lines)]
