"""Whether NCCL can use RDMA on a node, with which HCAs, and whether the nodes of a cluster agree. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from entrypoint.facts import Facts, RdmaPort
from entrypoint.reasons import Finding, Setting

_SPOKEN = ("InfiniBand", "Ethernet")  # link layers of NCCL's own transport; EFA says "Unspecified" and needs a plugin
_OPEN_FIX = "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1"


@dataclass(frozen=True, slots=True)
class Rdma:
    """What NCCL's IB transport finds on one node. `hcas` is empty where it finds nothing, and `reason` says why."""

    hcas: tuple[str, ...]  # "mlx5_0", or "mlx5_0:1" where only some ports of a device belong to it
    link_layer: str | None  # "InfiniBand" or "Ethernet" (RoCE)
    gbit_per_second: float  # of one of them
    reason: str
    devices: tuple[str, ...] = ()  # all that sysfs lists
    mixed: bool = False  # others beside them have another link layer or rate


NO_RDMA = Rdma((), None, 0, "no GPU, so NCCL is not used")


def choose_rdma(facts: Facts, given: Mapping[str, str]) -> Rdma:
    """The HCAs that carry the training: of several kinds the group with the highest sum of rates.

    A storage or management HCA beside eight fast ones is on another fabric, and NCCL would send through it. `given` are
    NCCL's variables from outside; what they switch off is off.
    """
    devices = tuple(dict.fromkeys(port.device for port in facts.rdma))
    off = next(_switched_off(given), None)
    if off or not devices:
        return Rdma((), None, 0, off or "this node has no HCA", devices)
    able = _able(facts)
    if not able:
        return Rdma((), None, 0, _why_none(facts.rdma), devices)
    groups: dict[tuple[str | None, float], list[RdmaPort]] = {}
    for port in able:
        groups.setdefault((port.link_layer, port.gbit_per_second or 0), []).append(port)
    (layer, rate), best = max(groups.items(), key=lambda item: (len(item[1]) * item[0][1], item[0][1]))
    kind = "RoCE" if layer == "Ethernet" else layer
    reason = f"{len(best)} x {kind} at {rate:g} Gbit/s"
    if others := [_name(port, facts.rdma) for port in able if port not in best]:
        reason += f"; not {', '.join(others)}, of another link layer or rate"
    return Rdma(tuple(_name(port, facts.rdma) for port in best), layer, rate, reason, devices, mixed=bool(others))


def rdma_settings(rdma: Rdma, given: Mapping[str, str], facts: Facts) -> tuple[list[Setting], list[Finding]]:
    """NCCL_IB_HCA where kinds are mixed, NCCL_IB_DISABLE where nothing can be opened; what was given is checked."""
    if rdma is NO_RDMA:
        return [], []
    settings: list[Setting] = []
    findings = list(_of_vendor(facts, given))
    spoken = any(port.link_layer in _SPOKEN for port in facts.rdma)
    if not rdma.hcas and spoken and "NCCL_IB_DISABLE" not in given:
        # Listed but not to be opened, NCCL would fail or crawl instead of taking sockets (NVIDIA/nccl#451).
        settings.append(Setting("NCCL_IB_DISABLE", "1", rdma.reason))
    if rdma.hcas:
        value, hca = "=" + ",".join(rdma.hcas), given.get("NCCL_IB_HCA")
        if hca is None:
            settings += [Setting("NCCL_IB_HCA", value, rdma.reason)] if rdma.mixed else []
        elif not (here := matched_hcas(hca, facts.rdma)):
            settings.append(Setting("NCCL_IB_HCA", value, rdma.reason))
            text = f"NCCL_IB_HCA={hca} matches no HCA here (there are {', '.join(rdma.devices)}); replaced by {value}"
            findings.append(Finding("warn", text, "unset NCCL_IB_HCA"))
        elif set(here) != set(matched_hcas(value, facts.rdma)):
            selected = ", ".join(f"{device}:{port}" for device, port in here)
            text = f"NCCL_IB_HCA={hca} is yours and wins: it selects {selected}; the plan would take {value}"
            findings.append(Finding("warn", text, "unset NCCL_IB_HCA"))
    if (off := next(_switched_off(given), None)) and (able := _able(facts)):
        text = f"{off} is yours and wins: {len(able)} RDMA ports that work here stay unused"
        findings.append(Finding("warn", text, f"unset {off.partition('=')[0]}"))
    return settings, findings


def rdma_verdict(nodes: Mapping[int, Rdma]) -> Finding | None:
    """None where the nodes of a cluster, by rank, are alike; else why they must not start together.

    Each node would choose alone, and the first collective would hang (NVIDIA/nccl#234). Refused rather than moved to
    sockets, which can be twenty times slower for days: who wants that says so with one variable.
    """
    with_rdma = {rank: node for rank, node in nodes.items() if node.hcas}
    without = {rank: node for rank, node in nodes.items() if not node.hcas}
    if with_rdma and without:
        text = f"{_ranks(with_rdma)} has RDMA and {_told(without)}"
    elif len({node.link_layer for node in with_rdma.values()}) > 1:
        text = _told(with_rdma)
    else:
        return None
    return Finding(
        "stop",
        f"NCCL would hang: {text}",
        "repair or replace the node; or NCCL_IB_DISABLE=1 on all nodes, to train over sockets",
    )


def matched_hcas(value: str, ports: Sequence[RdmaPort]) -> list[tuple[str, int]]:
    """Device and port of what a value of NCCL_IB_HCA selects: `[^][=]name[:port],…`, names by prefix without `=`."""
    exclude, text = value.startswith("^"), value.removeprefix("^")
    exact, wanted = text.startswith("="), [part.split(":") for part in text.removeprefix("=").split(",") if part]

    def selects(port: RdmaPort) -> bool:
        for name, *rest in wanted:
            same = port.device == name if exact else port.device.startswith(name)
            if same and (not rest or rest[0] in ("", str(port.port))):
                return True
        return not wanted

    return [(port.device, port.port) for port in ports if selects(port) != exclude]


def _able(facts: Facts) -> list[RdmaPort]:
    return [port for port in facts.rdma if port.usable and port.active and port.link_layer in _SPOKEN]


def _switched_off(given: Mapping[str, str]) -> Iterator[str]:
    if given.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        yield f"NCCL_IB_DISABLE={given['NCCL_IB_DISABLE']}"
    if given.get("NCCL_NET", "").lower() == "socket":
        yield f"NCCL_NET={given['NCCL_NET']}"


def _why_none(ports: Sequence[RdmaPort]) -> str:
    names = ", ".join(dict.fromkeys(port.device for port in ports))
    if not any(port.usable for port in ports):
        return f"{names} is listed but cannot be opened here ({_OPEN_FIX})"
    if not any(port.active for port in ports):
        return f"no port of {names} is active"
    return f"{names} speaks neither InfiniBand nor RoCE"


def _of_vendor(facts: Facts, given: Mapping[str, str]) -> Iterator[Finding]:
    """HCAs that NCCL uses only through a plugin of their vendor, as AWS's EFA."""
    strange = [port.device for port in facts.rdma if port.usable and port.link_layer not in _SPOKEN]
    if strange and not given.get("NCCL_NET_PLUGIN"):
        yield Finding(
            "warn",
            f"{', '.join(strange)} needs its vendor's NCCL plugin (libnccl-net.so): without it traffic takes sockets",
            "install the plugin (aws-ofi-nccl for EFA) and set what its vendor says",
        )


def _name(port: RdmaPort, ports: Sequence[RdmaPort]) -> str:
    """With its number only where the device has several ports."""
    single = all(other.device != port.device or other.port == port.port for other in ports)
    return port.device if single else f"{port.device}:{port.port}"


def _ranks(nodes: Mapping[int, Rdma]) -> str:
    shown = ", ".join(f"node {rank}" for rank in sorted(nodes)[:8])
    return f"{shown} and {len(nodes) - 8} more" if len(nodes) > 8 else shown


def _told(nodes: Mapping[int, Rdma]) -> str:
    shown = "; ".join(f"node {rank}: {nodes[rank].reason}" for rank in sorted(nodes)[:8])
    return f"{shown} and {len(nodes) - 8} more" if len(nodes) > 8 else shown
