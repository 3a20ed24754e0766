"""How the GPUs and NICs of this machine are joined: `nvidia-smi topo -m`, read and said in a sentence. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

# From near to far, as the tool's legend orders them; NV# is nearer than all of them.
_PCIE = {
    "PSB": "over one PCIe switch",
    "PIX": "over one PCIe switch",
    "PXB": "over several PCIe switches",
    "PHB": "through the CPU's PCIe bridge",
    "NODE": "across the PCIe bridges of one CPU",
    "SYS": "from one CPU socket to the other",
}
_CELL = re.compile(r"X|NV\d+|PSB|PIX|PXB|PHB|NODE|SYS")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # the header is underlined, also where nobody looks at a terminal


@dataclass(frozen=True, slots=True)
class Topology:
    """Links between devices by their names in the matrix ("GPU0", "NIC3" or "mlx5_0")."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: Mapping[tuple[str, str], str]  # (device, device) → "NV18", "PIX" …, in both orders

    def pairs(self) -> dict[tuple[str, str], str]:
        """The link of each pair of GPUs, once."""
        return {pair: self.links[pair] for pair in combinations(self.gpus, 2) if pair in self.links}


def parse_topology(text: str) -> Topology | None:
    """The matrix, or None where the text holds none.

    Rows may be padded by tabs or spaces, glued ("PIXNODE") or cut before their last columns; what a row does not tell
    is not in `links`.
    """
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    header = next((line for line in lines if re.match(r"\s*GPU0\b", line) and "X" not in line.split()), None)
    if header is None:
        return None
    names = re.split(r"\s+CPU Affinity|\s+NUMA|\s+GPU NUMA", header)[0].split()
    links: dict[tuple[str, str], str] = {}
    for line in lines:
        row, _, rest = line.strip().partition("\t") if "\t" in line.strip() else line.strip().partition(" ")
        if row in names and line is not header:
            cells = _cells(rest)
            links |= {(row, other): cell for other, cell in zip(names, cells, strict=False) if cell != "X"}
    labels = dict(re.findall(r"^\s*(NIC\d+): (\S+)$", "\n".join(lines), re.MULTILINE))
    named = {(labels.get(a, a), labels.get(b, b)): link for (a, b), link in links.items()}
    gpus = tuple(name for name in names if name.startswith("GPU"))
    nics = tuple(labels.get(name, name) for name in names if not name.startswith("GPU"))
    return Topology(gpus, nics, named)


def _cells(text: str) -> list[str]:
    """Leading cells of a row; the first that is none ("0-31", "PH0-115", "N/A") ends them."""
    cells = []
    place = 0
    while match := _CELL.match(text, len(text) - len(text[place:].lstrip())):
        cells.append(match[0])
        place = match.end()
    return cells


def describe(topology: Topology) -> str:
    """What the matrix means for training, in a sentence."""
    pairs = topology.pairs()
    if len(topology.gpus) < 2:
        return "one GPU: nothing to join"
    if not pairs:
        return "the matrix does not tell how the GPUs are joined"
    fast = {pair: link for pair, link in pairs.items() if link.startswith("NV")}
    slow = sorted({link for pair, link in pairs.items() if pair not in fast}, key=list(_PCIE).index)
    if not fast:
        return f"no NVLink: GPUs exchange data {_farthest(slow)}"
    kinds = ", ".join(sorted(set(fast.values()), key=lambda kind: int(kind[2:])))
    if not slow:
        return f"NVLink between all {_count(len(topology.gpus), 'GPU')} ({kinds})"
    rest = f"the other {len(pairs) - len(fast)} pairs exchange data {_farthest(slow)}"
    return f"NVLink ({kinds}) only between {_joined(fast)}; {rest}"


def has_nvlink(topology: Topology) -> bool:
    """Whether any two GPUs are joined by NVLink."""
    return any(link.startswith("NV") for link in topology.pairs().values())


def nearest_nics(topology: Topology) -> dict[str, tuple[str, tuple[str, ...]]]:
    """For each GPU its nearest kind of link to a NIC and the NICs that have it."""
    near = {}
    for gpu in topology.gpus:
        links = {nic: topology.links[gpu, nic] for nic in topology.nics if (gpu, nic) in topology.links}
        if links:
            best = min(links.values(), key=_rank)
            near[gpu] = (best, tuple(nic for nic, link in links.items() if link == best))
    return near


def describe_nics(topology: Topology) -> str | None:
    """How far the NICs are from the GPUs, in a sentence; None: the matrix has no NIC."""
    near = nearest_nics(topology)
    if not near:
        return None
    kinds = [link for link, _ in near.values()]
    direct = sum(link in ("PSB", "PIX", "PXB") for link in kinds)
    if direct == len(kinds):
        return f"each GPU has a NIC beside it ({', '.join(sorted(set(kinds), key=_rank))})"
    farthest = max(kinds, key=_rank)
    return (
        f"{direct} of {len(kinds)} GPUs have a NIC beside them; the farthest is reached {_PCIE[farthest]} ({farthest})"
    )


def _rank(link: str) -> int:
    return -1 if link.startswith("NV") else list(_PCIE).index(link)


def _farthest(kinds: Sequence[str]) -> str:
    return f"{_PCIE[kinds[-1]]} ({', '.join(kinds)})"


def _joined(pairs: Mapping[tuple[str, str], str]) -> str:
    names = [f"{a}-{b}" for a, b in pairs]
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} pairs"


def _count(number: int, word: str) -> str:
    return f"{number} {word}s" if number != 1 else f"one {word}"
