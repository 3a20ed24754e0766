"""Installed versions, read from files: nothing is imported, so a broken installation can still be described."""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from entrypoint.facts import Software


def read_software(folders: Sequence[Path], build: Path) -> Software:
    """What the first of the folders that has it says of torch, NCCL and DeepSpeed, and build.json of the image."""
    torch, cuda = _torch(folders)
    ops = _ops(_text(_first(folders, "deepspeed/git_version_info_installed.py")))
    said = _json(build)
    return Software(
        torch=torch,
        torch_cuda=cuda,
        nccl=_wheel_version(folders, "nvidia_nccl_cu"),
        nccl_wanted=_pinned_nccl(folders, torch),
        deepspeed=ops.get("version"),
        ops=tuple(sorted(name for name, built in ops.get("installed_ops", {}).items() if built)),
        ops_torch=_known(ops.get("torch_info", {}).get("version")),
        ops_cuda=_known(ops.get("torch_info", {}).get("cuda_version")),
        ops_promised=tuple(sorted(said.get("ops", ()))),
        architectures=tuple(said.get("arch_list", ())),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        build=hashlib.sha256(build.read_bytes()).hexdigest()[:12] if said else None,
    )


def _text(path: Path | None) -> str:
    try:
        return path.read_text(errors="replace") if path else ""
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _first(folders: Sequence[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _torch(folders: Sequence[Path]) -> tuple[str | None, str | None]:
    # The wheel's metadata know no CUDA: the package index has one build a version, without "+cu130" in its name.
    text = _text(_first(folders, "torch/version.py"))
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*= '([^']+)'", text, re.MULTILINE)
    return (version[1] if version else None), (cuda[1] if cuda else None)


def _wheel_version(folders: Sequence[Path], prefix: str) -> str | None:
    for folder in folders:
        for path in sorted(folder.glob(f"{prefix}*.dist-info")):
            return path.name.removesuffix(".dist-info").rpartition("-")[2]
    return None


def _pinned_nccl(folders: Sequence[Path], torch: str | None) -> str | None:
    names = [f"torch-{version}.dist-info/METADATA" for version in (torch, (torch or "").partition("+")[0]) if version]
    metadata = next((text for name in names if (text := _text(_first(folders, name)))), "")
    pin = re.search(r"^Requires-Dist: nvidia-nccl-cu\d+==([0-9.]+)", metadata, re.MULTILINE)
    return pin[1] if pin else None


def _ops(text: str) -> dict[str, Any]:
    """The assignments of the file that DeepSpeed's setup writes: plain literals, one a line."""
    said: dict[str, Any] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        try:
            said |= {name.strip(): ast.literal_eval(value.strip())} if equals else {}
        except (SyntaxError, ValueError):
            continue
    return said


def _known(version: str | None) -> str | None:
    return None if version in (None, "0.0") else version  # "0.0": built without torch at hand
