"""What the words after `docker run IMAGE` do, and what is (not) in the image. Nothing is trained here: seconds."""

import json
import re

import containers
import pytest

IMAGE = containers.IMAGE


def test_without_a_word_it_says_in_five_lines_what_it_is(engine):
    result = engine.run()
    assert result.code == 0, result
    assert len(result.output.splitlines()) == 5
    assert "train ddp" in result.output
    assert result.errors == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("bash", "-c", 'echo "$0 $1"; exit 9', "a b", "c"), 9, "a b c"),
        (("bash", "-c", "kill -TERM $$"), 143, ""),
        (("python", "-c", "import sys; print(sys.prefix)"), 0, "/opt/venv"),
        (("/bin/sh", "-c", "ps -o comm= -p 1"), 0, "tini"),
        (("sh", "-c", 'test "$(ps -o ppid= -p $$)" -eq 1'), 0, ""),  # in place of our command, not under it
    ],
)
def test_any_other_word_is_run_as_it_is(engine, words, code, said):
    result = engine.run(*words)
    assert result.code == code, result
    assert said in result.output


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (("tarin", "ddp"), "did you mean 'train'?"),
        (("/workspace",), "Permission denied"),
        (("--steps", "5"), "--steps"),
    ],
)
def test_a_word_that_cannot_be_run_is_one_line_and_a_fix(engine, words, quoted):
    result = engine.run(*words)
    assert result.code == 78, result
    assert quoted in result.errors
    assert "Traceback" not in result.errors


def test_version_prints_what_the_image_was_built_from(engine):
    told = json.loads(engine.run("version", "--json").output)
    written = json.loads(engine.run("cat", "/opt/roundhouse/build.json").output)
    assert told == written
    text = engine.run("version").output
    assert set(told) <= set(re.findall(r"^(\w+) ", text, re.MULTILINE))
    installed = "from importlib.metadata import version as v; print(v('torch'), v('deepspeed'))"
    for number in engine.run("python", "-c", installed).output.split():
        assert number.partition("+")[0] in text


def test_a_container_that_stays_for_a_key_that_is_none_listens_nowhere_and_a_stop_ends_it_at_once(engine):
    container = engine.start(variables={"PUBLIC_KEY": "ssh-ed25519 AAAA someone"})
    container.wait_for("this container stays")
    assert "PUBLIC_KEY: key 1 of type ssh-ed25519 is cut off or damaged\n  fix: " in container.logs()
    assert container.listening() == set()
    assert containers.complaints(container.logs()) == []
    container.stop(20)
    assert container.state["ExitCode"] == 143


FOREIGN = """
set -eu
find / -xdev \\( -name 'ssh_host_*_key*' -o -name authorized_keys -o -name 'id_rsa*' -o -name .netrc -o -name .git \\
  -o -name '.bash_history' -o -name pip.conf -o -name .pypirc -o -name '*.pyc.*' -o -name machine-id -size +0 \\) \\
  -not -path '/proc/*' -not -path '*/site-packages/*' -print
find /tmp /var/tmp /workspace /home -mindepth 1
find /root -mindepth 1 -not -name .bashrc -not -name .profile
find /var/cache/apt /var/lib/apt/lists /var/log -type f
find /etc /opt/roundhouse /root /home -type f -exec grep -lE 'BEGIN [A-Z ]*PRIVATE KEY' {} + || true
"""


def test_no_key_cache_or_log_is_in_the_image(engine):
    result = engine.run("bash", "-c", FOREIGN)
    assert result.code == 0, result
    assert result.output.split() == []


def test_nothing_of_the_build_machine_is_in_the_configuration(engine):
    history = containers.docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE).stdout
    config = json.loads(containers.docker("image", "inspect", "-f", "{{json .Config}}", IMAGE).stdout)
    names = [entry.partition("=")[0] for entry in config["Env"]]
    assert not [
        name for name in names if re.search(r"TOKEN|SECRET|PASSWORD|PROXY|INDEX|_KEY|CERT", name, re.IGNORECASE)
    ]
    assert not re.search(r"://[^/\s]*:[^/\s]*@|(?i:index-url=|_proxy=|password=|token=)", history)
    assert config["Entrypoint"] == ["tini", "-g", "--", "roundhouse"]
    assert config["Cmd"] == ["up"]


USERS = {
    "root": (),
    "a user without a name": ("--user", "1234"),
    "a user without a name or rights, on a read-only root": (
        *("--user", "1234", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges"),
    ),
}


@pytest.mark.parametrize("options", USERS.values(), ids=USERS)
def test_a_plan_is_made_and_the_volume_is_writable(engine, options):
    volume = engine.volume()
    result = engine.run("plan", "ddp", options=(*options, "-v", f"{volume}:/workspace"))
    assert result.code == 0, result
    assert "/workspace/runs/ddp" in result.output
    assert "is not writable" not in result.output
    assert containers.complaints(result.output + result.errors) == []


WHEELS = """
import zipfile
from pathlib import Path

Path("/tmp/wheels").mkdir()
for name, version, wants in (
    ("wants", "1.0", "torch==2.12.0"),
    ("torch", "2.12.0", None),
    ("counts", "1.0", "numpy>=1.17"),
):
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(f"/tmp/wheels/{name}-{version}-py3-none-any.whl", "w") as wheel:
        requires = f"Requires-Dist: {wants}\\n" if wants else ""
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{requires}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
"""
PIP = """
python -c "$0"
install() { pip install --no-index --find-links /tmp/wheels "$@" 2>&1; echo "ended with $?"; }
install wants; install torch==2.12.0; PIP_CONSTRAINT= install --dry-run wants
install --dry-run counts
pip list --format=freeze | grep -E '^(torch|wants)='
"""


def test_pip_refuses_what_wants_another_torch_and_replaces_nothing(engine):
    result = engine.run("bash", "-c", PIP, WHEELS, options=("--network", "none"))
    wants, torch, without, counts, there = result.output.split("ended with ")
    for refused in (wants, torch):
        assert "The conflict is caused by:" in refused, result
        assert "(constraint) torch==2.13.0" in refused
    assert (torch[0], without[0], counts[0], there[0]) == ("1", "1", "0", "0")
    assert "Would install counts-1.0" in counts  # with the numpy that is there
    assert "Would install torch-2.12.0 wants-1.0" in without  # what the constraint is worth
    assert re.fullmatch(r"0\ntorch==2\.13\.0\S*\n", there)


def test_uv_is_held_to_what_pip_is(engine):
    result = engine.run("bash", "-c", 'cat "$PIP_CONSTRAINT"; echo; cat "$UV_CONSTRAINT"')
    first, second = result.output.split("\n\n")
    assert first.splitlines() == second.splitlines()
    assert "torch==2.13.0" in first.splitlines()
