"""Folders of tests/machines → facts, whole; then what must hold for any machine, and for the one at hand."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entrypoint.capture import replay, replay_facts
from entrypoint.facts import Facts
from entrypoint.probe import probe
from entrypoint.probe_machine import Files

MACHINES = Path(__file__).parents[1] / "machines"
NAMES = sorted(folder.name for folder in MACHINES.iterdir() if folder.is_dir())


def as_lists(facts: Facts) -> dict[str, Any]:
    names = [field.name for field in fields(Facts)]
    return dict(zip(names, json.loads(json.dumps(astuple(facts))), strict=True))


def facts_of(name: str) -> Facts:
    return replay_facts(MACHINES / name)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_gives_its_facts(name: str) -> None:
    assert as_lists(facts_of(name)) == json.loads((MACHINES / name / "expected.json").read_text())


CLAIMS: list[tuple[str, str, Callable[[Facts], Any], Any]] = [
    ("affinity and quota are two facts", "container-two-cores", lambda f: (f.cpus, f.cpu_quota), (64, 2.0)),
    ("the smallest limit of all cgroups above counts", "slurm-step", lambda f: f.memory_bytes, 96 << 30),
    (
        "v1's number for no limit is none",
        "vm-cgroup-v1",
        lambda f: (f.cpu_quota, f.memory_bytes),
        (None, 49368184 << 10),
    ),
    ("v1 paths count from the host's top", "docker-cgroup-v1", lambda f: (f.cpu_quota, f.memory_bytes), (1.5, 4 << 30)),
    ("shared memory is no more than the pod's", "pod-memory-shm", lambda f: f.shm_bytes, 32 << 30),
    ("no answer is not an empty answer", "pod-memory-shm", lambda f: f.hostname_addresses, None),
    ("a name without an address is empty", "bond-and-vlan", lambda f: f.hostname_addresses, ()),
    ("a folder of the root file system is no mount", "container-two-cores", lambda f: f.volume.mounted, False),
    ("a folder of a mount is", "slurm-step", lambda f: (f.volume.mounted, f.volume.filesystem), (True, "lustre")),
    ("a silent server is not a missing folder", "nfs-server-gone", lambda f: f.volume.exists, None),
    ("no driver means no GPU", "laptop", lambda f: f.gpus, ()),
    ("a driver without NVML is not a machine without GPUs", "driver-without-nvml", lambda f: f.gpus, None),
    ("the kernel's file names the driver", "driver-without-nvml", lambda f: f.driver_version, "580.65.06"),
    (
        "MIG instances are listed",
        "a100-mig",
        lambda f: [(g.mig_enabled, len(g.mig)) for g in f.gpus or ()],
        [(True, 2), (True, 0)],
    ),
    (
        "a lost GPU keeps its place",
        "gpu-lost",
        lambda f: [g.error for g in f.gpus or ()],
        [None, None, "GPU is lost", None],
    ),
    (
        "an unfinished fabric is seen",
        "grace-blackwell",
        lambda f: {g.fabric_state for g in f.gpus or ()},
        {"in progress"},
    ),
    ("an unlimited memlock is None", "h100-infiniband", lambda f: f.memlock_bytes, None),
]


@pytest.mark.parametrize(("name", "look", "expected"), [pytest.param(*row[1:], id=row[0]) for row in CLAIMS])
def test_a_trap_is_seen(name: str, look: Callable[[Facts], Any], expected: object) -> None:
    assert look(facts_of(name)) == expected


@pytest.mark.parametrize(
    ("path", "text", "container"),
    [
        ("/proc/1/cgroup", "0::/init.scope", None),
        ("/proc/1/cgroup", "11:memory:/kubepods/burstable/pod1/docker", "kubernetes"),
        ("/proc/1/cgroup", "1:name=systemd:/docker/3f1c", "docker"),
        ("/proc/1/cgroup", "0::/machine.slice/libpod-1a2b.scope", "podman"),
        ("/proc/1/cgroup", "0::/lxc.payload.web", "lxc"),
        ("/run/systemd/container", "systemd-nspawn", "systemd-nspawn"),
        ("/run/systemd/container", "<not a word>", None),
        ("/.singularity.d/runscript", "", "apptainer"),
        ("/var/run/secrets/kubernetes.io/serviceaccount/namespace", "default", "kubernetes"),
    ],
)
def test_a_container_is_known_by_its_marks(path: str, text: str, container: str | None, tmp_path: Path) -> None:
    place = tmp_path / path.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(text)
    machine = replace(replay(MACHINES / "cloud-vm-virtio"), files=Files(tmp_path))
    assert probe(Path("/workspace"), machine=machine).container == container


def test_a_machine_whose_files_say_nothing_still_gives_facts(tmp_path: Path) -> None:
    facts = probe(Path("/workspace"), machine=replace(replay(MACHINES / "h100-infiniband"), files=Files(tmp_path)))
    assert (facts.cpu_quota, facts.memory_bytes, facts.rdma, facts.volume.mounted) == (None, None, (), None)
    assert [interface.name for interface in facts.interfaces][:2] == ["lo", "eth0"]


GARBAGE = st.one_of(
    st.just(None),  # a folder in its place: reading fails with an OSError
    st.binary(max_size=64),
    st.text(alphabet="0123456789-+.e_ \n:/,max", max_size=40).map(str.encode),
    st.sampled_from([b"", b"9" * 5000, b"nan Gb/sec", b"0::/../../..", b"::\n:\n", b"\xff\xfe\x00", b"-1 0", b"1 0"]),
    st.sampled_from([b"1 2 3 / \\000 rw - cgroup2 x y", b"1 2 3 / / rw - cgroup x memory,cpu", b"a - b", b" - \n - "]),
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("garbage")


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(["slurm-step", "docker-cgroup-v1", "coreweave-pod", "bond-and-vlan"]))
def test_garbage_in_any_file_breaks_nothing(data: st.DataObject, name: str, scratch: Path) -> None:
    shutil.rmtree(scratch)
    shutil.copytree(MACHINES / name, scratch, symlinks=True)
    for file in sorted(path for path in scratch.rglob("*") if path.is_file() and path.suffix != ".json"):
        garbage = data.draw(st.one_of(GARBAGE, st.just(file.read_bytes())))
        file.unlink()
        if garbage is None:
            file.mkdir()
        else:
            file.write_bytes(garbage)
    facts = replay_facts(scratch)
    assert json.dumps(as_lists(facts), allow_nan=False)
    assert facts.cpu_quota is None or facts.cpu_quota > 0
    assert facts.memory_bytes is None or facts.memory_bytes > 0
    assert (facts.hostname, facts.cpus) == (facts_of(name).hostname, facts_of(name).cpus)


def test_this_machine_gives_sane_facts() -> None:
    facts = probe(Path("/"), targets=("127.0.0.1", "no.name.is.asked"))
    assert "loopback" in {interface.kind for interface in facts.interfaces if interface.name == "lo"}
    assert facts.cpus >= 1
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 0
    assert facts.routes == (("127.0.0.1", "127.0.0.1"),)
    assert facts.volume.exists is True
    assert facts.volume.mounted is not True  # in a chroot its own root is not among the mounts: unknown
    assert as_lists(facts)


WATCHED_PROBE = """
import os, sys
from pathlib import Path
from entrypoint.probe import probe

def watch(event, arguments):
    if event == "open" and arguments[2] is not None and arguments[2] & (os.O_CREAT | os.O_TRUNC | os.O_APPEND):
        print("wrote", arguments)
    if event in ("os.mkdir", "os.remove", "os.rename", "os.chmod", "subprocess.Popen", "os.exec", "os.putenv"):
        print(event, arguments)

sys.addaudithook(watch)
probe(Path("/"), targets=("127.0.0.1",))
"""


def test_probing_changes_nothing_and_starts_nothing() -> None:
    command = [sys.executable, "-B", "-c", WATCHED_PROBE]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
