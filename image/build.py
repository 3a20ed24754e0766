"""`make image`, `reproduce`, `verify`, `debs` and `release`: builds, and compares what two builds gave.

python image/build.py image VARIANT         # build, and give it to the engine as roundhouse:VARIANT
python image/build.py reproduce VARIANT     # twice, no cache, two checkouts; the first is given to the engine
python image/build.py verify IMAGE          # build what IMAGE's labels say it was built from
python image/build.py bake TARGET...        # other targets of docker-bake.hcl, with what is known here: the commit, the
                                            # builder, the base of `make base`; options of buildx may be among them

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
from datetime import datetime
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
INPUTS = ("ROOTFS", "WHEELHOUSE", "DEBS", "DEEPSPEED", "CA_BUNDLE", "PIP_CONF")  # that may be paths
EXPORT = "rewrite-timestamp=true,oci-mediatypes=true,compression=gzip,force-compression=true"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("image", "reproduce", "verify", "bake"))
    parser.add_argument("words", metavar="VARIANT, IMAGE or TARGET", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command, words = arguments.command, arguments.words
    if not words or (command != "bake" and len(words) > 1):
        parser.error(f"{command} wants one {'TARGET or more' if command == 'bake' else 'name'}")
    try:
        if command == "bake":
            return other(words)
        return {"image": image, "verify": verify, "reproduce": reproduce}[command](words[0])
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
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        # No cache: the layers that this engine built before would be compared with themselves.
        build(variant, Path(folder), ours, ["--no-cache"], recorded(labels))
    rebuilt = oci.read_image(ours)
    if labels.get("roundhouse.builder") == builder() and not published.unpacked:
        same = oci.compare(published, rebuilt)
    else:  # another BuildKit may compress to other bytes, and says so in a label: what is unpacked decides
        kept = ", kept unpacked by this engine" if published.unpacked else ""
        print(f"built by {labels.get('roundhouse.builder')}{kept}, here by {builder()}: layers are compared unpacked")
        same = [layer.diff_id for layer in published.layers] == [layer.diff_id for layer in rebuilt.layers]
        if not same:
            oci.compare(published, rebuilt)
    print(f"{name}: {'is what its commit builds' if same else 'is not what its commit builds here'}")
    return 0 if same else 1


def other(words: Sequence[str]) -> int:
    revision = described_revision()
    if any(word.startswith("release") for word in words) and revision.endswith("-dirty"):
        print(f"error: {revision} is no commit, so nobody could verify that release\nfix: commit or undo the changes")
        return 78
    command, environment = bake(words)
    os.execvpe(command[0], command, environment)  # who ends this process means buildx


def recorded(labels: Mapping[str, str]) -> dict[str, str]:
    """The variables of docker-bake.hcl that an image was built with, as far as its labels say."""
    found = {name: labels[label] for label, names in RECORDED.items() if label in labels for name in names}
    if created := labels.get("org.opencontainers.image.created"):
        found["SOURCE_DATE_EPOCH"] = str(int(datetime.fromisoformat(created).timestamp()))
    return found


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
    start = time.monotonic()
    print(f"building {variant} in {checkout}", flush=True)
    output = f"--set={variant}.output=type=oci,dest={layout},tar=false,{EXPORT}"
    command, environment = bake([*options, variant, output], variables)
    subprocess.run(command, cwd=checkout, check=True, env=environment)
    print(f"built {variant} in {time.monotonic() - start:.0f} s", flush=True)


def bake(words: Sequence[str], variables: Mapping[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    """The command and its environment: what is known here, over that the environment's own, over both `variables`."""
    given = {"REVISION": described_revision(), "BUILDER": builder(), "ROOTFS": str(BUILDS / "base")}
    if (BUILDS / "base" / "rootfs.tar").exists():
        given["BASE"] = "target:rootfs"
    # Buildx asks before a bake file reads or writes outside of its own folder (since 0.20) or takes the host's network
    # (since 0.17), and fails where nobody can answer. These files are ours, and who set NETWORK has answered.
    given["BUILDX_BAKE_ENTITLEMENTS_FS"] = "0"
    environment = {**given, **os.environ, **(variables or {})}
    for name in INPUTS:  # buildx runs in a copy of the checkout, from where DEBS=build/debs leads nowhere
        if (path := environment.get(name)) and Path(path).exists():
            environment[name] = str(Path(path).resolve())
    command = ["docker", "buildx", "bake", "--progress=plain", *words]
    if environment.get("NETWORK") == "host" and "--allow " in run_text("docker", "buildx", "bake", "--help"):
        command.append("--allow=network.host")
    return command, environment


def described_revision() -> str:
    """The commit, with -dirty behind it if files that git knows were changed."""
    return run_text("git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty").strip()


def builder() -> str:
    """Which BuildKit builds: its own version, or the engine's if it is built into that and does not know it."""
    text = run_text("docker", "buildx", "inspect")
    match = re.search(r"^Buildkit(?: version)?: *v([1-9]\S*|0\.[1-9]\S*)", text, re.MULTILINE | re.IGNORECASE)
    if match:
        return f"buildkit {match[1]}"
    return run_text("docker", "version", "--format", "docker {{.Server.Version}}").strip()


def run_text(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


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
