"""The file for shells, read by real ones; and what our own command makes of a shell's variables."""

import os
import shutil
import subprocess

import pytest
import test_ssh
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint import private_folder
from entrypoint.errors import MachineError
from entrypoint.reasons import Setting
from entrypoint.shells import MARK, Shells, from_document, make_shells, restored, to_document, to_script

SHELLS = [path for path in ("/bin/bash", "/bin/dash") if os.path.exists(path)]
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
VARIABLES = st.dictionaries(NAMES.map(lambda name: f"V_{name}"), TEXTS, max_size=30)


def read_by(shell, folder, shells, more="", **before):
    private_folder.write(folder / "environment.sh", to_script(shells))
    words = ["env", "-i", *(f"{name}={value}" for name, value in before.items()), shell, "-c"]
    answer = subprocess.run([*words, f". {folder}/environment.sh; {more} env -0"], capture_output=True, check=True)
    assert answer.stderr == b""
    return test_ssh.parsed(answer.stdout)


@pytest.mark.parametrize("shell", SHELLS)
@given(variables=VARIABLES)
@settings(max_examples=30, deadline=None)
def test_whatever_a_variable_holds_a_shell_has_exactly_that(tmp_path_factory, shell, variables):
    folder = tmp_path_factory.getbasetemp()
    there = read_by(shell, folder, make_shells(variables | {"PATH": "/usr/bin:/bin"}, (), "1"))
    assert {name: value for name, value in there.items() if name.startswith("V_")} == variables


@pytest.mark.parametrize("shell", SHELLS)
def test_values_from_the_field(tmp_path, shell):
    there = read_by(shell, tmp_path, make_shells(test_ssh.GIVEN, (), "1"))
    assert {name: there.get(name) for name in test_ssh.GIVEN if name != "PATH"} == {
        name: value for name, value in test_ssh.GIVEN.items() if name != "PATH"
    }


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "IFS", "PS1"])
def test_what_a_shell_keeps_for_itself_breaks_nothing(tmp_path, shell, name):
    there = read_by(shell, tmp_path, make_shells({name: "x", "AFTER": "1"}, (), "1"))
    assert there["AFTER"] == "1"


def test_a_shell_below_keeps_what_was_changed_and_a_login_gets_its_path_back(tmp_path):
    shells = make_shells({"A": "1", "PATH": "/usr/bin:/bin:/opt/x"}, (), "1")
    again = f". {tmp_path}/environment.sh;"
    there = read_by("/bin/bash", tmp_path, shells, f"export A=2 PATH=/bin:/usr/bin; {again}")
    assert (there["A"], there["PATH"]) == ("2", "/bin:/usr/bin")
    there = read_by("/bin/bash", tmp_path, shells, f"export A=2 PATH=/bin:/usr/bin; roundhouse_login=login; {again}")
    assert (there["A"], there["PATH"]) == ("2", "/usr/bin:/bin:/opt/x")


def test_a_rank_that_a_shell_had_is_taken_from_it(tmp_path):
    cluster = {"RANK": "0", "WORLD_SIZE": "16", "PET_NNODES": "2", "ACCELERATE_USE_FSDP": "1", "SLURM_PROCID": "0"}
    there = read_by("/bin/bash", tmp_path, make_shells(cluster | {"NUM_NODES": "2"}, (), "1"), **cluster)
    assert (set(cluster) & set(there), there["NUM_NODES"]) == (set(), "2")


SETTINGS = (Setting("NCCL_SOCKET_IFNAME", "=ens1", ""), Setting("OMP_NUM_THREADS", "4", ""), Setting("RANK", "3", ""))
GIVEN = {"A": "1", "B": "2", "RANK": "0", "bad.name": "x", "TERM": "dumb", "NCCL_SOCKET_IFNAME": "eth0"}
MADE = make_shells(GIVEN, SETTINGS, "17")
AS_SHOWN = {"A": "1", "B": "2", "NCCL_SOCKET_IFNAME": "=ens1", MARK: "17", "TERM": "xterm", "PWD": "/"}
BACK = {"A": "1", "B": "2", "RANK": "0", "bad.name": "x", "NCCL_SOCKET_IFNAME": "eth0", "TERM": "xterm", "PWD": "/"}


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (AS_SHOWN, BACK),
        (AS_SHOWN | {"A": "changed"}, BACK | {"A": "changed"}),
        (AS_SHOWN | {"NEW": "1"}, BACK | {"NEW": "1"}),
        (AS_SHOWN | {"RANK": "5"}, BACK | {"RANK": "5"}),
        (AS_SHOWN | {"NCCL_SOCKET_IFNAME": "ens2"}, BACK | {"NCCL_SOCKET_IFNAME": "ens2"}),
        ({n: v for n, v in AS_SHOWN.items() if n != "B"}, {n: v for n, v in BACK.items() if n != "B"}),
        (AS_SHOWN | {MARK: "16"}, AS_SHOWN | {MARK: "16"}),  # of another start
        ({"A": "0"}, {"A": "0"}),  # not from a shell of ours
    ],
)
def test_our_command_gets_the_containers_variables_and_what_a_person_changed(current, expected):
    assert restored(current, MADE) == expected
    assert restored(current, from_document(to_document(MADE))) == expected


def test_without_the_file_the_variables_stay_as_they_are():
    assert restored(AS_SHOWN, from_document(None)) == AS_SHOWN


def test_a_plans_settings_are_shown_but_for_those_of_a_training_process():
    assert MADE.shown == {"A": "1", "B": "2", "NCCL_SOCKET_IFNAME": "=ens1", MARK: "17"}


def test_a_private_key_is_in_no_file():
    variables = {"SSH_KEY": "-----BEGIN OPENSSH PRIVATE KEY-----\nSeCrEt", "PUBLIC_KEY": "ssh-ed25519 AAAA"}
    shells = make_shells(variables, (), "1")
    assert "SeCrEt" not in f"{to_script(shells)}{to_document(shells)}"
    assert shells.shown["PUBLIC_KEY"] == "ssh-ed25519 AAAA"


def test_shells_are_values():
    assert make_shells({"A": "1"}, (), "1") == Shells("1", {"A": "1"}, {"A": "1", MARK: "1"})


# ---- where the file lies ----


def test_a_folder_of_another_user_or_a_link_is_passed_over(tmp_path):
    link, own = tmp_path / "link", tmp_path / "own" / "run"
    (tmp_path / "elsewhere").mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    candidates = (link, own)
    if os.getuid() == 0:
        (tmp_path / "theirs").mkdir()
        shutil.chown(tmp_path / "theirs", 12345)
        candidates = (tmp_path / "theirs", *candidates)
    assert private_folder.find(candidates) is None
    assert private_folder.make(candidates) == own
    assert own.stat().st_mode & 0o777 == 0o700
    assert private_folder.find(candidates) == own
    with pytest.raises(MachineError):
        private_folder.make(candidates[:-1])


def test_of_two_processes_the_second_leaves_the_folder_alone(tmp_path):
    with private_folder.alone(tmp_path) as first, private_folder.alone(tmp_path) as second:
        assert (first, second) == (True, False)
