"""The templates that the tests look at: each platform as it comes, at other sizes, on CPUs, and with every key set."""

import json
import re
import shlex
from typing import Any

import yaml

from entrypoint.render import PLATFORMS, render
from entrypoint.render_settings import GROUPS, Settings, keys_of, read_settings

HARD = """--data 'a b.txt' --name "it's $HOME" --note ünï # `id`"""  # what a shell, YAML or Compose could eat
OTHER = {  # for each key another value than its default
    "script": "/workspace/my script.py",
    "nodes": "3",
    "gpus": "4",
    "args": HARD,
    "name": "llama-7b",
    "run": "seven",
    "grace": "600",
    "image": "registry.example:5000/team/image:1",
    "secrets": "HF_TOKEN,OTHER_TOKEN",
    "volume": "/mnt/team",
    "shm": "32",
    "memory": "900",
    "cpus": "96",
    "storage": "2000",
    "storage_class": "nfs-fast",
    "namespace": "team",
    "rdma": "rdma/hca",
    "min_nodes": "2",
    "gpu_type": "A100",
    "disk": "80",
    "data_center": "US-TX-3",
    "partition": "gpu",
    "account": "team",
    "time": "02:00:00",
    "checkout": "/shared/my roundhouse",
    "sif": "/shared/it is.sif",
}
_NAMES = {**OTHER, "volume": "team-volume"}  # where a volume is no folder
_NO_FOLDER = (*GROUPS["Kubernetes"], "runpod-cluster", "skypilot")


def other(platform: str) -> dict[str, str]:
    """Every key of this platform set to something else."""
    given = {key: (_NAMES if platform in _NO_FOLDER else OTHER)[key] for key in keys_of(platform)}
    if PLATFORMS[platform].nodes[1] == 1:
        del given["nodes"]
    return given


def variants(platform: str) -> dict[str, dict[str, str]]:
    """Name → settings of the templates that are checked."""
    row = PLATFORMS[platform]
    found: dict[str, dict[str, str]] = {"as it comes": {}, "every key": other(platform)}
    found |= {f"{nodes} nodes": {"nodes": str(nodes)} for nodes in (1, 2, 8) if row.nodes[0] <= nodes <= row.nodes[1]}
    if row.gpus[0] == 0:
        found["on CPUs"] = {"gpus": "0"}
    return found


CASES = [(platform, name, given) for platform in PLATFORMS for name, given in variants(platform).items()]
IDS = [f"{platform}: {name}" for platform, name, _ in CASES]


def documents(platform: str, given: dict[str, str]) -> list[Any]:
    """What a template of YAML or JSON says."""
    text = render(platform, given)
    return [json.loads(text)] if text.startswith("{") else list(yaml.safe_load_all(text))


def of_kind(platform: str, kind: str, given: dict[str, str]) -> Any:
    (found,) = [document for document in documents(platform, given) if document["kind"] == kind]
    return found


def settings(platform: str, given: dict[str, str]) -> Settings:
    return read_settings(platform, given, PLATFORMS[platform].defaults)


def shell_variables(text: str) -> dict[str, str]:
    """`export NAME=value` and `--env NAME=value` of a script, as a shell reads the values."""
    found = {}
    for line in text.splitlines():
        for word in shlex.split(line.removesuffix("\\"), comments=True) if re.match(r"export |  --env ", line) else ():
            name, equals, value = word.partition("=")
            if equals:
                found[name] = value
    return found
