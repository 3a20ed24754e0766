"""The command line as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, cwd=ROOT, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    if cwd != ROOT:
        environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


def test_a_plan_is_printed_without_importing_torch_and_changes_nothing(tmp_path):
    code = (
        "import sys; sys.argv = ['x', 'plan', 'ddp', '--json']\n"
        "from entrypoint.__main__ import main\n"
        "main()\n"
        "assert not {'torch', 'numpy', 'deepspeed', 'transformers'} & set(sys.modules), sys.modules\n"
    )
    environment = {**os.environ, "TRAIN_VOLUME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["recipe"]["name"] == "ddp"
    assert list(tmp_path.iterdir()) == []


def test_plan_takes_json_before_or_after_the_recipe(tmp_path):
    for arguments in (("plan", "--json", "ddp"), ("plan", "ddp", "--json"), ("plan", "--json")):
        answer = run(*arguments, TRAIN_VOLUME=str(tmp_path))
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["cluster"]["nodes"] == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "quoted"),
    [
        (("plan",), {"TRAIN_SCRIPTS": "ddp"}, 78, "TRAIN_SCRIPTS"),
        (("plan",), {"TRAIN_NODES": "two"}, 78, "two"),
        (("plan", "no-such-recipe"), {}, 78, "no-such-recipe"),
        (("plan", "--jsn"), {}, 78, "no such option: --jsn"),
        (("plan", "-m"), {}, 78, "no such option: -m"),
        (("train",), {}, 78, "nothing to train"),
        (("plan", "ddp", "--stepz", "3"), {}, 78, "--stepz"),
        (("plan",), {"TRAIN_SCRIPT": "ddp", "TRAIN_ARGS": "--data 'open"}, 78, "TRAIN_ARGS"),
        (("train", "/no/such/script.py"), {}, 78, "/no/such/script.py"),
        (("plan",), {"NUM_NODES": "2", "NODE_RANK": "1", "NUM_TRAINERS": "8"}, 78, "NUM_NODES"),
        (("plan",), {"WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.9"}, 78, "WORLD_SIZE"),
        (("no-such-command",), {}, 78, "no-such-command"),
        (("train", "ddp"), {"TRAIN_VOLUME": "/proc/nowhere"}, 69, "/proc/nowhere"),
    ],
)
def test_what_is_wrong_is_one_line_a_fix_and_the_promised_code(tmp_path, arguments, variables, code, quoted):
    answer = run(*arguments, **{"TRAIN_VOLUME": str(tmp_path), **variables})
    assert answer.returncode == code, answer.stderr
    assert quoted in answer.stderr
    assert "Traceback" not in answer.stderr
    if arguments[0] != "no-such-command":
        assert "fix:" in answer.stderr


def test_help_of_a_recipe_lists_its_options(tmp_path):
    answer = run("train", "ddp", "--help", TRAIN_VOLUME=str(tmp_path))
    assert answer.returncode == 0
    assert "--global-batch" in answer.stdout


def test_a_train_in_the_users_folder_shadows_nothing_of_ours(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong train')\n")
    (tmp_path / "options.py").write_text("raise SystemExit('the wrong options')\n")
    answer = run("plan", "ddp", "--steps", "3", cwd=tmp_path, TRAIN_VOLUME=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert "--steps 3" in answer.stdout


def test_a_module_is_named_as_python_takes_it(tmp_path):
    answer = run("plan", "--json", "-m", "package.module", "--flag", TRAIN_VOLUME=str(tmp_path))
    assert json.loads(answer.stdout)["command"][-3:] == ["-m", "package.module", "--flag"]


def test_recipe_and_arguments_may_come_from_variables(tmp_path):
    answer = run("plan", "--json", TRAIN_VOLUME=str(tmp_path), TRAIN_SCRIPT="ddp", TRAIN_ARGS="--steps 3")
    assert json.loads(answer.stdout)["command"][-2:] == ["--steps", "3"]


def test_a_name_that_does_not_resolve_is_waited_for_and_ends_with_68(tmp_path):
    variables = {"NUM_NODES": "2", "NODE_RANK": "1", "NUM_TRAINERS": "1", "MASTER_ADDR": "no-such-host.invalid"}
    answer = run("train", "ddp", TRAIN_VOLUME=str(tmp_path), TRAIN_WAIT="1", **variables)
    assert answer.returncode == 68, answer.stderr
    assert "no-such-host.invalid" in answer.stderr


def test_up_without_a_script_says_in_five_lines_what_it_is(tmp_path):
    answer = run("up", TRAIN_VOLUME=str(tmp_path))
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) == 5
    assert "train ddp" in answer.stdout


def test_up_with_a_script_runs_it_and_ends_with_its_code(tmp_path):
    (tmp_path / "mine.sh").write_text("echo rank $RANK of $WORLD_SIZE says $1; [ $RANK = 0 ] && exit 7; sleep 60\n")
    answer = run("up", TRAIN_VOLUME=str(tmp_path), TRAIN_SCRIPT=str(tmp_path / "mine.sh"), TRAIN_ARGS="'a b'")
    assert answer.returncode == 7, answer.stderr
    assert "rank 0 of 2 says a b" in answer.stdout


def test_status_lists_every_run_the_newest_first(tmp_path):
    answer = run("status", "--all", TRAIN_VOLUME=str(tmp_path))
    assert (answer.returncode, answer.stdout) == (0, "no run yet\n"), answer.stderr
    assert run("status", "--all", "--json", TRAIN_VOLUME=str(tmp_path)).stdout == "[]\n"
    for age, name in enumerate(("new", "old", "oldest")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text("{}")
        os.utime(folder / "plan.json", (1e9 - age, 1e9 - age))
    answer = run("status", "--all", TRAIN_VOLUME=str(tmp_path))
    assert answer.stdout.splitlines() == ["new: lost", "old: lost", "oldest: lost"], answer.stderr
