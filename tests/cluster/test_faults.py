"""A run loses a node, hangs, is cut in two: it goes on by itself, and its losses are those of an undisturbed run."""

import time

import pytest
import trial
from faults import FAULTS

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow]


def check(run, undisturbed):
    """All nodes ended well, every step was made, and each as if nothing had happened."""
    assert run.finish() == [0] * len(run.nodes.nodes), run.text()
    made = {}
    for record in run.records():
        made.setdefault(record["step"], []).append(record["loss"])
    assert sorted(made) == sorted(undisturbed)
    for step, losses in made.items():
        assert losses == pytest.approx([undisturbed[step]] * len(losses), rel=1e-4), step


@pytest.mark.parametrize(
    ("fault", "nodes"),
    [("killed", 2), ("primary_lost", 3), ("moved", 3), ("unplugged", 2), ("partition", 4), ("stopped", 2)],
)
def test_the_run_goes_on_after(fault, nodes, tmp_path, undisturbed, record_property):
    with trial.Trial(tmp_path, nodes, program=trial.program_for(fault)) as run:
        run.start()
        run.wait_for_hold()
        at = FAULTS[fault](
            run
        )  # not released: in the seconds that a lost attempt has left it would make its last steps
        record_property("seconds_to_next_step", round(run.wait_for_recovery(at), 1))  # goals are bench/recovery.py's
        check(run, undisturbed)
    again = [record["step"] for record in run.records() if record["attempt"] == 1]
    assert again[0] == trial.HOLD + 1, again  # nothing was lost, and nothing done for nothing


def test_a_cut_that_is_shorter_than_the_silence_costs_no_attempt(tmp_path, undisturbed):
    with trial.Trial(tmp_path, 2) as run:
        run.start()
        run.wait_for_hold()
        run.networks.cut(1)
        time.sleep(5)
        run.networks.heal(1)
        run.release()
        check(run, undisturbed)
    assert {record["attempt"] for record in run.records()} == {0}


def test_a_recipe_goes_on_too(tmp_path):
    options = ["--steps", 150, "--seq-length", 16, "--global-batch", 2, "--save-every", 5, "--log-every", 1]
    with trial.Trial(tmp_path, 2, "ddp", *options, "--eval-every", 1000000) as run:
        run.start()
        run.wait_for_step(8)
        FAULTS["killed"](run)
        assert run.finish() == [0, 0], run.text()
    losses = {}
    for record in run.records():
        losses.setdefault(record["step"], []).append(record["loss"])
    assert sorted(losses) == list(range(1, 151))
    twice = [both for both in losses.values() if len(both) > 1]
    assert twice, "no step was done again"
    assert all(both == pytest.approx([both[0]] * len(both), rel=1e-5) for both in twice)


def test_who_fails_again_and_again_without_progress_is_stuck_on_all_nodes(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import os, pathlib, time\n"
        "if os.environ['RANK'] == '0': pathlib.Path(os.environ['TRAIN_STEP_FILE']).write_text('1')\n"
        "time.sleep(1.5)\n"
        "if os.environ['RANK'] == '1': raise SystemExit(9)\n"
        "time.sleep(1000)\n"
    )
    with trial.Trial(tmp_path, 2, script, variables={"TRAIN_RESTARTS": "2"}) as run:
        run.start()
        assert run.finish() == [76, 76], run.text()
    for node in range(2):
        assert "node 1 rank 1, exit code 9" in run.text(node)
        assert "no new complete checkpoint in 2 attempts" in run.text(node)
