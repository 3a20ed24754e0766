"""The command, for people and for programs; and what it says of captured machines."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from mounts import as_root, hung, tmpfs

from entrypoint.capture import replay_facts
from entrypoint.check_examined import Cache, CudaStart, Examined
from entrypoint.doctor import SUBJECTS, diagnose, exit_code, to_json, to_text
from entrypoint.environment import read_environment
from entrypoint.errors import SettingError
from entrypoint.facts import Software
from entrypoint.plan import all_checks, make_plan
from entrypoint.request import read_request
from entrypoint.volume import Trial

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CU13 = Software(torch="2.13.0+cu130", torch_cuda="13.0", deepspeed="0.19.8", ops=("cpu_adam",), ops_torch="2.13")
FINE = Trial("/workspace", user_id=0, owner=0, total_bytes=10**12, free_bytes=10**12, intact=True, replaces=True,
             lock="works", write_seconds=0.01, clock_offset=0.0, write_bytes_per_second=1e9)  # fmt: skip


def doctor(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", "doctor", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/root", **variables},
        capture_output=True,
        text=True,
    )


def of(machine, examined, variables=None, **changes):
    given = {"TRAIN_VOLUME": "/workspace", **(variables or {})}
    facts = replace(replay_facts(TESTS / "machines" / machine), **changes)
    request = read_request(given)
    plan = make_plan(read_environment(given), facts, request, None, variables=given, base=Path("/"))
    found = all_checks(plan.cluster, facts, request, given, plan.directories.volume, is_process=False)
    return diagnose(facts, examined, plan=plan, found=found, problem=None), facts


GOOD = Examined(
    trial=FINE,
    topology=(TESTS / "topologies" / "h100-sxm-nics.txt").read_text(),
    cuda=CudaStart(0, 8),
    clock_synchronized=True,
    tmux="/usr/bin/tmux",
    caches=(Cache("HF_HOME", "/workspace/cache/huggingface", 10**12, None, True),),
)


def test_a_good_machine_is_told_in_a_line_a_subject():
    checks, _ = of("h100-infiniband", GOOD, software=CU13, cpu_quota=None)
    assert exit_code(checks) == 0
    text = to_text(checks)
    assert not [line for line in text.splitlines() if line.startswith(("stop", "warn"))]
    assert "NVLink between all 8 GPUs (NV18)" in " ".join(text.split())
    assert text.splitlines()[-1].startswith("0 stop, 0 warn, ")
    assert all(len(line) <= 110 for line in text.splitlines())
    assert len(to_text(checks, every=True).splitlines()) == len(checks) + 1


def test_problems_come_first_each_with_its_fix():
    bad = replace(GOOD, cuda=CudaStart(802), trial=replace(FINE, free_bytes=10**8))
    checks, _ = of("h100-infiniband", bad, software=replace(CU13, ops=()), shm_bytes=64 << 20)
    lines = to_text(checks).splitlines()
    words = [line.split()[0] for line in lines if line[:1].strip()][:-1]
    assert words == sorted(words, key=("stop", "warn", "ok", "n/a").index)
    assert words.count("stop") == 1
    assert lines[0].startswith("stop  gpu")
    assert "system not yet initialized" in lines[0]
    assert sum("fix:" in line for line in lines) == words.count("stop") + words.count("warn")
    assert exit_code(checks) == 69


def test_a_question_is_told_once_and_its_problem_wins():
    closed = replace(GOOD, trial=replace(FINE, failed="write", errno="EACCES", error="Permission denied"))
    checks, _ = of("h100-infiniband", closed, software=CU13)
    assert [check.level for check in checks if check.name == "volume.writable"] == ["stop"]


def test_without_a_plan_the_reason_is_told_and_the_machine_all_the_same():
    facts = replay_facts(TESTS / "machines" / "laptop")
    problem = SettingError("NODE_RANK=7 is outside 0..1", fix="give every node its own")
    checks = diagnose(facts, Examined(), plan=None, found=(), problem=problem)
    assert (checks[0].name, checks[0].level, checks[0].fix) == ("plan.problem", "stop", "give every node its own")
    assert len(checks) > 1


def test_programs_get_stable_keys():
    checks, facts = of("h100-infiniband", GOOD, software=CU13)
    document = json.loads(to_json(checks, facts))
    assert list(document) == ["host", "exit_code", "counts", "checks"]
    assert list(document["counts"]) == ["stop", "warn", "ok", "n/a"]
    assert all(list(check) == ["subject", "name", "level", "text", "fix", "value"] for check in document["checks"])
    assert all(check["name"].startswith(f"{check['subject']}.") for check in document["checks"])
    assert {check["subject"] for check in document["checks"]} <= set(SUBJECTS)
    # Every check that the guides tell a reader to do by hand, and more; a program may count on these names.
    assert {check["name"] for check in document["checks"]} >= {
        *("gpu.count", "gpu.driver", "gpu.cuda", "gpu.p2p", "gpu.fabric", "gpu.links", "gpu.clocks"),
        *("rdma.devices", "rdma.distance", "network.interface", "network.hostname", "network.port"),
        *("volume.mount", "volume.writable", "volume.rename", "volume.lock", "volume.space", "volume.speed"),
        *("memory.shm", "memory.ram", "cpu.cores", "limits.memlock", "limits.stack", "limits.files"),
        *("software.torch", "software.nccl", "software.deepspeed", "software.ops"),
        *("cache.HF_HOME", "clock.offset", "tools.container", "tools.tmux"),
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("eth2", "NCCL_SOCKET_IFNAME=eth2 matches no interface here (there are lo 127.0.0.1/8, "),
        ("^docker0", "NCCL_SOCKET_IFNAME=^docker0 lets lo be taken, which leads to no other node; replaced by =ens1"),
    ],
)
def test_what_the_plan_replaces_is_told(value, said):
    """nic-03 and nic-08."""
    two = {"NUM_NODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.65.0.3", "NUM_TRAINERS": "8"}
    checks, _ = of("runpod-cluster", GOOD, {**two, "NCCL_SOCKET_IFNAME": value}, software=CU13)
    (check,) = [check for check in checks if "NCCL_SOCKET_IFNAME" in check.text]
    assert check.level == "warn"
    assert check.text.startswith(said)
    assert "ens1 10.65.0.2/24" in check.text or value != "eth2"
    assert check.fix == "unset NCCL_SOCKET_IFNAME"


def test_why_other_interfaces_are_not_used_is_told():
    """nic-13"""
    two = {"NUM_NODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.5.0.4", "NUM_TRAINERS": "1"}
    checks, _ = of("veth-link-local", GOOD, two, software=CU13)
    (found,) = [check for check in checks if check.name == "network.interface"]
    assert found.text.startswith("ens1: the route to the primary 10.5.0.4 leaves from ")
    assert "; not ens2: down, or without a carrier" in found.text
    assert "; not veth8a1f0c2: no address but a link-local one" in found.text
    assert "not lo" not in found.text


def test_limits_and_cores_are_this_process_own(tmp_path):
    limited = 'ulimit -l 64 && exec taskset -c "$(taskset -cp $$ | grep -o "[0-9]*$")" "$@"'
    answer = subprocess.run(
        ["bash", "-c", limited, "bash", sys.executable, "-m", "entrypoint", "doctor", "--json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/root", "TRAIN_VOLUME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    found = {check["name"]: check for check in json.loads(answer.stdout)["checks"]}
    assert found["limits.memlock"]["value"] == 65536
    assert found["cpu.cores"]["value"] == 1


def test_this_machine_is_looked_at_and_left_as_it_was(tmp_path):
    answer = doctor("--json", TRAIN_VOLUME=str(tmp_path), TMPDIR=str(tmp_path))
    document = json.loads(answer.stdout)
    assert answer.returncode == document["exit_code"], answer.stderr
    levels = {check["name"]: check["level"] for check in document["checks"]}
    assert levels["volume.writable"] == levels["volume.rename"] == levels["volume.lock"] == "ok"
    caches = [check for check in document["checks"] if check["name"].startswith("cache.") and "path" in check["value"]]
    assert caches
    assert all(check["value"]["free"] > 0 and "free)" in check["text"] for check in caches)
    assert list(tmp_path.iterdir()) == []


def test_it_imports_no_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['x', 'doctor', 'ddp', '--json']\n"
        "from entrypoint.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'deepspeed', 'transformers'} & set(sys.modules), sys.modules\n"
    )
    environment = {**os.environ, "TRAIN_VOLUME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


def test_a_wrong_setting_does_not_keep_it_from_looking(tmp_path):
    answer = doctor(TRAIN_VOLUME=str(tmp_path), TRAIN_NODES="two")
    assert answer.returncode == 69
    assert answer.stdout.startswith("stop  plan     TRAIN_NODES=")
    subjects = {line[6:14].strip() for line in answer.stdout.splitlines()}
    assert {"volume", "memory", "cpu", "limits", "software", "clock", "tools"} <= subjects


def test_a_recipe_tells_how_much_room_a_checkpoint_wants(tmp_path):
    answer = doctor("ddp", "--model-size", "8b", "--json", TRAIN_VOLUME=str(tmp_path))
    document = json.loads(answer.stdout)
    (space,) = [check for check in document["checks"] if check["name"] == "volume.space"]
    assert "a checkpoint takes about 78 GiB" in space["text"]


@as_root
def test_a_full_volume_ends_with_69(tmp_path):
    with tmpfs(tmp_path / "volume", "size=4k") as volume:
        answer = doctor(TRAIN_VOLUME=str(volume))
    assert answer.returncode == 69
    assert "ENOSPC" in answer.stdout
    assert answer.stdout.count("stop  volume") == 1


@as_root
def test_a_hung_volume_is_told_and_not_waited_for(tmp_path):
    with hung(tmp_path / "volume") as volume:
        began = time.monotonic()
        answer = doctor(TRAIN_VOLUME=str(volume))
        took = time.monotonic() - began
    assert answer.returncode == 69, answer.stderr
    assert "does not answer" in answer.stdout
    assert took < 30


@as_root
@pytest.mark.parametrize("size", ["64m", "4m"])
def test_a_small_dev_shm_is_told_with_its_size_and_the_flag(size, tmp_path):
    """rt-01, with the real /dev/shm of a mount namespace."""
    command = f'mount -t tmpfs -o size={size} tmpfs /dev/shm; exec "$@"'
    answer = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", sys.executable, "-m", "entrypoint", "doctor"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "TRAIN_VOLUME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert f"/dev/shm has {size[:-1]} MiB" in answer.stdout
    assert "--shm-size" in answer.stdout
