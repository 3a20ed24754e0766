"""What JupyterLab reads: its configuration, with the secret, and the opening notebook on the volume."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv6Address
from pathlib import Path
from socket import AF_INET6
from typing import Any

import psutil

from entrypoint import jupyter, private_folder, version
from entrypoint.probe_machine import DIRECTORY_SECONDS, answer_within
from entrypoint.run_folder import read_json, write_text
from entrypoint.service import Service

OPENING = "roundhouse.ipynb"
_SOURCE = jupyter.LAB / "opening.ipynb"
_PROGRAM = 'PROGRAM = ["roundhouse"]'  # a line of the notebook
PORTS = (jupyter.PORT, jupyter.TENSORBOARD_PORT)


def prepare(
    variables: Mapping[str, str],
    volume: Path,
    folder: Path,
    say: Callable[[str], None],
    *,
    ports: tuple[int, int] = PORTS,
) -> tuple[Service, ...]:
    """The services that the variables ask for, ready to be started; none without a secret.

    `folder`: a private one, for their files. Where the volume is missing or takes no notebook they are wanted all the
    more.

    Raises:
        SettingError: a variable is wrong.
    """
    secret = jupyter.read_secret(variables)
    if secret is None:
        return ()
    jupyter.refuse_untypable(secret)
    origins, home = jupyter.origins(variables), variables.get("HOME")
    try:
        root, opening = answer_within(DIRECTORY_SECONDS, lambda: (volume, _look(volume, say)))
    except (FileNotFoundError, TimeoutError) as error:
        root, opening = Path(home or "/"), None
        why = "does not answer" if isinstance(error, TimeoutError) else "is not there"
        say(f"{volume} {why}: JupyterLab shows {root}")
    configuration = jupyter.configuration(secret, origins, root, opening, ipv6=_has_ipv6(), ports=ports)
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, document in ((jupyter.CONFIG, configuration), (jupyter.PAGE_CONFIG, jupyter.PAGE)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        private_folder.write_json(folder / name, document)
    return jupyter.services(secret, root, folder, python=sys.executable, home=home, ports=ports)


def _look(volume: Path, say: Callable[[str], None]) -> str | None:
    if not volume.is_dir():
        raise FileNotFoundError
    return put_opening(volume, program(volume), say)


def _has_ipv6() -> bool:
    """Whether others could come by IPv6: there is an address beyond this machine and its links."""
    found = (each for several in psutil.net_if_addrs().values() for each in several if each.family == AF_INET6)
    addresses = [IPv6Address(each.address.partition("%")[0]) for each in found]
    return any(not (address.is_loopback or address.is_link_local) for address in addresses)


def program(volume: Path) -> tuple[str, ...]:
    """Our command as it can be called from any folder: a checkout has none on the PATH."""
    if version.BUILD.exists():
        return ("roundhouse",)
    return ("env", f"PYTHONPATH={version.ROOT}", f"TRAIN_VOLUME={volume}", sys.executable, "-m", "entrypoint")


def put_opening(volume: Path, program: Sequence[str], say: Callable[[str], None] = print) -> str | None:
    """Its name on the volume; None: it could not be written.

    It carries a hash of its cells. One that has not the cells of its hash is somebody's own by now.
    """
    path, ours = volume / OPENING, _opening(program)
    if path.exists():
        found = read_json(path)
        if not _is_untouched(found) or hash_of_cells(found) == hash_of_cells(ours):
            return OPENING if path.is_file() else None
    try:
        write_text(path, json.dumps(ours, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        say(f"{path} could not be written: {error.strerror}")
        return OPENING if path.exists() else None
    return OPENING


def _opening(program: Sequence[str]) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(_SOURCE.read_text())
    for cell in notebook["cells"]:
        cell["source"] = [line.replace(_PROGRAM, f"PROGRAM = {json.dumps(program)}") for line in cell["source"]]
    notebook["metadata"]["roundhouse"] = {"cells": hash_of_cells(notebook)}
    return notebook


def hash_of_cells(notebook: dict[str, Any]) -> str:
    """Of what a person writes: neither outputs nor the form in which an editor saves the lines count."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    return sha256(json.dumps(cells).encode()).hexdigest()


def _is_untouched(notebook: Any) -> bool:
    try:
        return bool(notebook["metadata"]["roundhouse"]["cells"] == hash_of_cells(notebook))
    except (KeyError, TypeError):  # no notebook, or none of ours
        return False
