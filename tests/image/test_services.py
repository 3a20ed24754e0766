"""What runs beside training in a container of the image, and who comes in."""

import json
import re
import shutil
import subprocess

import containers
import pods
import pytest
import runs
import test_ssh

pytestmark = pytest.mark.skipif(
    not shutil.which("ssh") and pods.os.environ.get("CI") != "true", reason="no openssh-client here"
)
GIVEN = {name: value for name, value in test_ssh.GIVEN.items() if name not in ("BYTES", "PATH")}  # docker wants UTF-8


class Visitor:
    """A person with a key, as `pods.Pod` is one; the folder is the same in the container."""

    def __init__(self, folder):
        self.folder, self.port = folder, 0
        self.key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", self.key], check=True)
        self.public = self.key.with_suffix(".pub").read_text().strip()

    def options(self, *more):
        return ("-p", "127.0.0.1::22", "-v", f"{self.folder}:{self.folder}", *more)

    def visits(self, container):
        container.wait_for("Server listening", 60)
        self.port = int(containers.docker("port", container.name, "22/tcp").stdout.splitlines()[0].rpartition(":")[2])

    ssh_words, ssh = pods.Pod.ssh_words, pods.Pod.ssh


@pytest.fixture
def visitor(tmp_path):
    return Visitor(tmp_path)


def declared():
    config = json.loads(containers.docker("image", "inspect", "-f", "{{json .Config}}", containers.IMAGE).stdout)
    return {int(port.partition("/")[0]) for port in config.get("ExposedPorts") or {}}


def test_each_kind_of_shell_has_every_variable_and_nothing_else_listens_or_complains(engine, visitor):
    variables = GIVEN | test_ssh.WORLD | {"TRAIN_LOCAL_CLUSTER": "1", "PUBLIC_KEY": visitor.public}
    container = engine.start(options=visitor.options(), variables=variables)
    visitor.visits(container)
    for kind in test_ssh.KINDS:
        there = test_ssh.parsed(kind(visitor))
        assert {name: there.get(name) for name in GIVEN} == GIVEN, kind
        assert there["PATH"].startswith("/opt/venv/bin:"), kind
        assert not {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & set(there), kind
    typed = test_ssh.parsed(container.execute("bash", "-ic", "env -0").encode())  # `docker exec -it … bash`
    assert {name: typed.get(name) for name in GIVEN} == GIVEN
    assert not {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & set(typed)
    plan = json.loads(visitor.ssh("roundhouse plan --json").stdout)
    assert (plan["cluster"]["nodes"], plan["cluster"]["node_rank"]) == (2, 1)
    assert container.listening() == {22} < declared()
    assert container.execute("ls", "/run").split().count("never") == 0
    assert containers.complaints(container.logs()) == []
    began = container.execute("cat", "/etc/bash.bashrc", "/run/roundhouse/authorized_keys")
    keys = (visitor.folder / "known_hosts").read_text()
    container.stop(20)
    assert container.state["ExitCode"] == 143
    container.start()
    container.wait_until(lambda: container.logs().count("Server listening on 0.0.0.0") == 2, "no second start")
    visitor.visits(container)
    assert visitor.ssh("echo here").stdout == b"here\n"
    assert container.execute("cat", "/etc/bash.bashrc", "/run/roundhouse/authorized_keys") == began
    assert {line.split()[2] for line in (visitor.folder / "known_hosts").read_text().splitlines()} == {keys.split()[2]}


NOTEBOOK = """
import json, os, time
from pathlib import Path
import requests, websocket

given, at = {"Authorization": f"token {os.environ['JUPYTER_PASSWORD']}"}, "127.0.0.1:8888"

def opened(path):
    return websocket.create_connection(f"ws://{at}{path}", header=given, suppress_origin=True, timeout=60)

def dump(name):
    return f"env -0 > /tmp/{name}.part; mv /tmp/{name}.part /tmp/{name}"

name = requests.post(f"http://{at}/api/terminals", headers=given).json()["name"]
terminal = opened(f"/terminals/websocket/{name}")
terminal.send(json.dumps(["stdin", f"{dump('terminal')}\\r"]))
kernel = requests.post(f"http://{at}/api/kernels", headers=given, json={}).json()["id"]
channel = opened(f"/api/kernels/{kernel}/channels?session_id=1")
header = {"msg_id": "1", "msg_type": "execute_request", "session": "1", "username": "", "version": "5.3"}
content = {"code": f"import os; os.system({dump('kernel')!r})", "silent": False}
request = {"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": [], "content": content}
channel.send(json.dumps(request))
while not (Path("/tmp/terminal").exists() and Path("/tmp/kernel").exists()):
    time.sleep(0.2)
"""


@pytest.mark.slow
def test_a_notebook_and_its_terminal_have_the_same_variables_and_the_password_is_seen_nowhere(engine, visitor):
    password = "a b$c*;x'\"%s#"
    variables = GIVEN | test_ssh.WORLD | {"TRAIN_LOCAL_CLUSTER": "1", "PUBLIC_KEY": visitor.public}
    container = engine.start(options=visitor.options(), variables=variables | {"JUPYTER_PASSWORD": password})
    container.wait_for("is running at")
    visitor.visits(container)
    containers.docker("exec", "-i", container.name, "timeout", "120", "python", "-", input=NOTEBOOK)
    for place in ("terminal", "kernel"):
        there = test_ssh.parsed(container.execute("cat", f"/tmp/{place}").encode())
        assert {name: there.get(name) for name in GIVEN} == GIVEN, place
        assert there["PATH"].startswith("/opt/venv/bin:"), place
        assert not {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & set(there), place
    assert container.listening() == {22, 8888} == declared()
    assert containers.complaints(container.logs()) == []
    assert password not in container.logs() + container.execute("ps", "-eo", "args")
    container.stop(20)
    assert container.state["ExitCode"] == 143
    assert containers.complaints(container.logs()) == []


def test_without_a_key_nothing_listens(engine):
    container = engine.start(variables={"RUNPOD_POD_ID": "x", "PUBLIC_KEY": "null"})
    container.wait_for("this container stays")
    assert container.listening() == set()
    assert container.logs().count("no ssh: PUBLIC_KEY is null\n") == 1
    assert containers.complaints(container.logs()) == []


@pytest.mark.slow
def test_a_service_that_dies_for_good_is_told_while_training_goes_on_and_its_code_is_kept(engine, visitor):
    volume = engine.volume(own_py=runs.SCRIPT)
    (visitor.folder / "sshd").write_text("#!/bin/sh\necho 'no luck' >&2\nexit 1\n")
    (visitor.folder / "sshd").chmod(0o755)
    options = ("-v", f"{volume}:/workspace", "-v", f"{visitor.folder}/sshd:/usr/sbin/sshd:ro")
    arguments = "steps=100000 do=exit at=300 code=42"
    container = engine.start(
        options=options,
        variables={
            "TRAIN_SCRIPT": "/workspace/own.py",
            "TRAIN_ARGS": arguments,
            "TRAIN_RESTARTS": "1",
            "PUBLIC_KEY": visitor.public,
        },
    )
    container.wait_for("sshd gave up after 4 starts: no luck; everything else goes on\n  fix: read ")
    container.wait_until(lambda: "sshd: gave up: no luck" in container.execute("roundhouse", "status"), "not told")
    (sshd,) = json.loads(container.execute("roundhouse", "status", "--json"))["services"]
    assert sshd["state"] == "gave up"
    assert container.wait() == 42
    assert container.logs().count("gave up") == 1
    assert container.logs().rstrip().splitlines()[-1].startswith("first to fail: node 0 rank 1, exit code 42")
    assert "[sshd] no luck" in container.read("/workspace/runs/own/logs/services.log")


@pytest.mark.slow
def test_a_stop_ends_the_training_first_and_a_session_lives_until_then(engine, visitor):
    volume = engine.volume(own_py=runs.SCRIPT)
    container = engine.start(
        options=visitor.options("-v", f"{volume}:/workspace"),
        variables={
            "TRAIN_SCRIPT": "/workspace/own.py",
            "TRAIN_ARGS": "steps=100000 save=4",
            "PUBLIC_KEY": visitor.public,
        },
    )
    container.wait_for("[n0r0] step 3")
    visitor.visits(container)
    assert "own: running, step " in visitor.ssh("roundhouse status").stdout.decode()
    containers.docker("kill", "-s", "TERM", container.name)
    assert visitor.ssh("sleep 1; echo still here").stdout == b"still here\n"
    assert container.wait() == 143
    lines = container.logs().splitlines()
    ended = next(i for i, line in enumerate(lines) if "Received signal 15; terminating" in line)
    assert max(i for i, line in enumerate(lines) if line.startswith("[n0r0] step")) < ended
    assert containers.complaints(container.logs()) == []
    assert any("/step-" in name for name in container.files("/workspace/runs/own/checkpoints"))


ROOTLESS = ("--user", "1234", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ROOTLESS, "no ssh: sshd wants to start as root, and this is user 1234\n  fix: "),
        (("--cap-drop", "ALL"), "no ssh: sshd wants the capabilities SETGID, SETUID, SYS_CHROOT\n  fix: docker run "),
        (("--read-only", "--tmpfs", "/tmp"), "no ssh: /run/sshd: Read-only file system\n  fix: "),
        (("--read-only", "--tmpfs", "/tmp", "--tmpfs", "/run"), "Server listening on 0.0.0.0 port 22"),
        (("--read-only",), "no folder of this user's own can be made: /run/roundhouse or /tmp/roundhouse-0/run"),
    ],
)
def test_where_sshd_cannot_be_one_line_says_so_and_shells_have_the_variables_all_the_same(
    engine, visitor, options, said
):
    variables = {"PUBLIC_KEY": visitor.public, "ASKED": "a 'b' $(c)", "WORLD_SIZE": "16", "TRAIN_NODES": "1"}
    container = engine.start(options=options, variables=variables)
    container.wait_for("this container stays")
    container.wait_for(said, 30)
    assert containers.complaints(container.logs()) == []
    shell = 'echo "$ASKED"; echo "${WORLD_SIZE-one process}"; command -v python'
    seen = container.execute("env", "-i", "HOME=/tmp", "bash", "-lc", shell).splitlines()
    if "no folder" not in said:
        assert seen == ["a 'b' $(c)", "one process", "/opt/venv/bin/python"]
    else:
        assert seen == ["", "one process", "/opt/venv/bin/python"]
    container.stop(20)
    assert container.state["ExitCode"] == 143


@pytest.mark.slow
def test_a_user_without_name_or_rights_on_a_read_only_root_has_services_too(engine):
    options = (*ROOTLESS, "--security-opt", "no-new-privileges")
    container = engine.start(options=options, variables={"JUPYTER_PASSWORD": "a b$c*;x"})
    container.wait_for("is running at")
    container.wait_until(lambda: "jupyter: running" in container.execute("roundhouse", "status"), "not running")
    assert container.listening() == {8888}
    assert containers.complaints(container.logs()) == []
    assert container.execute("ls", "/tmp/roundhouse-1234/run").split().count("environment.sh") == 1
    container.stop(20)
    assert container.state["ExitCode"] == 143


@pytest.mark.parametrize(("size", "said"), [("4k", "no ssh: no host key could be made"), ("40k", "no services: ")])
def test_a_full_disk_costs_the_services_and_nothing_else(engine, visitor, size, said):
    options = ("--tmpfs", f"/run:size={size}")
    container = engine.start(options=options, variables={"PUBLIC_KEY": visitor.public})
    container.wait_for("this container stays")
    (line,) = [line for line in container.logs().splitlines() if line.startswith(said)]
    assert line.endswith("No space left on device")
    container.stop(20)
    assert container.state["ExitCode"] == 143


def test_a_second_up_in_a_container_leaves_the_services_to_the_first(engine, visitor):
    container = engine.start(options=visitor.options(), variables={"PUBLIC_KEY": visitor.public})
    visitor.visits(container)
    second = containers.docker("exec", container.name, "timeout", "5", "roundhouse", "up", check=False)
    assert "the services are another process's, which has /run/roundhouse" in second.stderr
    assert visitor.ssh("echo here").stdout == b"here\n"


def test_a_shell_of_an_image_where_up_does_not_run_finds_its_python(engine):
    result = engine.run("bash", "-lc", "command -v python; echo $-")
    assert re.fullmatch(r"/opt/venv/bin/python\n\w+\n", result.output)
    assert result.errors == ""
