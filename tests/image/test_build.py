"""What image/build.py says to buildx: a `docker` that writes down how it was called stands for the engine."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from leave_out import leave_out

ROOT = Path(__file__).resolve().parents[2]
DOCKER = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
if words == ["buildx", "inspect"]:
    print("Name: it\\nBuildKit version: v0.25.1")
elif words == ["buildx", "bake", "--help"]:
    print(os.environ["HELP"])
else:
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps([words, dict(os.environ)]) + "\\n")
"""
OLD, NEW = "  --builder string   of buildx 0.13", "  --allow stringArray   of buildx 0.29"


@pytest.fixture
def build(tmp_path):
    """Runs image/build.py; the exit code, what it said, and each call of `docker`: its words and its environment."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER)
    program.chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()

    def run(*words, buildx=NEW, checkout=ROOT, folder=ROOT, **variables):
        environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "CALLS": str(calls)}
        done = subprocess.run(
            [sys.executable, checkout / "image" / "build.py", *words],
            env={**environment, "HELP": buildx, **variables},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, [json.loads(line) for line in calls.read_text().splitlines()]

    return run


@pytest.fixture
def checkout(tmp_path):
    """A commit of this program alone."""
    folder = tmp_path / "checkout"
    (folder / "image").mkdir(parents=True)
    for name in ("build.py", "oci.py"):
        (folder / "image" / name).write_text((ROOT / "image" / name).read_text())
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")):
        subprocess.run(["git", "-C", folder, *words], check=True)
    return folder


def test_a_release_is_told_its_commit_and_its_builder_or_nobody_could_verify_it(build, checkout):
    code, said, [[words, environment]] = build("bake", "--metadata-file", "a.json", "release-cpu", checkout=checkout)
    assert code == 0, said
    assert words == ["buildx", "bake", "--progress=plain", "--metadata-file", "a.json", "release-cpu"]
    assert re.fullmatch("[0-9a-f]{40}", environment["REVISION"])
    assert environment["BUILDER"] == "buildkit 0.25.1"


def test_what_is_in_no_commit_is_not_released(build, checkout):
    (checkout / "image" / "oci.py").write_text("")
    code, said, calls = build("bake", "release", checkout=checkout)
    assert (code, calls) == (78, [])
    assert "-dirty is no commit" in said
    assert "fix: " in said


@pytest.mark.parametrize(
    ("network", "buildx", "allowed"),
    [("host", NEW, ["--allow=network.host"]), ("host", OLD, []), ("default", NEW, []), (None, NEW, [])],
)
def test_buildx_is_told_what_it_would_otherwise_ask_a_person(build, network, buildx, allowed):
    given = {} if network is None else {"NETWORK": network}
    code, said, [[words, environment]] = build("bake", "debs", buildx=buildx, **given)
    assert code == 0, said
    assert words == ["buildx", "bake", "--progress=plain", "debs", *allowed]
    assert environment["BUILDX_BAKE_ENTITLEMENTS_FS"] == "0"


@pytest.mark.parametrize("rootfs", [True, False])
def test_a_base_that_was_made_is_taken_for_every_target_unless_another_is_named(build, checkout, rootfs):
    if rootfs:
        (checkout / "build" / "base").mkdir(parents=True)
        (checkout / "build" / "base" / "rootfs.tar").touch()
    build("bake", "debs", checkout=checkout)
    _, _, calls = build("bake", "debs", checkout=checkout, BASE="docker-image://other")
    assert [environment.get("BASE") for _, environment in calls] == [
        "target:rootfs" if rootfs else None,
        "docker-image://other",
    ]


def test_a_path_means_the_folder_where_it_was_typed_and_not_the_copy_that_is_built(build, tmp_path):
    (tmp_path / "debs").mkdir()
    given = {"DEBS": "debs", "WHEELHOUSE": "", "DEEPSPEED": "docker-image://other", "CA_BUNDLE": "/dev/null"}
    code, said, [[_, environment]] = build("bake", "debs", folder=tmp_path, **given)
    assert code == 0, said
    assert {name: environment[name] for name in given} == {**given, "DEBS": f"{tmp_path}/debs"}


@pytest.mark.parametrize("words", [[], ["image"], ["bake"], ["image", "cpu", "cuda"], ["other", "cpu"]])
def test_a_wrong_call_builds_nothing(build, words):
    code, said, calls = build(*words)
    assert (code, calls) == (2, [])
    assert "usage:" in said


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("apt-get"), reason="wants root, and apt")
def test_debian_of_one_day_has_the_security_updates_that_the_lock_has(tmp_path):
    # The real script with the real apt, whose folders are others; the archive does not exist, so it ends after asking.
    for name in ("etc", "lists", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "etc" / "sources.list.d").mkdir()
    (tmp_path / "etc" / "sources.list.d" / "debian.sources").write_text("as the official image has it")
    binds = f"mount --bind {tmp_path}/etc /etc/apt && mount --bind {tmp_path}/lists /var/lib/apt/lists"
    archive = f"file://{tmp_path}/archive/debian/20261129T000000Z"
    script = f'{binds} && exec {ROOT}/image/debs.sh "$0" {tmp_path}/out'
    command = ["unshare", "--mount", "bash", "-c", script, ROOT / "image" / "packages.txt"]
    done = subprocess.run(command, env={**os.environ, "SNAPSHOT": archive}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert list((tmp_path / "etc" / "sources.list.d").iterdir()) == []
    assert (tmp_path / "etc" / "sources.list").read_text().splitlines() == [
        f"deb [check-valid-until=no] {archive} bookworm main",
        f"deb [check-valid-until=no] {archive} bookworm-updates main",
        f"deb [check-valid-until=no] {archive.replace('/debian/', '/debian-security/')} bookworm-security main",
    ]


@pytest.mark.image
def test_a_base_that_was_made_has_nothing_of_the_machine_that_made_it():
    if not (path := ROOT / "build" / "base" / "rootfs.tar").exists():
        leave_out("no base: make base")
    with tarfile.open(path) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
    assert "etc/debian_version" in names
    assert not names & {"etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/hosts"}
