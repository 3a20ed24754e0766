"""Where libraries keep what they download and what they compile. Pure.

Downloads go to the volume, where they outlive the container and its small disk. What was compiled stays on this
machine's own disk, in a folder that names what it was compiled for: a library of another torch would be loaded or
rebuilt back and forth, and a lock that a killed build left on a shared volume would stop every node for ever.
"""

import platform
from collections.abc import Mapping
from pathlib import Path

from entrypoint.facts import Facts
from entrypoint.reasons import Setting
from entrypoint.volume import shares_disk

_DOWNLOADED = {
    "HF_HOME": ("huggingface", "models and data sets of the hub"),
    "TORCH_HOME": ("torch", "models of torch.hub"),
    "PIP_CACHE_DIR": ("pip", "what pip downloads"),
}
COMPILED = {
    "TORCH_EXTENSIONS_DIR": ("torch_extensions", "extensions and ops"),
    "TRITON_CACHE_DIR": ("triton", "kernels of Triton"),
    "TORCHINDUCTOR_CACHE_DIR": ("inductor", "torch.compile"),
}


def cache_settings(
    volume: Path, facts: Facts, variables: Mapping[str, str], *, in_image: bool, machine: str = platform.machine()
) -> tuple[Setting, ...]:
    """Settings for the caches that nobody has set; a person's own home keeps its downloads."""
    settings = []
    # On a laptop the models are in the home already; in a container the home is lost with it.
    if (in_image or facts.container is not None) and shares_disk(facts):
        for name, (folder, what) in _DOWNLOADED.items():
            reason = f"{what}: the volume outlives this container"
            settings.append(Setting(name, str(volume / "cache" / folder), reason))
    local = compiled_folder(facts, variables, machine=machine)
    for name, (folder, what) in COMPILED.items():
        reason = f"{what}: compiled for this installation, on its own disk"
        settings.append(Setting(name, str(local / folder), reason))
    return tuple(setting for setting in settings if not variables.get(setting.name))


def compiled_folder(facts: Facts, variables: Mapping[str, str], *, machine: str) -> Path:
    """A folder of this user's for what this very installation compiles."""
    software = facts.software
    parts = [f"torch{software.torch}", f"py{software.python}"] if software and software.torch else ["unknown"]
    if software and software.build:
        parts.append(software.build)
    name = "roundhouse" if facts.user_id is None else f"roundhouse-{facts.user_id}"
    return Path(variables.get("TMPDIR") or "/tmp") / name / "-".join([*parts, machine])
