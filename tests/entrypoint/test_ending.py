"""What follows the end of training, decided before it begins."""

import pytest

from entrypoint.ending import Ending, choose_ending, sentences
from entrypoint.errors import SettingError
from entrypoint.facts import Volume
from entrypoint.request import read_request

RUNPOD = {"RUNPOD_POD_ID": "abc123", "RUNPOD_API_KEY": "rpa_secret"}
NETWORK = {**RUNPOD, "RUNPOD_VOLUME_ID": "vol1"}
VAST = {"VAST_CONTAINERLABEL": "C.4711", "CONTAINER_API_KEY": "vast_secret"}
COMMAND = {"TRAIN_STOP_COMMAND": "shutdown -h now"}
DISK = Volume("/workspace", True, False, "overlay", True, None, None)
VOLUME_DISK = Volume("/workspace", True, True, "ext4", True, None, None)
SHARED = Volume("/workspace", True, True, "fuse", True, None, None)
MEMORY = Volume("/workspace", True, True, "tmpfs", True, None, None)


def ending(provider="none", volume=VOLUME_DISK, is_up=True, **variables) -> Ending:
    return choose_ending(read_request(variables), provider, volume, variables, is_up=is_up)


@pytest.mark.parametrize(
    ("provider", "is_up", "wish", "action", "reason"),
    [
        ("none", True, {}, "exit", "sees the exit code"),
        ("kubernetes-indexed-job", True, {}, "exit", "sees the exit code"),
        ("runpod-pod", True, {}, "stay", "Runpod starts a container again"),
        ("runpod-cluster", True, {}, "stay", "Runpod starts a container again"),
        ("vast", True, {}, "stay", "Vast.ai starts a container again"),
        ("runpod-pod", False, {}, "exit", "sees the exit code"),  # typed by somebody
        ("none", True, {"TRAIN_ON_EXIT": "stay"}, "stay", "TRAIN_ON_EXIT"),
        ("runpod-pod", True, {"TRAIN_ON_EXIT": "exit"}, "exit", "TRAIN_ON_EXIT"),
        ("none", False, {"TRAIN_ON_EXIT": "stay"}, "exit", "for `up`"),
    ],
)
def test_without_a_stop_success_and_failure_end_alike(provider, is_up, wish, action, reason):
    found = ending(provider, is_up=is_up, **wish)
    assert (found.success, found.failure, found.otherwise) == (action, action, action)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("provider", "stop_on", "success", "failure", "seconds"),
    [
        ("vast", None, "stop", "stay", 0),
        ("vast", "success", "stop", "stay", 0),
        ("vast", "always", "stop", "stop", 0),
        ("vast", "failure", "stop", "stop", 0),
        ("vast", "failure:30m", "stop", "stop", 1800),
        ("vast", "failure:45s", "stop", "stop", 45),
        ("vast", "failure:2h", "stop", "stop", 7200),
        ("none", "success", "stop", "exit", 0),
    ],
)
def test_train_stop_on_says_after_which_end_and_when(provider, stop_on, success, failure, seconds):
    wish = {"TRAIN_ON_EXIT": "stop", **VAST} | ({"TRAIN_STOP_ON": stop_on} if stop_on else {})
    found = ending(provider, **wish)
    assert (found.success, found.failure, found.failure_seconds) == (success, failure, seconds)
    assert found.otherwise == ("stay" if provider == "vast" else "exit")


@pytest.mark.parametrize(
    ("variables", "kind", "machine"),
    [
        (RUNPOD, "runpod", "abc123"),
        (VAST, "vast", "4711"),
        ({"CONTAINER_ID": "4711", "CONTAINER_API_KEY": "k"}, "vast", "4711"),
        (COMMAND, "command", "this machine"),
        ({**COMMAND, **RUNPOD}, "command", "this machine"),  # a person's own word
    ],
)
def test_who_is_asked(variables, kind, machine):
    found = ending(TRAIN_ON_EXIT="stop", **variables).cloud
    assert found is not None
    assert (found.kind, found.machine) == (kind, machine)


@pytest.mark.parametrize(
    ("variables", "quoted"),
    [
        ({}, "nothing here tells how to stop"),
        ({"RUNPOD_POD_ID": "abc"}, "RUNPOD_API_KEY is not set"),
        ({"VAST_CONTAINERLABEL": "C.1"}, "CONTAINER_API_KEY is not set"),
        ({"RUNPOD_POD_ID": "abc", "RUNPOD_API_KEY": " "}, "RUNPOD_API_KEY is not set"),
    ],
)
def test_a_stop_that_nobody_can_do_is_refused_before_it_costs(variables, quoted):
    with pytest.raises(SettingError, match=quoted):
        ending(TRAIN_ON_EXIT="stop", **variables)


def test_what_a_command_of_the_users_deletes_is_not_known():
    with pytest.raises(SettingError, match="terminate"):
        ending(TRAIN_ON_EXIT="terminate", **COMMAND)


@pytest.mark.parametrize(
    ("provider", "wish", "volume", "variables", "action", "said"),
    [
        ("runpod-pod", "terminate", SHARED, NETWORK, "terminate", None),
        ("runpod-pod", "terminate", SHARED, RUNPOD, "stop", "Runpod deletes the rest"),
        ("runpod-pod", "terminate", VOLUME_DISK, NETWORK, "stop", "Runpod deletes the rest"),
        ("runpod-pod", "terminate", None, NETWORK, "stay", "clears when it stops"),
        ("runpod-pod", "terminate", DISK, NETWORK, "stay", "clears when it stops"),
        ("runpod-pod", "stop", VOLUME_DISK, RUNPOD, "stop", None),
        ("runpod-pod", "stop", DISK, RUNPOD, "stay", "clears when it stops"),
        ("runpod-pod", "stop", MEMORY, RUNPOD, "stay", "clears when it stops"),
        ("runpod-pod", "stop", DISK, {**RUNPOD, "TRAIN_MOUNT": "nfs://a/b"}, "stop", None),
        ("vast", "stop", DISK, VAST, "stop", None),  # Vast.ai keeps the disk of a stopped instance
        ("vast", "terminate", VOLUME_DISK, VAST, "terminate", None),
        ("vast", "terminate", DISK, VAST, "stop", "Vast.ai deletes the rest"),
        ("vast", "terminate", MEMORY, VAST, "stop", "Vast.ai deletes the rest"),
        ("none", "stop", DISK, COMMAND, "stop", None),
    ],
)
def test_checkpoints_are_never_deleted_with_the_machine(provider, wish, volume, variables, action, said):
    found = ending(provider, volume, TRAIN_ON_EXIT=wish, TRAIN_STOP_ON="always", **variables)
    assert found.success == found.failure == action
    assert [said in finding.text for finding in found.findings] == ([True] if said else [])
    assert (found.cloud is None) == (action == "stay")


def test_an_exit_that_the_platform_undoes_is_warned_of():
    assert "starts a container again" in ending("vast", TRAIN_ON_EXIT="exit").findings[0].text


def test_the_plan_says_it_with_the_reason():
    told = sentences(ending("vast", TRAIN_ON_EXIT="stop", TRAIN_STOP_ON="failure:30m", **VAST))
    reason = "TRAIN_ON_EXIT=stop, TRAIN_STOP_ON=failure:30m"
    assert told == [
        ("after success: ask Vast.ai to stop this machine", reason),
        ("after a failure: ask Vast.ai to stop this machine after 30 min, unless somebody keeps it", reason),
    ]
    assert len(sentences(ending("vast"))) == 1
