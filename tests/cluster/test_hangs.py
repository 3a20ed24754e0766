"""A hang over two real nodes: each leaves its traces on the volume, and the last words of both name the rank."""

import pytest
import trial

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow]
STUCK = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(trial.ROOT / "train")!r})
import process_group
import torch
import torch.distributed as dist

def lost_in_thought():
    time.sleep(3600)

rank = process_group.start().rank
for step in range(1, 4):
    dist.all_reduce(torch.ones(1000))
    if rank == 0:
        Path(os.environ["TRAIN_STEP_FILE"]).write_text(str(step))
if rank == 1:
    lost_in_thought()
dist.all_reduce(torch.ones(1000))
"""


def test_the_rank_that_was_behind_is_named_on_all_nodes(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(STUCK)
    variables = {"TRAIN_RESTARTS": "1"}
    with trial.Trial(tmp_path, 2, script, program=trial.IMPATIENT, variables=variables) as run:
        run.start()
        assert run.finish() == [137, 137], run.text()
    logs = run.run / "logs" / "attempt-0"
    assert {path.name for path in logs.glob("*.trace-*")} == {"n0.trace-0.gloo.json", "n1.trace-1.gloo.json"}
    for node in range(2):
        assert "rank 1 is behind: last in number 3 (gloo:all_reduce), while rank 0 waited in number 4" in run.text(node)
    assert "in lost_in_thought" in run.text(0)
