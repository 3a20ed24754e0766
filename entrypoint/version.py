"""What this is: the image's build.json, or what a checkout can say of itself."""

import json
import platform
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from entrypoint.errors import MachineError

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build.json"  # the image has one, a checkout has not
_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "numpy")


def read_version() -> dict[str, Any]:
    """build.json as the image's build wrote it; in a checkout the installed versions, without importing anything."""
    if not BUILD.exists():
        return _of_checkout()
    try:
        document: dict[str, Any] = json.loads(BUILD.read_text())
    except (OSError, ValueError) as error:
        raise MachineError(f"{BUILD} cannot be read: {error}", fix="the image is damaged: pull it again") from None
    return document


def to_text(document: dict[str, Any]) -> str:
    """
    >>> print(to_text({"version": "1.0", "arch_list": ["9.0", "12.0+PTX"], "packages": {"torch": "2.13.0"}}))
    version    1.0
    arch_list  9.0 12.0+PTX
    packages   torch 2.13.0
    """
    width = max(map(len, document), default=0)
    return "\n".join(
        f"{name if not number else '':<{width}}  {line}"
        for name, value in document.items()
        for number, line in enumerate(_lines(value))
    )


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name} {' '.join(_lines(inner))}" for name, inner in value.items()] or ["none"]
    if isinstance(value, list):
        return [" ".join(map(str, value)) or "none"]
    return ["none" if value is None else str(value)]


def _of_checkout() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "version": project["version"],
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in _PACKAGES},
    }


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """With `+changes` where the working tree differs; None without git, or where this is no checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
