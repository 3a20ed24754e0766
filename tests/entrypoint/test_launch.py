"""What is made ready before a launch, without torch; real processes are in test_exit_codes.py."""

from pathlib import Path

import pytest

from entrypoint import launch, report
from entrypoint.capture import replay_facts
from entrypoint.environment import read_environment
from entrypoint.plan import Draft, Plan
from entrypoint.recipes import choose_recipe
from entrypoint.request import read_request
from entrypoint.restarts import Outcome
from entrypoint.run_folder import RunFolder
from entrypoint.tally import Report

LAPTOP = Path(__file__).resolve().parents[1] / "machines" / "laptop"


def planned(volume: Path) -> tuple[Plan, Draft]:
    given = {"TRAIN_VOLUME": str(volume)}
    recipe = choose_recipe("ddp", base=volume)
    facts = replay_facts(LAPTOP)
    draft = Draft(read_environment(given), facts, read_request(given), recipe, given, volume)
    return draft.plan(), draft


def test_the_end_of_an_earlier_start_is_not_taken_for_this_ones(tmp_path):
    run = tmp_path / "runs" / "ddp"
    run.mkdir(parents=True)
    (run / "exit.json").write_text('{"exit_code": 1}')
    (run / "stop").touch()
    start = launch.open_run(*planned(tmp_path), say=pytest.fail)
    assert start.lock is not None
    start.lock.release()
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "logs", "plan.json"]


def test_a_full_volume_does_not_hide_the_trainings_own_code(tmp_path, monkeypatch, capsys):
    start = launch.open_run(*planned(tmp_path), say=pytest.fail)
    monkeypatch.setattr(launch, "run_attempt", lambda *_: Report(Outcome(42, "first to fail")))
    (start.folder.path / "exit.json").mkdir()  # any reason for which it cannot be written
    assert launch.train(start, {}) == 42
    assert "exit.json could not be written" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.partial"))


def test_the_token_is_for_the_roll_call_alone(tmp_path):
    plan, _ = planned(tmp_path)
    given = {"TRAIN_TOKEN": "hidden", "HOME": "/root"}
    environment = launch.child_environment(plan, given, RunFolder(tmp_path / "runs" / "ddp"), attempt=0)
    assert environment["HOME"] == "/root"
    assert "hidden" not in environment.values()
    given = {"TRAIN_VOLUME": str(tmp_path), "TRAIN_TOKEN": "hidden"}
    draft = Draft(read_environment(given), replay_facts(LAPTOP), read_request(given), None, given, tmp_path)
    assert "hidden" not in repr(draft) + repr(draft.plan()) + report.to_json(draft.plan(), {})
