"""A hang over two real nodes: each leaves its traces on the volume, and the last words of both name the rank."""

import pytest
import trial
from stuck import OF_OURS

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow]


def test_the_rank_that_was_behind_is_named_on_all_nodes(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(OF_OURS)
    variables = {"TRAIN_RESTARTS": "1"}
    with trial.Trial(tmp_path, 2, script, program=trial.IMPATIENT, variables=variables) as run:
        run.start()
        assert run.finish() == [137, 137], run.text()
    logs = run.run / "logs" / "attempt-0"
    assert {path.name for path in logs.glob("*.trace-*")} == {"n0.trace-0.gloo.json", "n1.trace-1.gloo.json"}
    for node in range(2):
        assert "rank 1 is behind: last in number 3 (gloo:all_reduce), while rank 0 waited in number 4" in run.text(node)
    assert "in lost_in_thought" in run.text(0)
