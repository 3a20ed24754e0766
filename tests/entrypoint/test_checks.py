"""Facts of machines → answers: what warns, what stops, what does not apply. One row a question and machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.capture import replay_facts
from entrypoint.check_examined import BuildLock, CudaStart, check_cuda, check_links, check_locks
from entrypoint.checks import check
from entrypoint.cluster import make_cluster
from entrypoint.devices import visible_gpus
from entrypoint.environment import read_environment
from entrypoint.facts import Facts, Software

TESTS = Path(__file__).resolve().parents[1]
GIB = 1 << 30
CU13 = Software(torch="2.13.0+cu130", torch_cuda="13.0", nccl="2.29.3", nccl_wanted="2.29.3", deepspeed="0.19.8",
                ops=("cpu_adam", "fused_adam"), ops_torch="2.13", ops_cuda="13.0", python="3.11")  # fmt: skip
TWO = {"NUM_NODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.65.0.2", "NUM_TRAINERS": "8"}


def facts(machine: str, gpu: dict | None = None, **changes) -> Facts:
    found = replay_facts(TESTS / "machines" / machine)
    if gpu is not None:
        first, *rest = found.gpus
        found = replace(found, gpus=(replace(first, **gpu), *rest))
    return replace(found, **changes)


def answers(
    seen: Facts, variables: dict[str, str] | None = None, *, named: bool = True, chosen: bool = False, meeting_port=None
):
    gpus = len(visible_gpus(None, seen.gpus or ()))
    cluster = make_cluster(read_environment(variables or {}), gpus, seen.listening_ports)
    return check(cluster, seen, gpus=gpus, chosen=chosen, named=named, is_process=False, meeting_port=meeting_port)


def level(found, name: str):
    return [each.level for each in found if each.name == name]


# fmt: off
ROWS = [
    # A driver that is too old for torch's CUDA, before torch is imported (img-01).
    ("gpu.driver", "stop", facts("h100-infiniband", software=CU13, driver_version="570.86.15", driver_cuda="12.8"),
     "driver 570.86.15 speaks CUDA 12.8; torch 2.13.0+cu130 is built with CUDA 13.0, which wants driver 580 or later"),
    ("gpu.driver", "stop", facts("h100-infiniband", software=CU13, driver_version="525.60.13", driver_cuda=None),
     "wants driver 580"),
    ("gpu.driver", "stop", facts("vast-overlay", software=replace(CU13, torch="2.8.0+cu128", torch_cuda="12.8"),
                                 driver_version="470.256.02", driver_cuda="11.4"), "wants driver 525 or later"),
    ("gpu.driver", "ok", facts("h100-infiniband", software=CU13), "driver 580.65.06 speaks CUDA 13.0"),
    # A compatibility package raises what the driver speaks above its branch; a newer driver runs older CUDA.
    ("gpu.driver", "ok", facts("h100-infiniband", software=CU13, driver_version="570.86.15", driver_cuda="13.0"), ""),
    ("gpu.driver", "ok", facts("h100-infiniband", software=replace(CU13, torch_cuda="12.8")), ""),
    ("gpu.driver", "ok", facts("h100-infiniband", software=None, driver_version="470.1"), ""),
    ("gpu.torch", "stop", facts("h100-infiniband", software=Software(torch="2.13.0+cpu")), "built without CUDA"),
    ("gpu.torch", "stop", facts("h100-infiniband", {"capability": "7.0", "name": "Tesla V100"}, software=CU13),
     "compute capability 7.0; CUDA 13.0 begins with 7.5"),
    ("gpu.torch", None, facts("h100-infiniband", {"capability": "9.0"}, software=CU13), ""),
    ("gpu.torch", None, facts("h100-infiniband", {"capability": "7.0"}, software=replace(CU13, torch_cuda="12.8")), ""),
    # img-02
    ("gpu.ops", "warn", facts("h100-infiniband", {"capability": "10.0"},
                              software=replace(CU13, architectures=("8.0", "9.0"))),
     "has compute capability 10.0; DeepSpeed's ops were built for 8.0 9.0"),
    ("gpu.ops", None, facts("h100-infiniband", {"capability": "12.0"},
                            software=replace(CU13, architectures=("8.0", "9.0+PTX"))), ""),
    ("gpu.health", "stop", facts("gpu-lost"), "GPU 2 does not answer: GPU is lost"),
    ("gpu.count", "warn", facts("driver-without-nvml"), "NVML does not answer"),
    ("gpu.count", "n/a", facts("laptop"), "no GPU"),
    ("gpu.fabric", "ok", facts("h100-infiniband"), "completed"),
    ("gpu.fabric", "warn", facts("h100-infiniband", {"fabric_state": "in progress"}), "system not yet initialized"),
    ("gpu.memory", "warn", facts("h100-infiniband", {"remap_failed": True}), "no spare rows"),
    ("gpu.memory", "warn", facts("h100-infiniband", {"remap_pending": True}), "waits for a reset"),
    ("gpu.memory", "warn", facts("h100-infiniband", {"ecc_uncorrected": 3}), "3 memory errors"),
    ("gpu.memory", "ok", facts("h100-infiniband", {"ecc_uncorrected": 0}), "no memory errors"),
    ("gpu.memory", None, facts("h100-infiniband"), ""),  # the card does not say
    ("gpu.clocks", "warn", facts("h100-infiniband", {"throttled": ("power brake",)}), "GPU 0 (power brake)"),
    ("gpu.models", "warn", facts("h100-infiniband", {"name": "NVIDIA A100"}), "NVIDIA A100, NVIDIA H100"),
    ("gpu.mig", "warn", facts("h100-infiniband", {"mig_enabled": True}), "without an instance"),
    ("gpu.mig", "warn", facts("a100-mig"), "without an instance"),
    ("gpu.mig", "ok", facts("h100-infiniband", {"mig_enabled": True, "mig": ("MIG-1",)}), "one instance"),
    # /dev/shm is what may be put there, not what df says (tp-02), and Docker's 64 MiB are too little (rt-01).
    ("memory.shm", "ok", facts("pod-memory-shm"), "/dev/shm 32 GiB"),
    ("memory.shm", "warn", facts("container-two-cores"), "/dev/shm has 64 MiB"),
    ("memory.shm", "warn", facts("h100-infiniband", shm_bytes=512 << 20), "1 GiB or more"),
    ("memory.ram", "ok", facts("h100-infiniband", memory_bytes=256 * GIB), "little room for offload"),
    # rt-02: a limit matters with RDMA only.
    ("limits.memlock", "warn", facts("h100-infiniband", memlock_bytes=65536), "65536 bytes"),
    ("limits.memlock", "n/a", facts("laptop", memlock_bytes=65536), "only with RDMA"),
    ("limits.stack", "warn", facts("laptop", stack_bytes=1 << 20), "1 MiB"),
    ("limits.stack", "ok", facts("laptop", stack_bytes=None), "unlimited"),
    ("limits.files", "warn", facts("h100-infiniband", open_files=1024), "1024 open files"),
    ("limits.files", "ok", facts("laptop", open_files=1024), ""),
    ("cpu.cores", "ok", facts("laptop"), "8 cores for 2 processes"),
    ("cpu.cores", "warn", facts("h100-infiniband", cpu_quota=16.0), "16 cores of 224 (quota) for 8 processes"),
    ("cpu.cores", "warn", facts("h100-infiniband", cpu_quota=4.0), "1 OpenMP threads"),
    ("rdma.devices", "ok", facts("h100-infiniband"), "RDMA ports active"),
    ("rdma.devices", "warn", facts("rdma-without-device"), "cannot be opened"),
    ("rdma.devices", "n/a", facts("laptop"), "no RDMA device"),
    ("network.hostname", "ok", facts("bond-and-vlan"), "does not resolve"),
    ("network.hostname", "ok", facts("laptop"), "amber is 127.0.1.1"),
    ("software.torch", "stop", facts("laptop", software=Software()), "not installed"),
    ("software.nccl", "ok", facts("laptop", software=CU13), "NCCL 2.29.3"),
    ("software.nccl", "warn", facts("laptop", software=replace(CU13, nccl="2.28.3")), "tested with 2.29.3"),
    ("software.nccl", "n/a", facts("laptop", software=Software(torch="2.13.0+cpu")), "no NCCL"),
    ("software.ops", "ok", facts("laptop", software=CU13), "2 prebuilt ops"),
    ("software.ops", "warn", facts("laptop", software=replace(CU13, torch="2.14.1+cu130")), "built for torch 2.13"),
    ("software.ops", "warn", facts("laptop", software=replace(CU13, torch_cuda="12.8")), "built for CUDA 13.0"),
    ("software.ops", "warn", facts("laptop", software=replace(CU13, ops_promised=("async_io",))), "async_io"),
    ("software.ops", "warn", facts("laptop", software=replace(CU13, ops=())), "no prebuilt ops"),
]
# fmt: on


@pytest.mark.parametrize(("name", "expected", "seen", "words"), ROWS, ids=lambda value: str(value)[:24])
def test_a_question_is_answered(name, expected, seen, words):
    found = answers(seen)
    assert level(found, name)[:1] == ([] if expected is None else [expected])
    if expected is not None:
        first = next(each for each in found if each.name == name)
        assert words in first.text
        assert bool(first.fix) == (expected in ("warn", "stop"))


@pytest.mark.parametrize(("driver", "speaks", "other"), [("570.86.15", "12.8", "12.x"), ("525.60.13", None, "12.x")])
def test_who_rents_too_old_a_driver_is_told_what_to_filter_by(driver, speaks, other):
    """nvidia-docker#1515"""
    seen = facts("vast-overlay", software=CU13, driver_version=driver, driver_cuda=speaks)
    (found,) = [each for each in answers(seen) if each.name == "gpu.driver"]
    assert "driver 580 or later (the filter is often called CUDA 13.0)" in found.fix
    assert f"a torch built with CUDA {other}" in found.fix


def test_a_lost_gpu_does_not_stop_who_has_chosen_the_others():
    assert level(answers(facts("gpu-lost"), chosen=True), "gpu.health") == ["warn"]


@pytest.mark.parametrize(("rank", "taken", "expected"), [("0", 29501, "warn"), ("0", 29500, "ok"), ("1", 29501, "n/a")])
def test_a_taken_meeting_port_is_told_on_the_primary_only(rank, taken, expected):
    seen = facts("runpod-cluster", listening_ports=(taken,))
    assert level(answers(seen, {**TWO, "NODE_RANK": rank}, meeting_port=29501), "network.port") == [expected]


def test_several_nodes_want_a_volume_of_their_own_unless_a_person_named_the_folder():
    seen = facts("runpod-cluster", container="docker")
    seen = replace(seen, volume=replace(seen.volume, mounted=False, filesystem="overlay", mount_point="/"))
    assert level(answers(seen, TWO, named=False), "volume.mount") == ["stop"]
    assert level(answers(seen, TWO, named=True), "volume.mount") == ["warn"]


def test_what_stops_comes_first():
    levels = [each.level for each in answers(facts("gpu-lost"))]
    assert levels == sorted(levels, key=("stop", "warn", "ok", "n/a").index)


@pytest.mark.parametrize(
    ("start", "expected", "words"),
    [
        (CudaStart(0, 8), {"gpu.cuda": "ok", "gpu.p2p": "ok"}, "all 28 pairs"),
        (CudaStart(0, 1), {"gpu.cuda": "ok"}, "sees 1"),
        (CudaStart(0, 2, apart=((0, 1),)), {"gpu.cuda": "ok", "gpu.p2p": "warn"}, "1 of 1 pairs"),
        (CudaStart(802), {"gpu.cuda": "stop"}, "system not yet initialized"),
        (CudaStart(804), {"gpu.cuda": "stop"}, "compatibility library"),
        (CudaStart(123), {"gpu.cuda": "stop"}, "error 123"),
        (CudaStart(error="no answer in 60 s"), {"gpu.cuda": "stop"}, "no answer in 60 s"),
        (None, {}, ""),
    ],
)
def test_how_cuda_starts_is_told(start, expected, words):
    found = list(check_cuda(start))
    assert {each.name: each.level for each in found} == expected
    assert words in " ".join(each.text for each in found)


@pytest.mark.parametrize(
    ("machine", "gpu", "matrix", "expected", "words"),
    [
        ("h100-infiniband", {}, "h100-sxm-nics", "ok", "between all 8 GPUs (NV18)"),
        ("h100-infiniband", {}, "eight-phb-old", "warn", "built for NVLink, but no NVLink"),
        ("vast-overlay", {}, "two-5090", "warn", "no NVLink"),
        ("h100-infiniband", {"mig_enabled": True}, "h100-sxm-nics", "ok", "not between MIG instances"),
        ("h100-infiniband", {}, None, "n/a", "does not tell"),
        ("vast-overlay", {}, "one-gpu", "ok", "one GPU"),
    ],
)
def test_links_are_judged_by_what_the_cards_are_built_for(machine, gpu, matrix, expected, words):
    text = (TESTS / "topologies" / f"{matrix}.txt").read_text() if matrix else None
    found = [each for each in check_links(text, facts(machine, gpu)) if each.name == "gpu.links"]
    assert [each.level for each in found] == [expected]
    assert words in found[0].text


def test_without_gpus_there_are_no_links():
    assert list(check_links(None, facts("laptop"))) == []


@pytest.mark.parametrize(
    ("lock", "expected"),
    [
        (BuildLock("/c/op/lock", 9000.0, held=True), []),
        (BuildLock("/c/op/lock", 60.0, held=False), ["warn"]),
        (BuildLock("/c/op/lock", 9000.0, held=False), ["stop"]),
    ],
)
def test_a_lock_that_nobody_holds_is_found_before_everybody_waits_for_it(lock, expected):
    assert [each.level for each in check_locks((lock,))] == expected
