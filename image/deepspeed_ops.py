"""What a DeepSpeed wheel with prebuilt ops says of itself, checked against what is in it and against this torch.

python image/deepspeed_ops.py wheel FILE OP...  # after a build: the ops asked for, for this torch, without AVX-512
python image/deepspeed_ops.py load              # in an image: each op of the installed DeepSpeed loads as it is
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from runpy import run_path
from typing import Any

# Registers that only AVX-512 has: zmm, the upper sixteen of the shorter vectors, and masks.
AVX512 = re.compile(r"%(?:zmm\d+|[xy]mm(?:1[6-9]|2\d|3[01])|k[0-7])\b")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    wheel = commands.add_parser("wheel")
    wheel.add_argument("file", type=Path)
    wheel.add_argument("ops", nargs="*")
    commands.add_parser("load")
    arguments = parser.parse_args()
    problems = check_wheel(arguments.file, arguments.ops) if arguments.command == "wheel" else check_load()
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def check_wheel(path: Path, ops: list[str]) -> list[str]:
    """Prints a table of the ops in the wheel; returns what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        info = run_path(f"{folder}/deepspeed/git_version_info_installed.py")
        objects = sorted(Path(folder).rglob("*.so"))
        counts = {each: avx512_instructions(each) for each in objects}
        print(f"{path.name}: {len(objects)} ops")
        for each, count in counts.items():
            print(f"  {each.name.split('.')[0]:24} {each.stat().st_size / 1e6:7.2f} MB  {count} AVX-512 instructions")
    problems = wrong_torch(info["torch_info"])
    installed = [name for name, built in info["installed_ops"].items() if built]
    if len(objects) != len(installed):
        problems.append(f"the wheel says {installed} and holds {[each.name for each in objects]}")
    if len(installed) < len(set(ops)):
        problems.append(
            f"{len(set(ops))} ops were asked for ({' '.join(ops)}) and {len(installed)} built ({installed})"
        )
    return problems + [f"{each.name} wants AVX-512 ({count} instructions)" for each, count in counts.items() if count]


def check_load() -> list[str]:
    """Prints the seconds that each op takes to load; returns what is wrong. The variable DS_ACCELERATOR must be set."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.git_version_info import accelerator_name, installed_ops, torch_info
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    # DeepSpeed passes over prebuilt ops of another accelerator and compiles.
    if (here := get_accelerator().device_name()) != accelerator_name:
        return [f"ops are prebuilt for '{accelerator_name}', and DeepSpeed takes this machine for '{here}'"]
    problems = wrong_torch(torch_info)
    for name in (name for name, built in installed_ops.items() if built):
        start = time.monotonic()
        try:
            module = ALL_OPS[name].load(verbose=False)
        except (ImportError, OSError, RuntimeError) as error:
            problems.append(f"{name} does not load: {error}")
            continue
        print(f"  {name:24} {time.monotonic() - start:6.3f} s  {module.__file__}")
    return problems


def wrong_torch(recorded: dict[str, Any]) -> list[str]:
    """DeepSpeed refuses an op that was compiled for another minor release of torch or CUDA; so does this."""
    import torch

    here = {"version": torch.__version__, "cuda_version": torch.version.cuda or "0.0"}
    here = {name: ".".join(release.split(".")[:2]) for name, release in here.items()}
    return [
        f"the ops are for {name} {recorded[name]}, and torch here has {release}"
        for name, release in here.items()
        if recorded[name] != release
    ]


def avx512_instructions(library: Path) -> int:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        count = sum(bool(AVX512.search(line)) for line in process.stdout or ())
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return count


if __name__ == "__main__":
    sys.exit(main())
