"""What each launcher is told, and that a process under it is what it would be under any other."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint.cluster import Cluster
from entrypoint.errors import SettingError
from entrypoint.launchers import choose_launcher
from entrypoint.recipes import choose_recipe

ROOT = Path(__file__).resolve().parents[2]
TWO_NODES = Cluster("runpod-cluster", 2, 1, 4, 8, "10.65.0.2", 29500, "10.65.0.3", (), {})
ONE_NODE = Cluster("none", 1, 0, 2, 2, "127.0.0.1", 29500, None, (), {})
MINE = choose_recipe("/my.py", ("--steps", "3"), base=Path("/"))


def test_accelerate_counts_processes_over_all_nodes():
    launcher = choose_launcher("accelerate", MINE, TWO_NODES, "10.65.0.2", gpus=4)
    words = set(launcher.words)
    assert {"--num_processes=8", "--num_machines=2", "--machine_rank=1", "--main_process_ip=10.65.0.2"} <= words
    assert launcher.command[-3:] == ("/my.py", "--steps", "3")
    config = next(word.partition("=")[2] for word in launcher.words if word.startswith("--config_file"))
    assert "distributed_type: MULTI_GPU" in Path(config).read_text()


def test_accelerate_without_gpus_is_started_by_torchrun_since_its_command_would_start_one_process():
    launcher = choose_launcher("accelerate", MINE, ONE_NODE, "127.0.0.1", gpus=0)
    assert launcher.words[0] == "torchrun"
    assert [(setting.name, setting.value) for setting in launcher.settings] == [("ACCELERATE_USE_CPU", "true")]


def test_deepspeeds_own_launcher_is_for_one_node():
    launcher = choose_launcher("deepspeed", MINE, ONE_NODE, "127.0.0.1", gpus=2)
    assert launcher.words[:2] == ("deepspeed", "--num_gpus=2")
    with pytest.raises(SettingError, match="TRAIN_LAUNCHER=deepspeed with 2 nodes"):
        choose_launcher("deepspeed", MINE, TWO_NODES, "10.65.0.2", gpus=4)


@pytest.mark.parametrize("name", ["accelerate", "deepspeed"])
def test_only_torchrun_starts_programs_that_are_no_python(name):
    from dataclasses import replace

    with pytest.raises(SettingError, match="starts Python scripts"):
        choose_launcher(name, replace(MINE, interpreter=("bash",)), ONE_NODE, "127.0.0.1", gpus=2)


ACCELERATED = """
import json, os, sys
from accelerate import Accelerator
accelerator = Accelerator()
kind = str(accelerator.distributed_type)
told = {"world": accelerator.num_processes, "kind": kind, "rank": accelerator.process_index}
print("TOLD", json.dumps(told), flush=True)
accelerator.end_training()
"""
PLAIN = """
import os, sys
print("TOLD", os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
sys.exit(int(sys.argv[1]) if os.environ["RANK"] == "1" else 0)
"""


def train(tmp_path, text, *arguments, **variables):
    script = tmp_path / "my script.py"
    script.write_text(text)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TRAIN_VOLUME": str(tmp_path), **variables}
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", "train", str(script), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.torch
def test_an_accelerate_script_runs_as_so_many_processes_as_were_planned(tmp_path):
    done = train(tmp_path, ACCELERATED, TRAIN_LAUNCHER="accelerate", TRAIN_NPROC="2")
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line.partition("TOLD ")[2]) for line in done.stdout.splitlines() if "TOLD " in line]
    assert sorted(one["rank"] for one in told) == [0, 1]
    assert {(one["world"], one["kind"]) for one in told} == {(2, "DistributedType.MULTI_CPU")}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("code", [0, 42])
def test_a_script_under_deepspeeds_launcher_keeps_its_exit_code(tmp_path, code):
    done = train(tmp_path, PLAIN, str(code), "a b", TRAIN_LAUNCHER="deepspeed", TRAIN_NPROC="2")
    assert done.returncode == code, done.stdout + done.stderr
    assert "TOLD 0 2" in done.stdout
    assert "TOLD 1 2" in done.stdout
    assert "a b" in done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_accelerates_own_command_starts_the_processes_under_our_keeper(tmp_path):
    """As on GPUs, which are not here: its command with the keeper around a script that needs none."""
    from entrypoint.attempt import _child_command

    script = tmp_path / "my.py"
    script.write_text(PLAIN)
    recipe = choose_recipe(str(script), ("0",), base=tmp_path)
    launcher = choose_launcher("accelerate", recipe, ONE_NODE, "127.0.0.1", gpus=2)
    environment = {**os.environ, "TRAIN_RUN_DIR": str(tmp_path)}
    subprocess.run(
        _child_command(launcher, tmp_path, tmp_path / "outcome.json"), env=environment, check=True, timeout=300
    )
    logs = {path.name: path.read_text() for path in tmp_path.glob("n0r*.log")}
    assert logs.keys() == {"n0r0.log", "n0r1.log"}
    assert "TOLD 1 2" in logs["n0r1.log"]


@pytest.mark.slow
@pytest.mark.torch
def test_accelerates_own_command_makes_one_world_of_two_nodes(tmp_path):
    """l-14: two processes a node, of which it must be told four."""
    from entrypoint.attempt import _child_command

    script = tmp_path / "my.py"
    script.write_text(PLAIN)
    recipe = choose_recipe(str(script), ("0",), base=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {**os.environ, "TRAIN_RUN_DIR": str(tmp_path)}
    nodes = []
    for rank in range(2):
        cluster = Cluster("none", 2, rank, 2, 4, "127.0.0.1", port, None, (), {})
        launcher = choose_launcher("accelerate", recipe, cluster, "127.0.0.1", gpus=2)
        command = _child_command(launcher, tmp_path, tmp_path / f"outcome-{rank}.json")
        nodes.append(subprocess.Popen(command, env=environment))
    assert [node.wait(300) for node in nodes] == [0, 0]
    told = {path.name: path.read_text().split()[1:3] for path in tmp_path.glob("n*.log")}
    expected = {f"n{rank // 2}r{rank % 2}.log": [str(rank), "4"] for rank in range(4)}
    assert told == expected
