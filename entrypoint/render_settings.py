"""What a template is filled from: one value, and the table of its keys that `render list` prints."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from entrypoint.errors import SettingError
from entrypoint.recipes import choose_recipe, refuse_wrong_options, split_arguments
from entrypoint.request import edits, read_request
from entrypoint.values import parse_count

# The image's public name and tags. docker-bake.hcl makes them; a test compares the two.
REPOSITORY = "ghcr.io/roundhouse-train/roundhouse"
VERSION = "0.1.0"
VARIANTS = ("cuda", "cpu")

PORTS = (8888, 22)  # JupyterLab, with TensorBoard behind it; ssh
PRIMARY_PORT = 29500
VOLUME = "/workspace"
_ENV = "env."  # --set env.NCCL_DEBUG=INFO


def _key(default: Any, meaning: str, only: str = "") -> Any:
    return field(default=default, metadata={"meaning": meaning, "only": tuple(only.split())})


GROUPS = {
    "Kubernetes": ("kubernetes", "jobset", "kubeflow-trainer", "pytorchjob", "pytorchjob-elastic"),
    "Slurm": ("slurm", "slurm-pyxis", "slurm-apptainer"),
}
_SHARED = "Kubernetes Slurm compose dstack skypilot vm runpod-cluster"  # where one volume is mounted by name


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of one template. Sizes are GiB; an empty text, or a 0 of `memory` and `cpus`, means the default."""

    script: str = _key("fsdp", "TRAIN_SCRIPT: a recipe, the path of a script, or '-m module'")
    nodes: int = _key(1, "number of nodes")
    gpus: int = _key(8, "GPUs a node; 0: on the CPU, with the image for it")
    args: str = _key("", "TRAIN_ARGS: the script's arguments, as a shell writes them")
    name: str = _key(
        "roundhouse",
        "name of the job; also of what belongs to it (services, claims)",
        "Kubernetes Slurm compose dstack skypilot vm runpod-pod runpod-cluster vast",
    )
    run: str = _key("", "TRAIN_RUN: name of the run's folder (default: the recipe's name)")
    grace: int = _key(60, "TRAIN_GRACE: seconds for a last checkpoint; the platform gets 15 more before it kills")
    image: str = _key("", f"the image (default: {REPOSITORY}:{VERSION}-{VARIANTS[0]}, with 0 GPUs -{VARIANTS[1]})")
    secrets: tuple[str, ...] = _key(
        (), "variables from the platform's secret store, as in HF_TOKEN,WANDB_API_KEY", f"{_SHARED} runpod-pod"
    )
    volume: str = _key("", "the shared volume as the platform names it: claim, volume id or host folder", _SHARED)
    shm: int = _key(16, "size of /dev/shm; 0 GPUs: 2", "Kubernetes compose dstack vm")
    memory: int = _key(0, "memory a node beside /dev/shm (default: 64 a GPU, without one 8)", "Kubernetes")
    cpus: int = _key(0, "cores a node (default: 8 a GPU, without one 4)", "Kubernetes")
    storage: int = _key(500, "size of the volume", "Kubernetes runpod-pod")
    storage_class: str = _key("", "storage class that can mount on many nodes (default: the cluster's)", "Kubernetes")
    namespace: str = _key("", "namespace (default: the one of kubectl)", "Kubernetes")
    rdma: str = _key("", "resource of the RDMA device plugin, as in rdma/hca; empty: TCP", "Kubernetes")
    min_nodes: int = _key(1, "fewest nodes to go on with", "pytorchjob-elastic")
    gpu_type: str = _key("", "kind of GPU (default: H100)", "runpod-cluster skypilot dstack")
    disk: int = _key(50, "disk of the container", "runpod-pod runpod-cluster vast skypilot dstack")
    data_center: str = _key("", "where the network volume is", "runpod-cluster")
    partition: str = _key("", "partition (default: the cluster's)", "Slurm")
    account: str = _key("", "account to charge (default: yours)", "Slurm")
    time: str = _key("24:00:00", "time limit; the job goes on in a new one", "Slurm")
    checkout: str = _key("$HOME/roundhouse", "checkout with its .venv, on a shared file system", "slurm")
    sif: str = _key("roundhouse.sif", "the image as a file, made by apptainer pull", "slurm-apptainer")
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def container_image(self) -> str:
        return self.image or f"{REPOSITORY}:{VERSION}-{VARIANTS[not self.gpus]}"

    @property
    def shm_gib(self) -> int:
        return self.shm if self.gpus or self.shm != Settings.default("shm") else 2

    @property
    def memory_gib(self) -> int:
        return self.memory or 64 * self.gpus or 8

    @property
    def cores(self) -> int:
        return self.cpus or 8 * self.gpus or 4

    @property
    def title(self) -> str:
        """What runs where, for the head of a template."""
        devices = f"{self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else "CPUs only"
        nodes = "one node with " if self.nodes == 1 else f"{self.nodes} nodes, each with "
        return f"`{self.script}` on {nodes}{devices}"

    @property
    def kill_after(self) -> int:
        """Seconds from the platform's SIGTERM to its SIGKILL: the grace, and time to stop what is not training."""
        return self.grace + 15

    @property
    def variables(self) -> dict[str, str]:
        """What every node gets, the same on all of them."""
        asked = {
            "TRAIN_SCRIPT": self.script,
            "TRAIN_ARGS": self.args,
            "TRAIN_RUN": self.run,
            "TRAIN_GRACE": str(self.grace),  # always: the platform's own grace period is counted from it
        }
        return {name: text for name, text in asked.items() if text} | dict(self.env)

    @staticmethod
    def default(key: str) -> Any:
        return next(each.default for each in fields(Settings) if each.name == key)


KEYS = {each.name: each for each in fields(Settings) if each.name != "env"}


def platforms_of(key: str) -> tuple[str, ...]:
    """The platforms that know this key; empty: all."""
    return tuple(name for group in KEYS[key].metadata["only"] for name in GROUPS.get(group, (group,)))


def keys_of(platform: str) -> list[str]:
    """The keys that change this platform's template, in the order of the table."""
    return [name for name in KEYS if not platforms_of(name) or platform in platforms_of(name)]


def read_settings(platform: str, given: Mapping[str, str], defaults: Settings) -> Settings:
    """The settings from `key=value` texts; SettingError quotes what is wrong and names the nearest right key."""
    known = keys_of(platform)
    wishes: dict[str, Any] = {}
    env = {name.removeprefix(_ENV): text for name, text in given.items() if name.startswith(_ENV)}
    for name, text in given.items():
        if name.startswith(_ENV):
            continue
        if name not in known:
            raise _unknown_key(platform, name, known)
        wishes[name] = _READ[type(Settings.default(name))](name, text)
    settings = replace(defaults, **wishes, env=_variables(env))
    _check(settings)
    return settings


def nearest(word: str, known: list[str]) -> str:
    """Words for a fix: the nearest of `known`, or all of them where none is near."""
    near = min(known, key=lambda candidate: edits(word, candidate))
    return f"did you mean {near}?" if edits(word, near) <= max(2, len(word) // 3) else f"one of {', '.join(known)}"


def _unknown_key(platform: str, name: str, known: list[str]) -> SettingError:
    if name in KEYS:
        return SettingError(f"{name} does nothing for {platform}", fix=f"it is for {', '.join(platforms_of(name))}")
    return SettingError(f"{name!r} is no key of {platform}", fix=nearest(name, known))


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise SettingError(f"{name}={text!r} is not a whole number", fix=f"{name}: {KEYS[name].metadata['meaning']}")
    return int(text)


def _text(name: str, text: str) -> str:
    if not text.isprintable():
        raise SettingError(f"{name}={text!r} has characters that are not printable", fix="write it on one line")
    return text


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(_variable(part.strip()) for part in text.split(",") if part.strip())


_READ: dict[type, Callable[[str, str], Any]] = {int: _number, str: _text, tuple: _names}


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SettingError(f"{name!r} is not the name of a variable", fix="letters, digits and _, as in HF_TOKEN")
    return name


def _variables(env: Mapping[str, str]) -> dict[str, str]:
    return {_variable(name): _text(name, text) for name, text in env.items()}


def _check(settings: Settings) -> None:
    if not 1 <= settings.nodes <= 4096:
        raise SettingError(f"nodes={settings.nodes} is outside 1..4096", fix="give the number of nodes")
    if not settings.gpus <= 64:
        raise SettingError(f"gpus={settings.gpus} is outside 0..64", fix="GPUs are counted on each node, not in all")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", settings.name):
        raise SettingError(
            f"name={settings.name!r} cannot be the name of a job everywhere",
            fix="at most 40 of a-z, 0-9 and -, first a letter, last no -",
        )
    overlap = settings.secrets and set(settings.secrets) & settings.variables.keys()
    if overlap:
        raise SettingError(
            f"{', '.join(sorted(overlap))} is given as a value and as a secret", fix="leave one of the two out"
        )
    # What the container would refuse: there a typing error costs the time until somebody looks.
    read_request(settings.variables)
    recipe = choose_recipe(settings.script, split_arguments(settings.args), base=Path(VOLUME))
    asked = settings.variables.get("TRAIN_NPROC")
    processes = parse_count("TRAIN_NPROC", asked) if asked else settings.gpus or 2
    refuse_wrong_options(recipe, settings.nodes * processes)
