"""What the image is made of, as JSON; refuses an image whose parts are not of one CUDA release.

python image/build_info.py REQUIREMENTS FILE    # the rest comes from the build's arguments and from what is installed
"""

import json
import os
import platform
import re
import subprocess
import sys
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "deepspeed", "accelerate", "transformers", "numpy", "jupyterlab", "supervisor")


def main() -> int:
    import torch
    from deepspeed.git_version_info import installed_ops, torch_info

    releases = {"the version table": os.environ["CUDA"] or None, "torch": torch.version.cuda, "nvcc": nvcc_release()}
    releases["DeepSpeed's ops"] = None if torch_info["cuda_version"] == "0.0" else torch_info["cuda_version"]
    if len(set(releases.values())) > 1:
        print(f"error: CUDA releases differ: {releases}", file=sys.stderr)
        return 1
    if torch.__version__.split("+")[0] != os.environ["TORCH"]:
        print(f"error: torch is {torch.__version__}, the version table says {os.environ['TORCH']}", file=sys.stderr)
        return 1
    # Not to the output: libraries print there.
    Path(sys.argv[2]).write_text(json.dumps(describe(Path(sys.argv[1]), installed_ops), indent=1) + "\n")
    return 0


def describe(requirements: Path, installed_ops: dict[str, bool]) -> dict[str, Any]:
    variant = os.environ["VARIANT"]
    locks = [requirements / name for name in (f"{variant}.txt", "image.txt", "toolkit.txt", "debs.txt")]
    return {
        "name": "roundhouse",
        "version": os.environ["VERSION"],
        "variant": variant,
        "commit": os.environ["REVISION"],
        "source_date_epoch": int(os.environ["SOURCE_DATE_EPOCH"]),
        "python": platform.python_version(),
        "debian": Path("/etc/debian_version").read_text().strip(),
        "cuda": os.environ["CUDA"] or None,
        "packages": {name: version(name) for name in PACKAGES},
        "ops": sorted(name for name, built in installed_ops.items() if built),
        "arch_list": [each for each in os.environ["TORCH_CUDA_ARCH_LIST"].split(";") if each],
        "locks": {each.name: sha256(each.read_bytes()).hexdigest() for each in locks},
    }


def nvcc_release() -> str | None:
    """The compiler's release as `13.0`, None where the image has no CUDA."""
    if "CUDA_HOME" not in os.environ:
        return None
    command = [f"{os.environ['CUDA_HOME']}/bin/nvcc", "--version"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"release (\d+\.\d+)", text)
    return match[1] if match else "unknown"


if __name__ == "__main__":
    sys.exit(main())
