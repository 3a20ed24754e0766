from pathlib import Path

import pytest

from entrypoint.errors import SettingError
from entrypoint.request import VARIABLES, Request, edits, read_request


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("TRAIN_SCRIPT", "ddp", "script", "ddp"),
        ("TRAIN_SCRIPT", " /workspace/my run.py\r\n", "script", "/workspace/my run.py"),
        ("TRAIN_VOLUME", "/mnt/shared", "volume", Path("/mnt/shared")),
        ("TRAIN_VOLUME", '"/mnt/my disk"', "volume", Path("/mnt/my disk")),  # an env file keeps the quotes
        ("TRAIN_SCRIPT", "''", "script", None),
        ("TRAIN_ARGS", "'a b' 'c'\r\n", "arguments", "'a b' 'c'"),
        ("TRAIN_RESTARTS", " ", "restarts", 3),
        ("TRAIN_GRACE", "0", "grace_seconds", 0),
        ("TRAIN_AGAIN", "1", "again", True),
        ("TRAIN_STOP_ON", "failure:30m", "stop_on", "failure:30m"),
        ("TRAIN_WAIT", "", "wait_seconds", 600),
        ("TRAIN_ON_EXIT", "  ", "on_exit", None),
    ],
)
def test_a_wish_is_read_and_an_empty_one_is_none(name, text, field, value):
    assert getattr(read_request({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TRAIN_GRACE", "a minute"),
        ("TRAIN_GRACE", "-1"),
        ("TRAIN_GRACE", "１"),
        ("TRAIN_WAIT", "9" * 30),
        ("TRAIN_AGAIN", "yes"),
        ("TRAIN_LAUNCHER", "mpirun"),
        ("TRAIN_ON_EXIT", "shutdown"),
        ("TRAIN_STOP_ON", "failure:30"),
        ("TRAIN_STOP_ON", "failure:soon"),
        ("TRAIN_RUN", "../elsewhere"),
        ("TRAIN_RUN", ".."),
    ],
)
def test_a_wrong_value_is_quoted_with_its_variable(name, text):
    with pytest.raises(SettingError) as caught:
        read_request({name: text})
    assert name in caught.value.problem
    assert repr(text) in caught.value.problem
    assert caught.value.fix
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TRAIN_SCRIPTS", "TRAIN_SCRIPT"),
        ("TRAIN_NODE", "TRAIN_NODES"),
        ("TRAIN_NPROCS", "TRAIN_NPROC"),
        ("TRAIN_VOLUEM", "TRAIN_VOLUME"),
        ("TRAIN_ARG", "TRAIN_ARGS"),
    ],
)
def test_a_near_miss_is_refused_and_names_what_was_meant(name, near):
    with pytest.raises(SettingError, match=name) as caught:
        read_request({name: "x"})
    assert near in caught.value.fix


@pytest.mark.parametrize("name", ["TRAIN_DATASET", "TRAIN_BATCH_SIZE", "TRAIN_RUN_DIR", "TRAIN_STEP_FILE", "HOME"])
def test_other_names_are_the_users_own_business(name):
    assert read_request({name: "x"}) == Request()


@pytest.mark.parametrize(("a", "b", "count"), [("", "", 0), ("abc", "abc", 0), ("abc", "ab", 1), ("ab", "ba", 2)])
def test_edits_are_counted(a, b, count):
    assert edits(a, b) == edits(b, a) == count


def test_no_two_of_our_names_are_near_misses_of_each_other_and_lost():
    names = [variable.name for variable in VARIABLES]
    read_request(dict.fromkeys(names, ""))
    assert len(set(names)) == len(names)


def test_the_token_is_not_shown():
    assert "s3cret" not in repr(read_request({"TRAIN_TOKEN": "s3cret"}))
