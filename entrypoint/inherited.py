"""NCCL's and gloo's settings that came from outside: they win, unless they cannot work on this node. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from entrypoint.facts import Facts
from entrypoint.interfaces import listed, unusable
from entrypoint.measured import Measurements
from entrypoint.reasons import Finding, Setting

_DIAGNOSTICS = {  # they switch off what makes GPUs of one node fast
    "NCCL_P2P_DISABLE": "GPUs of a node then talk through host memory",
    "NCCL_SHM_DISABLE": "GPUs of a node then talk through the network stack",
}


@dataclass(frozen=True, slots=True)
class Given:
    """Values from outside by name, and for those that a file holds its path."""

    values: Mapping[str, str]
    paths: Mapping[str, str]

    def quoted(self, name: str) -> str:
        """`NAME=value`, with the file that says so."""
        where = f" ({self.paths[name]})" if name in self.paths else ""
        return f"{name}={self.values[name]}{where}"


def read_given(own: Mapping[str, str], facts: Facts) -> Given:
    """The environment before NCCL's files, as NCCL itself orders them; gloo and torch read the environment only."""
    values, paths = {}, {}
    for setting in reversed(facts.nccl_conf):
        if setting.name.startswith("NCCL_") and setting.value.strip():
            values[setting.name], paths[setting.name] = setting.value.strip(), setting.path
    for name, value in own.items():
        if value.strip():
            values[name] = value.strip()
            paths.pop(name, None)
    return Given(values, paths)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the plan would set, and the interfaces that it means by it."""

    setting: Setting
    names: tuple[str, ...]
    insisted: bool = False  # a person named them with TRAIN_INTERFACE


def check_interfaces(
    wanted: Wanted, given: Given, facts: Facts, measured: Measurements | None
) -> tuple[list[Setting], list[Finding]]:
    """The setting where it is needed, and what a person should know of the value that came from outside."""
    setting, name = wanted.setting, wanted.setting.name
    if name not in given.values:
        return [setting], []
    value = given.values[name]
    here = matched(value, names_of(facts), exact=not name.startswith("NCCL"))
    wrong = _cannot_work(name, value, here, facts, measured)
    if wrong is None and wanted.insisted and set(here) != set(wanted.names):
        wrong = "is not what TRAIN_INTERFACE says"
    if wrong:
        text = f"{given.quoted(name)} {wrong}; replaced by {setting.value}"
        return [setting], [Finding("warn", text, f"unset {name}")]
    return [], list(_differs(wanted, given, here, facts))


def _cannot_work(name: str, value: str, here: Sequence[str], facts: Facts, measured: Measurements | None) -> str | None:
    """Why a value would break a run over several nodes; None: it may stand."""
    if not here:
        return f"matches no interface here (there are {listed(facts.interfaces)})"
    chosen = [interface for interface in facts.interfaces if interface.name in here]
    if loopback := [interface.name for interface in chosen if interface.kind == "loopback"]:
        return f"lets {loopback[0]} be taken, which leads to no other node"
    if all(not interface.up or unusable(interface, facts) in _NO_ADDRESS for interface in chosen):
        return f"selects {', '.join(here)} ({unusable(chosen[0], facts)})"
    missing = _missing(value, facts)
    if missing and not name.startswith("NCCL"):  # NCCL passes over a name that is not here, gloo stops
        return f"names {', '.join(missing)}, which is not here"
    if name.startswith("TP_") and len(here) + len(missing) > 1:
        return "is a list, and tensorpipe takes one name"
    for one in (measured.of(each) if measured else None for each in here):
        if one is not None and not one.carries:
            return f"selects {one.interface}, which {one.text}"
    return None


_NO_ADDRESS = ("no address", "no address but a link-local one")


def _differs(wanted: Wanted, given: Given, here: Sequence[str], facts: Facts) -> Iterator[Finding]:
    """What a person should know of a value that works."""
    name = wanted.setting.name
    if missing := _missing(given.values[name], facts):
        yield Finding("warn", f"{given.quoted(name)} names {', '.join(missing)}, which is not here", f"correct {name}")
    if set(here) != set(wanted.names):
        poor = {interface.name: unusable(interface, facts) for interface in facts.interfaces}
        selected = ", ".join(f"{each} ({poor[each]})" if poor[each] else each for each in here)
        text = f"{given.quoted(name)} is yours and wins: it selects {selected}; the plan would take"
        yield Finding("warn", f"{text} {wanted.setting.value}", f"unset {name}, or insist with TRAIN_INTERFACE")


def check_diagnostics(given: Given) -> Iterator[Finding]:
    """Switches that are for finding a fault and were left on."""
    for name, effect in _DIAGNOSTICS.items():
        if given.values.get(name, "0") != "0":
            yield Finding("warn", f"{given.quoted(name)} is for finding a fault: {effect}", f"unset {name}")


def _missing(value: str, facts: Facts) -> list[str]:
    """Names in the list that select nothing; of a list of exclusions that is no harm."""
    if value.startswith("^"):
        return []
    sign = "=" if value.startswith("=") else ""
    return [part for part in parts(value) if not matched(sign + part, names_of(facts))]


def names_of(facts: Facts) -> list[str]:
    return [interface.name for interface in facts.interfaces]


def parts(value: str) -> list[str]:
    return [part.strip() for part in value.removeprefix("^").removeprefix("=").split(",") if part.strip()]


def matched(value: str, names: Sequence[str], *, exact: bool = False) -> list[str]:
    """Interfaces that a value of NCCL_SOCKET_IFNAME selects; `exact`: gloo's rule, whole names and no signs.

    NCCL reads `^` (not these) and `=` (whole names) once, at the start of the list (nccl, src/misc/socket.cc).
    Selecting by exclusion replaces NCCL's own exclusion of lo and docker (horovod#700).
    """
    if exact:
        return [name for name in names if name in value.split(",")]
    exclude, text = value.startswith("^"), value.removeprefix("^")
    wanted = parts(value)

    def selects(name: str) -> bool:
        return name in wanted if text.startswith("=") else name.startswith(tuple(wanted))

    return [name for name in names if wanted and selects(name) != exclude]
