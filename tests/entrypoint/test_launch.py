"""What is made ready before a launch, without torch; real processes are in tests/train/test_ddp.py."""

from pathlib import Path

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
