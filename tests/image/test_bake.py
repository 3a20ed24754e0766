"""The version table: what is published, what it is made of, and that nothing repeats it. Needs buildx, no engine."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
BAKE = (ROOT / "docker-bake.hcl").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()

buildx = pytest.mark.skipif(
    not shutil.which("docker") or subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode != 0,
    reason="docker buildx is not installed",
)


def bake(*targets: str, **variables: str) -> dict[str, Any]:
    """What buildx would build, by target."""
    done = subprocess.run(
        ["docker", "buildx", "bake", "--print", *targets],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "DOCKER_CONFIG": os.environ.get("DOCKER_CONFIG", ""), **variables},
    )
    found = json.loads(done.stdout)["target"]
    assert isinstance(found, dict)
    return found


def script(name: str) -> Any:
    """image/NAME.py as a module: `build` is also the name of a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "image" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked(name: str) -> dict[str, str]:
    text = (REQUIREMENTS / name).read_text()
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))


@buildx
@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_row_has_a_lock_and_the_versions_that_are_in_it(target):
    arguments = bake(target)[target]["args"]
    lock = locked(f"{arguments['VARIANT']}.txt")
    assert lock["torch"] == arguments["TORCH"]
    if target == "cuda":
        assert lock["cuda-toolkit"].startswith(arguments["CUDA"] + ".")
        assert {name for name in lock if name.startswith("nvidia-nccl")} == {"nvidia-nccl-cu13"}
    else:
        assert arguments["CUDA"] == arguments["TORCH_CUDA_ARCH_LIST"] == ""


@buildx
def test_what_is_built_by_default_is_cuda():
    assert list(bake()) == ["cuda"]


@buildx
def test_each_gpu_since_the_a100_has_code():
    assert bake("cuda")["cuda"]["args"]["TORCH_CUDA_ARCH_LIST"].split(";") == [
        "8.0",
        "8.6",
        "8.9",
        "9.0",
        "10.0",
        "12.0+PTX",
    ]


@buildx
def test_releases_have_a_name_that_no_later_one_takes_and_attestations():
    released = bake("release")
    assert set(released) == {"release-cuda", "release-cpu"}
    tags = [tag for target in released.values() for tag in target["tags"]]
    assert len(tags) == len(set(tags))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for tag in tags:
        assert re.fullmatch(rf"ghcr\.io/[\w-]+/roundhouse:{re.escape(version)}(-[\w.-]+)?", tag), tag
    for target in released.values():
        assert {"type=sbom", "type=provenance,mode=max"} <= set(target["attest"])
        assert "rewrite-timestamp=true" in target["output"][0]


@buildx
def test_the_public_name_is_one_variable():
    tags = bake("release", IMAGE="registry.example/team/roundhouse")["release-cpu"]["tags"]
    assert tags
    assert all(tag.startswith("registry.example/team/roundhouse:") for tag in tags)


@buildx
def test_builds_of_a_developer_have_no_attestation_since_it_holds_the_time():
    assert bake("cpu")["cpu"]["attest"] == ["type=provenance,disabled=true"]


@buildx
def test_the_date_of_all_files_and_of_the_label_is_that_of_the_lock():
    target = bake("cuda")["cuda"]
    created = datetime.fromisoformat(target["labels"]["org.opencontainers.image.created"])
    assert created.timestamp() == int(target["args"]["SOURCE_DATE_EPOCH"])
    assert created.time().isoformat() == "00:00:00"


@buildx
@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_labels_say_what_an_image_was_built_from_so_that_it_can_be_built_again(target, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "image")
    variables = {
        "REVISION": "0" * 40,
        "VERSION": "9.9.9",
        "DS_OPS_CPU": "CPU_ADAM SHM_COMM",
        "DS_OPS_CUDA": "FUSED_ADAM CPU_ADAM UTILS",
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "SOURCE_DATE_EPOCH": "1750000000",
    }
    first = bake(target, **variables)[target]
    again = bake(target, **script("build").recorded(first["labels"]))[target]
    assert again == first
    assert bake(target)[target]["args"] != first["args"]


@buildx
def test_inputs_are_empty_unless_given_and_then_reach_the_build(tmp_path):
    plain = bake("cpu")["cpu"]
    assert set(plain["contexts"]) == {"base"}
    assert "secret" not in plain
    inputs = {"WHEELHOUSE": "/wheels", "DEBS": "/debs", "DEEPSPEED": "/deepspeed", "BASE": "target:rootfs"}
    ca, pip = tmp_path / "ca.pem", tmp_path / "pip.conf"
    ca.touch()
    pip.touch()
    given = bake("cpu", **inputs, CA_BUNDLE=str(ca), PIP_CONF=str(pip))["cpu"]
    assert given["contexts"] == {
        "base": "target:rootfs",
        "wheelhouse": "/wheels",
        "debs": "/debs",
        "deepspeed": "/deepspeed",
    }
    assert given["secret"] == [f"id=ca,src={ca}", f"id=pip,src={pip}"]


@buildx
def test_what_is_given_to_a_build_is_declared_in_it():
    declared = set(" ".join(re.findall(r"^ARG (.*)$", DOCKERFILE, re.MULTILINE)).split())
    names = {each.partition("=")[0] for each in declared}
    for target in bake("cuda", "cpu").values():
        assert set(target["args"]) <= names


def test_secrets_are_mounted_and_never_copied():
    assert re.findall(r"^(?:ARG|ENV) .*(?:TOKEN|PASSWORD|SECRET)", DOCKERFILE, re.MULTILINE) == []
    assert re.findall(r"^ADD ", DOCKERFILE, re.MULTILINE) == []
    assert set(re.findall(r"--mount=type=secret,id=(\w+)", DOCKERFILE)) == {"ca", "pip"}


def test_torch_is_there_before_deepspeed_is_compiled():
    assert "FROM torch-${VARIANT} AS deepspeed-build" in DOCKERFILE
    assert "--no-build-isolation" in (ROOT / "image" / "deepspeed_wheel.sh").read_text()


def test_a_lock_of_other_packages_compiles_no_op_again():
    stage = DOCKERFILE.partition("AS deepspeed-build\n")[2].partition("\nFROM ")[0]
    read = set(re.findall(r"(?:source=|COPY )(requirements[^ ,]*)", stage))
    assert read == {"requirements/cpu.txt", "requirements/cuda.txt", "requirements/${VARIANT}.txt"}


def test_the_toolkit_is_of_the_cuda_release_that_torch_pins():
    release = ".".join(locked("cuda.txt")["cuda-toolkit"].split(".")[:2])
    toolkit = locked("toolkit.txt")
    assert set(toolkit) == {"nvidia-cuda-nvcc", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-nvvm"}
    assert {".".join(version.split(".")[:2]) for version in toolkit.values()} == {release}


@pytest.mark.parametrize("variant", ["cuda", "cpu"])
def test_pip_is_held_to_one_version_of_each_package_or_it_could_install_nothing_that_wants_numpy(variant):
    locks = [REQUIREMENTS / f"{variant}.txt", REQUIREMENTS / "toolkit.txt"]
    done = subprocess.run(
        [sys.executable, ROOT / "image" / "constraints.py", *locks], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    held = dict(line.split("==") for line in lines)
    assert len(held) == len(lines), lines
    assert lines == sorted(lines)
    assert {"torch", "deepspeed", "accelerate", "numpy", "nvidia-cuda-nvcc"} <= held.keys()
    assert variant == "cpu" or {"triton", "cuda-toolkit", "nvidia-nccl-cu13"} <= held.keys()
    assert {name for name in locked(f"{variant}.txt") if name.startswith("nvidia-")} <= held.keys()
    assert held["numpy"] == importlib.metadata.version("numpy")


def test_no_package_is_in_two_locks_of_one_image():
    assert not locked("image.txt").keys() & locked("cuda.txt").keys()
    assert not locked("toolkit.txt").keys() & locked("cuda.txt").keys()


def test_the_lock_of_debian_packages_has_what_the_image_asks_for():
    asked = set(re.findall(r"^[a-z0-9][a-z0-9.+-]*", (ROOT / "image" / "packages.txt").read_text(), re.MULTILINE))
    lines = (REQUIREMENTS / "debs.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9.+-]+ \S+ [0-9a-f]{64}", line) for line in lines)
    assert asked - {"ca-certificates"} <= {line.split()[0] for line in lines}


def test_the_context_of_the_build_is_what_goes_into_the_image():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} >= {"entrypoint", "train", "templates", "LICENSE"}


def test_no_file_is_in_the_context_that_no_step_reads_for_its_change_would_build_all_again():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    names = subprocess.run(["git", "ls-files", "image", "requirements"], cwd=ROOT, capture_output=True, text=True)
    sent = {name for name in names.stdout.split() if not any(fnmatch(name, pattern) for pattern in ignored[2:])}
    readers = [DOCKERFILE, *((ROOT / "image" / name).read_text() for name in ("product.sh", "build_info.py"))]
    read = "\n".join(readers).replace("${VARIANT}.txt", "cpu.txt cuda.txt")
    assert {name for name in sent if Path(name).name not in read} == set()
    assert {"requirements/cuda.txt", "image/product.sh"} <= sent


def test_the_table_of_the_readme_is_the_version_table():
    table = script("table")
    assert {row["name"] for row in table.rows()} >= {"cuda", "cpu"}
    assert table.markdown_table() in (ROOT / "README.md").read_text()


@buildx
def test_a_row_without_a_lock_is_not_built():
    assert {name.removeprefix("release-") for name in bake("release")} == {"cuda", "cpu"}
    assert re.findall(r'name = "(\w+)".*lock = ""', BAKE) == ["cuda12", "next"]


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb here")
@pytest.mark.parametrize(
    ("lock", "base", "strict", "code", "told"),
    [
        (["mine 1"], [], "1", 0, False),
        ([], ["mine 1"], "1", 0, False),  # of a larger base
        (["mine 1", "gone 2"], [], "1", 0, False),  # of a smaller one
        ([], [], "0", 0, True),
        ([], [], "1", 1, True),
        (["mine 2"], [], "1", 1, True),
    ],
)
def test_a_debian_package_that_no_lock_has_is_told_and_refused_if_asked(tmp_path, lock, base, strict, code, told):
    control = tmp_path / "mine" / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text("Package: mine\nVersion: 1\nArchitecture: all\nMaintainer: us\nDescription: ours\n")
    (tmp_path / "debs").mkdir()
    deb = tmp_path / "debs" / "mine.deb"
    subprocess.run(["dpkg-deb", "--build", tmp_path / "mine", deb], check=True, capture_output=True)
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    for name, lines in (("debs.txt", lock), ("base.txt", base)):
        (tmp_path / name).write_text("".join(f"{line} {digest}\n" for line in lines))
    command = [ROOT / "image" / "check_debs.sh", tmp_path / "debs", tmp_path / "debs.txt", tmp_path / "base.txt"]
    done = subprocess.run(command, env={**os.environ, "DEBS_LOCKED": strict}, capture_output=True, text=True)
    assert done.returncode == code
    assert (f"mine 1 {digest}" in done.stderr) == told
    assert done.stdout == ("" if code else f"mine 1 {digest}\n")


def test_what_a_builder_chooses_is_in_no_step_of_the_image():
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    parents = {stage.split()[2]: (stage.split()[0], stage) for stage in stages if " AS " in stage.splitlines()[0]}
    lineage, name = [], "image"
    for variant in ("cpu", "cuda"):
        name = "image"
        while name in parents:
            name, stage = parents[name][0].replace("${VARIANT}", variant), parents[name][1]
            lineage.append(stage)
    assert len(lineage) == 2 * 5  # image, packages, torch, venv, system
    for argument in ("DEBS_LOCKED", "TORCH_CPU_INDEX", "SNAPSHOT", "MAX_JOBS"):
        assert any(argument in stage for stage in stages)
        assert not any(argument in stage for stage in lineage)
