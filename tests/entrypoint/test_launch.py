"""What is made ready before a launch, without torch; real processes are in tests/train/test_ddp.py."""

import time
from pathlib import Path

import pytest

from entrypoint import launch
from entrypoint.capture import replay_facts
from entrypoint.environment import read_environment
from entrypoint.plan import Plan, make_plan
from entrypoint.recipes import choose_recipe
from entrypoint.request import read_request

LAPTOP = Path(__file__).resolve().parents[1] / "machines" / "laptop"


def planned(volume: Path, script: str = "ddp", **variables: str) -> Plan:
    given = {"TRAIN_VOLUME": str(volume), **variables}
    recipe = choose_recipe(script, base=volume)
    facts = replay_facts(LAPTOP)
    return make_plan(read_environment(given), facts, read_request(given), recipe, variables=given, base=volume)


def test_the_end_of_an_earlier_start_is_not_taken_for_this_ones(tmp_path):
    run = tmp_path / "runs" / "ddp"
    run.mkdir(parents=True)
    for left in ("exit.json", "stop"):
        (run / left).touch()
    launch._prepare(planned(tmp_path))
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "logs", "plan.json"]


def test_a_full_volume_does_not_hide_the_trainings_own_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launch, "_attend", lambda *_: launch.Outcome(42))
    plan = planned(tmp_path)
    (launch._prepare(plan).run / "exit.json").mkdir()  # any reason for which it cannot be written
    monkeypatch.setattr(launch, "_prepare", lambda plan: launch._named(plan.directories))
    assert launch.run(plan, {}) == 42
    assert "exit.json could not be written" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.partial"))


FAILED = '{"exit_code": 42, "rank": 1, "local_rank": 1, "message": ""}'


@pytest.mark.parametrize(
    ("told", "child_code", "asked", "code", "text"),
    [
        ('{"exit_code": 0}', 0, False, 0, None),
        (FAILED, 42, False, 42, "first to fail: node 0 rank 1, exit code 42"),
        ('{"exit_code": 143, "stopped": true}', 143, True, 143, None),
        ('{"exit_code": 143, "rank": 0, "local_rank": 0, "message": ""}', 143, False, 143, None),  # by the stop file
        (None, -9, False, 137, "the launcher itself ended with 137"),
        (None, 0, False, 70, "the launcher itself ended with 70"),
        ("{", 1, False, 1, "the launcher itself ended with 1"),
        (None, -9, True, 137, "killed by a second Ctrl-C: what was not saved by then is lost"),
    ],
)
def test_an_end_is_told_as_it_was(tmp_path, told, child_code, asked, code, text):
    path = tmp_path / "outcome.json"
    if told is not None:
        path.write_text(told)
    outcome = launch._outcome(path, child_code, planned(tmp_path), time.monotonic() if asked else None)
    assert (outcome.exit_code, outcome.text) == (code, text)


def test_a_training_that_does_not_leave_in_time_was_killed(tmp_path):
    outcome = launch._outcome(tmp_path / "none", 0, planned(tmp_path, TRAIN_GRACE="1"), time.monotonic() - 2)
    assert outcome.exit_code == 137
    assert "TRAIN_GRACE" in (outcome.text or "")
