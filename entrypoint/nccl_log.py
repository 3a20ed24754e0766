"""What NCCL says in its first lines of the network that it uses, against what the plan meant. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from entrypoint.reasons import Finding

# "Bootstrap : Using [0]eth0:10.0.0.2<0>", "Bootstrap: Using eth0:10.0.0.2<0>"; an address may be fe80::1%ib0
_BOOTSTRAP = re.compile(r"NCCL INFO Bootstrap ?: Using (?:\[0\])?([^\s:]+):\S+<\d+>")
_SOCKETS = re.compile(r"NCCL INFO NET/\w*Socket : Using (.*)")
_HCAS = re.compile(r"NCCL INFO NET/IB\w* ?: Using (.*)")
_NETWORK = re.compile(r"NCCL INFO (?:\[send\] )?Using network (.+?)\s*$", re.MULTILINE)
_NO_VERBS = re.compile(r"NCCL INFO .*[Ff]ailed to open libibverbs")


@dataclass(frozen=True, slots=True)
class Used:
    """What one process of NCCL reported; empty or None where it did not."""

    bootstrap: str | None
    sockets: tuple[str, ...]
    hcas: tuple[str, ...]  # "mlx5_0:1"
    network: str | None  # "Socket", "IB", or a plugin's name
    no_verbs: bool  # libibverbs is not in the image


def parse_nccl_log(text: str) -> Used:
    """The lines of NCCL_DEBUG=INFO, of any release since 2.4, whatever else stands between them."""
    sockets, hcas = _SOCKETS.findall(text), _HCAS.findall(text)
    bootstrap, network = _BOOTSTRAP.search(text), _NETWORK.findall(text)
    return Used(
        bootstrap=bootstrap[1] if bootstrap else None,
        sockets=tuple(re.findall(r"\[\d+\]([^\s:]+):\S+?<\d+>", sockets[-1])) if sockets else (),
        hcas=tuple(re.findall(r"([\w.-]+:\d+)/(?:IB|RoCE)", hcas[-1])) if hcas else (),
        network=network[-1] if network else None,
        no_verbs=bool(_NO_VERBS.search(text)),
    )


def compare(used: Used, interfaces: Sequence[str], hcas: Sequence[str]) -> Iterator[Finding]:
    """Warnings where NCCL took another way than was planned; `hcas` as the plan names them, with or without a port."""
    if used.bootstrap and interfaces and used.bootstrap not in interfaces:
        yield _other("meets the other ranks", used.bootstrap, interfaces)
    if hcas and used.network == "Socket":
        why = "libibverbs is missing in the image" if used.no_verbs else "see NET/IB in its lines"
        text = f"NCCL sends through sockets, the plan meant {','.join(hcas)}: many times slower ({why})"
        yield Finding("warn", text, "install libibverbs1 and ibverbs-providers" if used.no_verbs else "")
    strange = [name for name in used.sockets if name not in interfaces]
    if strange and interfaces and used.network in ("Socket", None):
        yield _other("sends data", ",".join(strange), interfaces)
    planned = {name.partition(":")[0] for name in hcas}
    devices = dict.fromkeys(name.partition(":")[0] for name in used.hcas)
    if used.network == "IB" and (other := [name for name in devices if name not in planned]):
        text = f"NCCL sends data through {','.join(other)}, the plan meant {','.join(hcas) or 'no RDMA'}"
        yield Finding("warn", text, "set NCCL_IB_HCA, or NCCL_IB_DISABLE=1 on all nodes")


def _other(does: str, name: str, interfaces: Sequence[str]) -> Finding:
    text = f"NCCL {does} over {name}, the plan meant {','.join(interfaces)}"
    return Finding("warn", text, "look for NCCL_SOCKET_IFNAME in the script and in the environment it makes")
