import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch
process_group = pytest.importorskip("process_group")

LAUNCHED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (LAUNCHED, (3, 1, 4)),
        ({}, (0, 0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 0, 1)),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, (0, 0, 1)),
    ],
)
def test_ranks_come_from_the_launcher_alone(variables, expected):
    assert process_group.read_ranks(variables) == expected


@pytest.mark.parametrize("missing", ["LOCAL_RANK", "RANK", "MASTER_ADDR"])
def test_a_pods_world_size_without_a_launcher_does_not_wait_for_peers(missing):
    variables = {name: value for name, value in LAUNCHED.items() if name != missing}
    with pytest.raises(process_group.Problem, match="WORLD_SIZE=4") as caught:
        process_group.read_ranks(variables)
    assert missing in caught.value.problem
    assert "torchrun" in caught.value.fix


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["ddp", "fsdp", "zero", "hf"])
def test_a_recipe_that_is_run_by_hand_in_a_pod_ends_at_once(recipe, tmp_path):
    """env-02: torch would wait ten minutes for fifteen others."""
    pod = {"RANK": "0", "WORLD_SIZE": "16", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = subprocess.run(
        [sys.executable, ROOT / "train" / f"{recipe}.py", "--steps", "1"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TRAIN_RUN_DIR": str(tmp_path / "run"), **pod},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 78, done.stderr
    assert "error: RANK=0, WORLD_SIZE=16, MASTER_ADDR=127.0.0.1, MASTER_PORT=29500 without LOCAL_RANK" in done.stderr
    assert "fix: start it with `roundhouse train`" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_rank_that_is_no_number_is_quoted(name):
    with pytest.raises(process_group.Problem, match=f"{name}='one' is not a number"):
        process_group.read_ranks({**LAUNCHED, name: "one"})
