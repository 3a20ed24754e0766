"""A Plan as people and programs read it."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

from entrypoint.ending import sentences
from entrypoint.facts import Facts
from entrypoint.masks import mask, mask_text, mask_words, secrets_of
from entrypoint.plan import Plan
from entrypoint.values import endpoint

_WIDTH = 13
_COLUMN = 48


def to_json(plan: Plan, variables: Mapping[str, str]) -> str:
    """The plan for programs; its top-level keys are promised to users. No secret of `variables` is in it."""
    cluster = plan.cluster
    network = asdict(plan.network)
    del network["settings"], network["findings"]  # they are told in the lists below
    document: dict[str, Any] = {
        "cluster": asdict(cluster),
        "network": network,
        "settings": [asdict(setting) for setting in plan.settings],
        "recipe": None if plan.recipe is None else asdict(plan.recipe),
        "command": list(plan.command),
        "roll_call": None if plan.roll_call is None else asdict(plan.roll_call),
        "directories": asdict(plan.directories),
        "session": plan.session,
        "setup": plan.setup,
        "ending": {name: value for name, value in asdict(plan.ending).items() if name != "findings"},
        "findings": [asdict(finding) for finding in plan.findings],
    }
    return json.dumps(mask(document, secrets_of(variables)), indent=2, default=str)


def to_text(plan: Plan, facts: Facts, variables: Mapping[str, str]) -> str:
    """The plan for people: what was understood, what was seen, what will be set and run, and why; no secret."""
    secrets = secrets_of(variables)
    blocks = {
        "environment": _environment(plan),
        "facts": _facts(facts),
        "network": _network(plan),
        "roll call": _roll_call(plan),
        "settings": _columns([(f"{s.name}={s.value}", s.reason) for s in plan.settings]),
        "findings": _findings(plan),
        "directories": _directories(plan),
        "session": [plan.session],
        "at the end": _columns(sentences(plan.ending)) if plan.recipe else [],
        "setup": [f"{plan.setup} (once, before the first attempt)"] if plan.setup else [],
        "command": [shlex.join(mask_words(plan.command, secrets))] if plan.command else ["none: no recipe was named"],
    }
    lines = [
        f"{title if number == 0 else '':<{_WIDTH}}{line}"
        for title, block in blocks.items()
        for number, line in enumerate(block)
    ]
    return mask_text("\n".join(lines), secrets)


def _environment(plan: Plan) -> list[str]:
    cluster = plan.cluster
    rank = "by arrival" if cluster.node_rank is None else str(cluster.node_rank)
    place = f"node {rank} of {cluster.nodes}" if cluster.nodes > 1 else "one node"
    line = f"{place}, {cluster.processes_per_node} processes a node{_source(plan, 'processes_per_node')}"
    if cluster.nodes > 1:
        address = cluster.primary_address or f"{plan.network.address} (this node)"
        line += f", primary {endpoint(address, cluster.primary_port)}{_source(plan, 'primary_address')}"
    if cluster.provider != "none":
        line += f", {cluster.provider}"
    recipe = plan.recipe
    return [line, f"recipe {recipe.name}: {recipe.title}"] if recipe else [line]


def _source(plan: Plan, field: str) -> str:
    source = plan.cluster.sources.get(field)
    return f" ({source})" if source else ""


def _facts(facts: Facts) -> list[str]:
    cores = f"{facts.cpus} cores" + (f" (quota {facts.cpu_quota:g})" if facts.cpu_quota is not None else "")
    parts = [_gpus(facts), cores, f"memory {_gib(facts.memory_bytes)}", f"/dev/shm {_gib(facts.shm_bytes)}"]
    if facts.container:
        parts.append(f"in {facts.container}")
    links = [
        f"{i.name} {i.addresses[0]}" + (f" {i.mbit_per_second / 1000:g} Gbit/s" if i.mbit_per_second else "")
        for i in facts.interfaces
        if i.addresses and i.kind != "loopback"
    ]
    return ["; ".join(parts), *(["; ".join(links)] if links else [])]


def _gpus(facts: Facts) -> str:
    if facts.gpus is None:
        return "GPUs unknown"
    if not facts.gpus:
        return "no GPU"
    models = [(name, len(list(group))) for name, group in groupby(gpu.name for gpu in facts.gpus)]
    memory = facts.gpus[0].memory_bytes
    listed = ", ".join(f"{count} x {name}" for name, count in models)
    return f"{listed} {_gib(memory)}, driver {facts.driver_version or 'unknown'}"


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.3g} GiB"


def _network(plan: Plan) -> list[str]:
    network = plan.network
    names = ",".join(network.interfaces) or "as given"
    rows = [(f"{network.backend}", network.backend_reason), (names, network.reason)]
    if network.rdma.devices:
        rows.append((",".join(network.rdma.hcas) or "no RDMA", network.rdma.reason))
    rejected = [(f"not {name}", why) for name, why in network.rejected]
    return _columns(rows + rejected)


def _roll_call(plan: Plan) -> list[str]:
    if plan.roll_call is None:
        return ["none"]
    address = plan.cluster.primary_address or plan.network.address or "node 0"
    met = endpoint(address, plan.roll_call.port)
    return [f"at {met} before each attempt, for {plan.roll_call.wait_seconds} s; proof: {plan.roll_call.secret}"]


def _findings(plan: Plan) -> list[str]:
    if not plan.findings:
        return ["ok    nothing to complain of"]
    return [line for finding in plan.findings for line in _finding(finding.level, finding.text, finding.fix)]


def _finding(level: str, text: str, fix: str) -> Iterator[str]:
    yield f"{level:<5} {text}"
    if fix:
        yield f"      fix: {fix}"


def _directories(plan: Plan) -> list[str]:
    directories = plan.directories
    if directories.run is None:
        return [f"{directories.volume} ({directories.reason})"]
    return [f"{directories.run} (volume {directories.volume}: {directories.reason})"]


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    # A few long values do not push the reasons of all others off the screen.
    width = max((len(left) for left, _ in rows if len(left) <= _COLUMN), default=0)
    return [f"{left:<{width}}  {right}" for left, right in rows] or ["none"]
