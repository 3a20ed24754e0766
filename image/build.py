"""`make image`, `make reproduce` and `make verify`: builds a variant, and compares what two builds gave.

python image/build.py image VARIANT         # build, and give it to the engine as roundhouse:VARIANT
python image/build.py reproduce VARIANT     # twice, no cache, two checkouts; the first is given to the engine
python image/build.py verify IMAGE          # build what IMAGE's labels say it was built from

Exit code 0: built, or the same; 1: not the same, and the files that differ are named. docker-bake.hcl's variables are
taken from the environment. Layouts are left in build/.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import oci

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "build"
# Labels of an image, and the variables of docker-bake.hcl that they were made from.
RECORDED = {
    "org.opencontainers.image.revision": ("REVISION",),
    "org.opencontainers.image.version": ("VERSION",),
    "roundhouse.ops": ("DS_OPS_CPU", "DS_OPS_CUDA"),
    "roundhouse.architectures": ("TORCH_CUDA_ARCH_LIST",),
}
EXPORT = "rewrite-timestamp=true,oci-mediatypes=true,compression=gzip,force-compression=true"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("image", "reproduce", "verify"))
    parser.add_argument("name", metavar="VARIANT or IMAGE")
    arguments = parser.parse_args()
    try:
        if arguments.command == "image":
            return image(arguments.name)
        if arguments.command == "verify":
            return verify(arguments.name)
        return reproduce(arguments.name)
    except subprocess.CalledProcessError as error:
        print(
            f"error: `{' '.join(error.cmd[:4])} …` ended with {error.returncode}; its output is above", file=sys.stderr
        )
        return 1


def image(variant: str) -> int:
    layout = BUILDS / variant
    build(variant, ROOT, layout)
    load(layout)
    print(oci.sizes(oci.read_image(layout)))
    return 0


def reproduce(variant: str) -> int:
    layouts = [BUILDS / f"{variant}-{number}" for number in (1, 2)]
    for layout in layouts:
        with tempfile.TemporaryDirectory(prefix="roundhouse-") as folder:
            checkout = Path(folder) / layout.name
            copy_checkout(checkout)
            build(variant, checkout, layout, ["--no-cache"])
    load(layouts[0])
    one, other = (oci.read_image(layout) for layout in layouts)
    print(oci.sizes(one))
    same = oci.compare(one, other)
    print(f"{variant}: {'two builds, one digest' if same else 'two builds differ'}")
    return 0 if same else 1


def verify(name: str) -> int:
    theirs = BUILDS / "verify-theirs"
    save(name, theirs)
    published = oci.read_image(theirs)
    labels = published.config["config"].get("Labels") or {}
    revision, variant = labels.get("org.opencontainers.image.revision", ""), labels.get("roundhouse.variant", "")
    if not re.fullmatch("[0-9a-f]{40}", revision):
        print(f"error: {name} was built from '{revision}', which is no commit\nfix: build it from a clean checkout")
        return 78
    ours = BUILDS / "verify-ours"
    with tempfile.TemporaryDirectory(prefix="roundhouse-") as folder:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        # No cache: the layers that this engine built before would be compared with themselves.
        build(variant, Path(folder), ours, ["--no-cache"], recorded(labels))
    rebuilt = oci.read_image(ours)
    if labels.get("roundhouse.builder") == builder():
        same = oci.compare(published, rebuilt)
    else:  # another BuildKit may compress to other bytes, and says so in a label: what is unpacked decides
        print(f"built by {labels.get('roundhouse.builder')}, here by {builder()}: layers are compared unpacked")
        same = [layer.diff_id for layer in published.layers] == [layer.diff_id for layer in rebuilt.layers]
        if not same:
            oci.compare(published, rebuilt)
    print(f"{name}: {'is what its commit builds' if same else 'is not what its commit builds here'}")
    return 0 if same else 1


def recorded(labels: Mapping[str, str]) -> dict[str, str]:
    """The variables of docker-bake.hcl that an image was built with, as far as its labels say."""
    return {name: labels[label] for label, names in RECORDED.items() if labels.get(label) is not None for name in names}


def copy_checkout(folder: Path) -> None:
    """A copy of the files that git knows or would take, with other times and another path than theirs."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def build(
    variant: str, checkout: Path, layout: Path, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> None:
    """Build the variant of a checkout into a layout; `variables` count more than the environment's.

    Raises:
        CalledProcessError: the build failed; its output says why.
    """
    shutil.rmtree(layout, ignore_errors=True)
    layout.parent.mkdir(exist_ok=True)
    given = {"REVISION": described_revision(), "BUILDER": builder(), "ROOTFS": str(BUILDS / "base")}
    if (BUILDS / "base" / "rootfs.tar").exists():
        given["BASE"] = "target:rootfs"
    command = ["docker", "buildx", "bake", "--progress=plain", *options, variant]
    command.append(f"--set={variant}.output=type=oci,dest={layout},tar=false,{EXPORT}")
    start = time.monotonic()
    print(f"building {variant} in {checkout}", flush=True)
    subprocess.run(command, cwd=checkout, check=True, env={**given, **os.environ, **(variables or {})})
    print(f"built {variant} in {time.monotonic() - start:.0f} s", flush=True)


def described_revision() -> str:
    """The commit, with -dirty behind it if files that git knows were changed."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def builder() -> str:
    """Which BuildKit builds: its own version, or the engine's if it is built into that and does not know it."""
    text = subprocess.run(["docker", "buildx", "inspect"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"^Buildkit(?: version)?: *v([1-9]\S*|0\.[1-9]\S*)", text, re.MULTILINE | re.IGNORECASE)
    if match:
        return f"buildkit {match[1]}"
    command = ["docker", "version", "--format", "docker {{.Server.Version}}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def load(layout: Path) -> None:
    """Give a layout to the engine, which reads archives only."""
    with subprocess.Popen(["docker", "load"], stdin=subprocess.PIPE) as engine:
        assert engine.stdin
        with tarfile.open(fileobj=engine.stdin, mode="w|") as archive:
            archive.add(layout, arcname=".")
    if engine.returncode:
        raise subprocess.CalledProcessError(engine.returncode, ["docker", "load"])


def save(name: str, layout: Path) -> None:
    """Unpack an image of the engine into a layout."""
    shutil.rmtree(layout, ignore_errors=True)
    layout.mkdir(parents=True)
    with subprocess.Popen(["docker", "save", name], stdout=subprocess.PIPE) as engine:
        subprocess.run(["tar", "-x", "-C", str(layout)], stdin=engine.stdout, check=True)
    if engine.returncode:
        raise subprocess.CalledProcessError(engine.returncode, ["docker", "save", name])


if __name__ == "__main__":
    sys.exit(main())
