"""`make lock`: pyproject.toml → the locks beside this file, each package with its hashes.

cuda.txt  the product; image.txt  what the image has beside; toolkit.txt  the CUDA compiler of the release that torch
pins; dev.txt  test tools; cpu.txt  the product without CUDA.

cpu.txt is cuda.txt without what only torch's CUDA build wants, and with the hashes of torch's CPU wheels. Those are
not on the package index: they come from TORCH_CPU_INDEX, from the wheel that pip finds here (for this Python), and
from the cpu.txt that is already there if it locks the same release.
"""

import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = ("audit.txt", "dev.txt", "validators.txt")
BAKE = HERE.parent / "docker-bake.hcl"
INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
TOOLKIT = "nvcc,cccl,crt,nvvm"  # what compiles an extension; the libraries are torch's own dependencies
CUDA_ONLY = re.compile(r"nvidia-(?!ml-py)|cuda-|triton")


def main() -> None:
    before = all_locks()
    compile_lock("cuda.txt", "pyproject.toml")
    compile_lock("image.txt", "pyproject.toml", "--extra", "image", "--constraint", str(HERE / "cuda.txt"))
    keep_what_cuda_lacks("image.txt")
    product = [word for name in ("cuda.txt", "image.txt") for word in ("--constraint", str(HERE / name))]
    compile_lock("dev.txt", "--group", "dev", *product)
    with tempfile.NamedTemporaryFile("w", suffix=".in") as source:
        source.write(f"cuda-toolkit[{TOOLKIT}]=={version_of('cuda-toolkit')}\n")
        source.flush()
        compile_lock("toolkit.txt", source.name, "--constraint", str(HERE / "cuda.txt"))
    keep_what_cuda_lacks("toolkit.txt")
    compile_lock("validators.txt", "--group", "validators")
    compile_lock("audit.txt", "--group", "audit")
    stanzas = [text for text in read_stanzas(HERE / "cuda.txt") if not CUDA_ONLY.match(text)]
    release = version_of("torch")
    hashes = sorted(hashes_of_cpu_wheels(release))
    torch = f"torch=={release} \\\n" + " \\\n".join(f"    --hash=sha256:{each}" for each in hashes) + "\n"
    header = "# Made by `make lock` from pyproject.toml; torch's hashes are those of its CPU wheels.\n"
    lines = [torch if text.startswith("torch==") else text for text in stanzas]
    (HERE / "cpu.txt").write_text(header + "".join(lines))
    print(f"cpu.txt: {len(lines)} packages, {len(hashes)} CPU wheels of torch {release}")
    if all_locks() != before:
        move_date(datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0))


def all_locks() -> dict[str, bytes]:
    """What the image is built from."""
    return {path.name: path.read_bytes() for path in HERE.glob("*.txt") if path.name not in TOOLS}


def move_date(day: datetime) -> None:
    """Every file of the image carries the date of the locks: it moves with them, and with nothing else."""
    pattern = r'(variable "SOURCE_DATE_EPOCH" \{ default = ")\d+'
    BAKE.write_text(re.sub(pattern, rf"\g<1>{int(day.timestamp())}", BAKE.read_text()))
    print(f"{BAKE.name}: SOURCE_DATE_EPOCH is {day:%Y-%m-%d}")


def compile_lock(name: str, *source: str) -> None:
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-annotate", "--custom-compile-command", "make lock", "--no-sources"]
    subprocess.run([*command, "--output-file", str(HERE / name), *source], check=True, cwd=HERE.parent)


def read_stanzas(path: Path) -> list[str]:
    """The lines of each package in a requirements file; a package may have several, for several Pythons."""
    return re.split(r"^(?=[A-Za-z0-9])", path.read_text(), flags=re.MULTILINE)[1:]


def version_of(package: str) -> str:
    found = (re.match(rf"{package}==(\S+)", text) for text in read_stanzas(HERE / "cuda.txt"))
    return next(match[1] for match in found if match)


def keep_what_cuda_lacks(name: str) -> None:
    """A layer of the image is installed from one lock, so no package may be in two of them."""
    taken = {text.split("==")[0] for text in read_stanzas(HERE / "cuda.txt")}
    own = [text for text in read_stanzas(HERE / name) if text.split("==")[0] not in taken]
    (HERE / name).write_text("# Made by `make lock`: what cuda.txt has not.\n" + "".join(own))


def hashes_of_cpu_wheels(release: str) -> set[str]:
    return hashes_in_lock(release) | hashes_on_index(release) | hash_of_wheel_here(release)


def hashes_in_lock(release: str) -> set[str]:
    path = HERE / "cpu.txt"
    stanzas = read_stanzas(path) if path.exists() else []
    return {each for t in stanzas if t.startswith(f"torch=={release} ") for each in re.findall(r"[0-9a-f]{64}", t)}


def hashes_on_index(release: str) -> set[str]:
    try:
        with urllib.request.urlopen(f"{INDEX}/torch/", timeout=20) as answer:
            page = answer.read().decode()
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{INDEX} was not reached ({error}): the hashes that cpu.txt has are kept")
        return set()
    wheel = rf"torch-{re.escape(release)}(?:%2Bcpu)?-cp3\d+-cp3\d+-(?:manylinux|macosx)\w+\.whl#sha256=([0-9a-f]{{64}})"
    return set(re.findall(wheel, page))


def hash_of_wheel_here(release: str) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-index", "--dest", folder]
        if subprocess.run([*command, f"torch=={release}"], check=False, capture_output=True).returncode:
            return set()
        wheels = [path for path in Path(folder).iterdir() if "+cpu" in path.name]
        return {file_digest(open(path, "rb"), "sha256").hexdigest() for path in wheels}


if __name__ == "__main__":
    main()
