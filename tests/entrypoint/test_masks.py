"""Secrets stay where they are: not in what is shown, not in the run's folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import runs

from entrypoint.masks import HIDDEN, mask, mask_words, secrets_of

# The secret of every platform and library that a pod knows, each with a value of its own.
NAMES = (
    *("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RUNPOD_API_KEY", "CONTAINER_API_KEY", "VAST_API_KEY"),
    *("JUPYTER_PASSWORD", "JUPYTER_TOKEN", "JUPYTER_LAB_PASSWORD", "OPEN_BUTTON_TOKEN", "TRAIN_TOKEN"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_PASSWORD", "NEPTUNE_API_TOKEN", "COMET_API_KEY"),
    *("GITHUB_TOKEN", "OPENAI_API_KEY", "SKYPILOT_API_KEY", "RUNPOD_SECRET_mine"),
)
SECRETS = {name: f"s3cret-{number:02}-{name[::-1]}" for number, name in enumerate(NAMES)}
URL = "https://someone:hunter2@git.example/x.git"
PUBLIC = {"TRAIN_RUN": "own", "TOKENIZERS_PARALLELISM": "false", "SSH_KEY_FILE": "/etc/keys/one"}


def test_every_planted_name_is_known_for_a_secret_and_others_are_not():
    assert set(secrets_of(SECRETS)) == set(SECRETS.values())
    assert secrets_of(PUBLIC) == ()
    assert secrets_of({"A_TOKEN": "abc", "B_TOKEN": ""}) == ()  # too short to be told from a word


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["--token", "abcd", "--steps", "3"], ["--token", HIDDEN, "--steps", "3"]),
        (["--wandb-api-key=abcd"], [f"--wandb-api-key={HIDDEN}"]),
        (["--password", "--not-an-option"], ["--password", HIDDEN]),
        (["--url", URL], ["--url", f"https://{HIDDEN}@git.example/x.git"]),
        (["--tokenizer", "gpt2", "--max-tokens=9"], ["--tokenizer", "gpt2", "--max-tokens=9"]),
        (["x=the secret here"], [f"x=the {HIDDEN} here"]),
    ],
)
def test_words_of_a_command(words, masked):
    assert mask_words(words, ["secret"]) == masked


def test_a_secret_in_another_is_hidden_whole():
    secrets = secrets_of({"A_KEY": "abcd", "B_KEY": "abcdefgh"})
    assert mask({"a": ["x abcdefgh", 3, None, {"b": "abcd"}]}, secrets) == {
        "a": [f"x {HIDDEN}", 3, None, {"b": HIDDEN}]
    }


def leaks(text: str) -> list[str]:
    return [name for name, secret in {**SECRETS, "url": "hunter2"}.items() if secret in text]


def files_of(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}


def command(folder, *words, **variables):
    environment = runs.environment(folder, **SECRETS, TRAIN_RUNTIME=str(folder / "runtime"), **variables)
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", *words], cwd=runs.ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_plan_shows_none(tmp_path, form):
    script = str(runs.write_script(tmp_path))
    words = ("--hub-token", SECRETS["HF_TOKEN"], f"--key={SECRETS['WANDB_API_KEY']}", URL)
    for answer in (
        command(tmp_path, "plan", *form, script, *words, TRAIN_SETUP=f"pip install git+{URL}"),
        command(tmp_path, "plan", *form, TRAIN_SCRIPT=script, TRAIN_ARGS=f"a={SECRETS['TRAIN_TOKEN']}"),
        command(tmp_path, "doctor", *form, script, *words),
    ):
        assert answer.stdout
        assert leaks(answer.stdout + answer.stderr) == []


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_and_its_folder_hold_none(tmp_path):
    """Its plan, records, logs of the launcher and of the stop, its failure. The script itself prints none."""
    script = str(runs.write_script(tmp_path))
    variables = {
        "TRAIN_RUN": "own",
        "TRAIN_SETUP": f"echo from {script}",
        "TRAIN_STOP_COMMAND": f"echo {SECRETS['RUNPOD_API_KEY']}",
        "TRAIN_ON_EXIT": "stop",
        "TRAIN_STOP_ON": "always",
        "TRAIN_RESTARTS": "2",
    }
    words = ("do=raise", "pace=0.1", f"key={SECRETS['OPENAI_API_KEY']}", URL.replace("https", "url=https"))
    said = [command(tmp_path, "train", script, *words, **variables)]
    assert "was asked to stop this machine, and does" in said[0].stderr
    assert said[0].returncode == 76
    for name in ("status", "logs"):
        said += [command(tmp_path, name, "own"), command(tmp_path, name, "own", "--json")]
    assert [leaks(answer.stdout + answer.stderr) for answer in said] == [[]] * 5
    told = files_of(tmp_path / "runs") | files_of(tmp_path / "runtime")
    assert {"plan.json", "exit.json", "failure.json", "attempts.json", "agent.log", "stop-request.json"} <= {
        os.path.basename(path) for path in told
    }
    assert {path: leaks(text) for path, text in told.items() if leaks(text)} == {}
