"""Captures what probe sees of this machine in a folder, and replays such a folder: `python -m entrypoint.capture DIR`.

A folder holds copies of the files that probe read, and machine.json with the answers that are no file. It goes into a
bug report or into tests/machines. It names the machine, its addresses and its mounts; mount sources and options, which
may carry user names, are left out.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from entrypoint.errors import SettingError
from entrypoint.facts import Facts, Gpu, Software
from entrypoint.probe import probe
from entrypoint.probe_machine import THIS_MACHINE, Directory, Files, Link, Machine
from entrypoint.probe_nvml import Driver

Answer = TypeVar("Answer")


def replay_facts(folder: Path) -> Facts:
    """The facts of the machine that was captured in `folder`."""
    said = json.loads((folder / "machine.json").read_text())
    return probe(Path(said["volume"]), targets=tuple(said.get("routes", {})), machine=replay(folder))


def replay(folder: Path) -> Machine:
    """The machine that was captured in `folder`; what its machine.json leaves out is not there, or unlimited."""
    said: dict[str, Any] = json.loads((folder / "machine.json").read_text())
    addresses = said.get("hostname_addresses", [])
    return Machine(
        files=Files(folder),
        hostname=lambda: str(said["hostname"]),
        resolve=lambda _name: None if addresses is None else tuple(addresses),
        home=lambda: said.get("home"),
        cores=lambda: int(said["cores"]),
        soft_limit=said.get("soft_limits", {}).get,
        links=lambda: tuple(_restore(Link, link) for link in said.get("links", [])),
        source_toward=said.get("routes", {}).get,
        directory=lambda path: _restore(Directory, said.get("directories", {}).get(path) or _missing(path)),
        opens=lambda device: said.get("opens", {}).get(device, False),
        nvml=lambda: _restore_driver(said.get("nvml")),
        software=lambda: _restore(Software, said["software"]) if said.get("software") else None,
    )


def capture(folder: Path, volume: Path, targets: Sequence[str] = (), machine: Machine = THIS_MACHINE) -> Facts:
    """Probes the machine and leaves in `folder`, which it makes, what replay needs to give the same facts."""
    folder.mkdir(parents=True)
    directories: dict[str, Directory] = {}
    opens: dict[str, bool] = {}
    routes: dict[str, str | None] = {}
    said = {
        "volume": str(volume),
        "hostname": machine.hostname(),
        "hostname_addresses": machine.resolve(machine.hostname()),
        "home": machine.home(),
        "cores": machine.cores(),
        "soft_limits": {name: machine.soft_limit(name) for name in ("memlock", "stack", "nofile")},
        "links": machine.links(),
        "directories": directories,
        "opens": opens,
        "routes": routes,
        "nvml": machine.nvml(),
        "software": machine.software(),
    }
    watched = replace(
        machine,
        files=_CopyingFiles(machine.files.root, folder),
        directory=_noting(machine.directory, directories),
        opens=_noting(machine.opens, opens),
        source_toward=_noting(machine.source_toward, routes),
    )
    facts = probe(volume, targets=targets, machine=watched)
    (folder / "machine.json").write_text(json.dumps(said, indent=2, default=asdict) + "\n")
    return facts


def _noting(call: Callable[[str], Answer], notes: dict[str, Answer]) -> Callable[[str], Answer]:
    def noting(argument: str) -> Answer:
        notes[argument] = call(argument)
        return notes[argument]

    return noting


@dataclass(frozen=True, slots=True)
class _CopyingFiles(Files):
    """Files that leave a copy of whatever was there."""

    copy: Path

    def _keep(self, path: str, text: str) -> None:
        place = self.copy / path.lstrip("/")
        if place.is_dir():  # made when its name was listed
            place.rmdir()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self, path: str) -> str | None:
        text = Files.read(self, path)
        if text is not None:
            self._keep(path, (_without_sources(text) if path.endswith("/mountinfo") else text) + "\n")
        return text

    def names(self, folder: str) -> tuple[str, ...]:
        names = Files.names(self, folder)
        for name in names:
            (self.copy / folder.lstrip("/") / name).mkdir(parents=True, exist_ok=True)
        return names

    def exists(self, path: str) -> bool:
        if (there := Files.exists(self, path)) and not (self.copy / path.lstrip("/")).exists():
            self._keep(path, "")
        return there

    def target(self, link: str) -> str | None:
        target = Files.target(self, link)
        place = self.copy / link.lstrip("/")
        if target is not None and not place.is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(f"../{target}")
        return target


def _without_sources(mountinfo: str) -> str:
    """Mount lines with their source and options blanked, except for cgroups, whose options are the controllers."""
    lines = (line.partition(" - ") for line in mountinfo.splitlines())
    return "\n".join(
        f"{left} - {right if right.startswith('cgroup') else right.split(' ')[0] + ' - -'}" for left, _, right in lines
    )


def _restore(kind: type[Answer], fields: dict[str, Any]) -> Answer:
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def _restore_driver(said: dict[str, Any] | None) -> Driver | None:
    if said is None:
        return None
    return Driver(said["version"], said["cuda"], tuple(_restore(Gpu, gpu) for gpu in said["gpus"]))


def _missing(path: str) -> dict[str, Any]:
    return {"exists": False, "real_path": path}


def main(arguments: Sequence[str]) -> int:
    """Captures into the folder that is named first; the others are the volume and addresses of other nodes."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m entrypoint.capture DIR [VOLUME [ADDRESS …]]", file=sys.stderr)
        return 2
    folder, volume = Path(arguments[0]), Path(arguments[1] if len(arguments) > 1 else "/workspace")
    if folder.exists():
        print(f"{folder} is there already\n  fix: name a new folder", file=sys.stderr)
        return SettingError.exit_code
    facts = capture(folder, volume, arguments[2:])
    print(json.dumps(asdict(facts), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
