"""What a process is given so that a hang can be explained, and what stays as a person set it."""

import pytest

from entrypoint.facts import FileSetting
from entrypoint.reasons import Setting
from entrypoint.recorder import recorder_settings
from entrypoint.worker import recorder_environment

ALL = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


@pytest.mark.parametrize(
    ("own", "settings"),
    [
        ({}, ALL),
        ({"TORCH_FR_BUFFER_SIZE": ""}, ALL),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "20000"}, {}),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, {"TORCH_FR_BUFFER_SIZE": "2000"}),
    ],
)
def test_the_recorder_is_on_unless_a_person_decided(own, settings):
    assert {one.name: one.value for one in recorder_settings(own, ())} == settings


def test_what_nccls_file_says_of_its_log_is_not_hidden():
    conf = [FileSetting("NCCL_DEBUG", "WARN", "/etc/nccl.conf")]
    assert recorder_settings({}, conf)[0] == Setting("NCCL_DEBUG", "WARN", "as /etc/nccl.conf says")
    assert "NCCL_DEBUG" not in {one.name for one in recorder_settings({"NCCL_DEBUG": "INFO"}, conf)}


FIRST = {"LOCAL_RANK": "0", "RANK": "8"}


@pytest.mark.parametrize(
    ("variables", "debug"),
    [
        (FIRST, ("INFO", "/run/logs/n1.nccl")),
        (FIRST | {"NCCL_DEBUG": ""}, ("INFO", "/run/logs/n1.nccl")),
        (FIRST | {"NCCL_DEBUG": "WARN"}, ("WARN", None)),
        (FIRST | {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/mine"}, ("INFO", "/mine")),
        ({"LOCAL_RANK": "1", "RANK": "9"}, (None, None)),
    ],
)
def test_the_first_process_of_a_node_says_what_nccl_found_unless_a_person_asked_otherwise(variables, debug, tmp_path):
    environment = recorder_environment(variables, tmp_path / "never", "n1r0", "/tmp/pipes")
    expected = debug[1].replace("/run/logs", str(tmp_path / "never")) if debug[1] else None
    assert (environment.get("NCCL_DEBUG"), environment.get("NCCL_DEBUG_FILE")) == (debug[0], expected)


def test_traces_go_to_the_runs_folder_and_pipes_stay_on_this_machine(tmp_path):
    environment = recorder_environment({"LOCAL_RANK": "1"}, tmp_path, "n3r1", "/tmp/pipes")
    assert environment["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/n3.trace-"
    assert environment["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "/tmp/pipes/trace-"
    bare = recorder_environment({"LOCAL_RANK": "1"}, tmp_path, "n3r1", None)  # a read-only root without /tmp
    assert not [name for name in bare if "PIPE" in name]
    kept = recorder_environment({"TORCH_FR_DUMP_TEMP_FILE": "/mine_"}, tmp_path, "n3r1", "/tmp/pipes")
    assert kept["TORCH_FR_DUMP_TEMP_FILE"] == "/mine_"
