"""What this node says of itself at the roll call, gathered without importing torch."""

import hashlib
import json
import shlex
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from platform import python_version_tuple
from typing import Any

from entrypoint.facts import Facts
from entrypoint.interfaces import candidates
from entrypoint.plan import Plan
from entrypoint.reach import Door
from entrypoint.recipes import Recipe
from entrypoint.values import is_loopback

_ROOT = Path(__file__).resolve().parent.parent
_VERSIONS = ("torch", "deepspeed", "accelerate", "transformers")
_MASKED = ("token", "key", "secret", "password")


def state(
    plan: Plan, facts: Facts, *, host: str | None = None, clock: Callable[[], float] = time.time
) -> dict[str, Any]:
    """The fields that `roster` compares. What depends on the meeting (rank, volume, doors) is added there."""
    recipe = plan.recipe
    gpus = Counter(gpu.name for gpu in facts.gpus or ())
    return {
        "host": host or socket.gethostname(),
        "clock": clock(),
        "nodes": plan.cluster.nodes,
        "processes": plan.cluster.processes_per_node,
        "image": build(),
        "recipe": recipe.name if recipe else None,
        "script": _script(recipe) if recipe else None,
        "arguments": _arguments(recipe) if recipe else None,
        "launcher": plan.launcher.words[0] if plan.launcher else None,
        "backend": plan.network.backend,
        "restarts": plan.restarts,
        "master_port": plan.cluster.primary_port,
        **versions(),
        "driver": facts.driver_version,
        "gpus": ", ".join(f"{count} x {name}" for name, count in sorted(gpus.items())) or None,
        "shm": _gib(facts.shm_bytes),
        "memlock": "unlimited" if facts.memlock_bytes is None else str(facts.memlock_bytes),
        "open_files": "unlimited" if facts.open_files is None else str(facts.open_files),
        "rdma": asdict(plan.network.rdma) if plan.network.backend == "nccl" else None,
        "boot_id": facts.boot_id,
        "host_id": plan.network.host_id,
    }


def doors(plan: Plan, facts: Facts, hint: str | None) -> tuple[Door, ...]:
    """The interfaces to be tried; nodes of one machine that meet on loopback have that only."""
    here = plan.network.address
    if here is not None and is_loopback(here):
        return (Door(plan.network.interfaces[0] if plan.network.interfaces else "lo", here, "127.0.0.0/8"),)
    return tuple(Door(one.name, one.address, one.network) for one in candidates(facts, plan.cluster, hint).usable)


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {name: _version(name) for name in _VERSIONS}
    distributions = {name.lower() for name in _distributions()}
    nccl = next((name for name in sorted(distributions) if name.startswith("nvidia-nccl")), None)
    cuda = next((name for name in sorted(distributions) if name.startswith("nvidia-cuda-runtime")), None)
    return {
        "python": ".".join(python_version_tuple()[:2]),
        **found,
        "nccl": _version(nccl) if nccl else None,
        "cuda": _version(cuda) if cuda else None,
    }


def _distributions() -> list[str]:
    return [path.name.split("-")[0].replace("_", "-") for path in _site_packages().glob("nvidia_*.dist-info")]


def _site_packages() -> Path:
    """Where torch is installed; a look at one folder, since a scan of all distributions takes a while."""
    try:
        return Path(str(metadata.distribution("torch").locate_file("")))
    except metadata.PackageNotFoundError:
        return Path("/nonexistent")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def build() -> str:
    """The image's own name where there is one, and always what our code is."""
    digest = hashlib.sha256()
    for path in sorted([*_ROOT.glob("entrypoint/*.py"), *_ROOT.glob("train/*.py"), *_ROOT.glob("templates/**/*.*")]):
        if path.is_file():
            digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    try:
        text = (_ROOT / "build.json").read_text()
        digest.update(text.encode())
        told = json.loads(text)
        label = next((str(told[name]) for name in ("version", "commit", "revision") if told.get(name)), "image")
    except (OSError, ValueError, AttributeError, TypeError):
        label = "checkout"
    return f"{label} {digest.hexdigest()[:12]}"


def _script(recipe: Recipe) -> str | None:
    """The first words of its hash; None for a module, which the versions of the packages tell."""
    if recipe.script is None:
        return None
    try:
        return hashlib.sha256(recipe.script.read_bytes()).hexdigest()[:12]
    except OSError as error:
        return error.strerror


def _arguments(recipe: Recipe) -> str:
    """As given, but what looks like a secret is told by its hash; long ones too."""
    words: list[str] = []
    masked = False
    for word in recipe.arguments:
        name, equals, value = word.partition("=")
        secret = name.startswith("-") and any(part in name.lower() for part in _MASKED)
        if masked:
            words.append(_hash(word))
        else:
            words.append(f"{name}={_hash(value)}" if secret and equals else word)
        masked = secret and not equals
    text = shlex.join(words)
    return text if len(text) <= 200 else f"{text[:150]}… ({_hash(text)})"


def _hash(text: str) -> str:
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _gib(count: int | None) -> str | None:
    return None if count is None else f"{count / 2**30:.1f} GiB"
