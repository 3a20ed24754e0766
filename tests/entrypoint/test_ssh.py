"""A real client at the door of a real sshd, which a real supervisor keeps, in a container made of namespaces."""

import os
import signal
import subprocess
import sys
import time

import pexpect
import pods
import pytest
import runs
from leave_out import leave_out

why_not = pods.missing()
pytestmark = pytest.mark.skipif(why_not is not None and os.environ.get("CI") != "true", reason=str(why_not))

GIVEN = {
    "JSON": '{"a": "b", "c": [1, "$HOME"], "d": null}',
    "QUOTES": """it's "quoted" `here` '""",
    "COMMAND": "$(touch /run/never) $HOME ${PATH} `touch /run/never`",
    "SEVERAL": "one\ntwo\n\n three \n",
    "lower_case": "yes",
    "EQUALS": "a=b==c",
    "BACKSLASHES": r"\n \t \\ \' \$",
    "UNICODE": "größe ✓",
    "BYTES": b"\xff\xfe latin".decode(errors="surrogateescape"),
    "EMPTY": "",
    "BLANKS": "  a \t b  ",
    "SIGNS": "!! !1 #x ~ * ? [a] {b,c} ; & | < > ( ) %(ENV_HOME)s 100%",
    "_UNDER": "1",
    "HF_TOKEN": "hf_x",
    "NUM_NODES": "2",
    "NODE_RANK": "1",
    "NUM_TRAINERS": "8",
    "PATH": f"/opt/venv/bin:{os.environ['PATH']}",
}
WORLD = {"WORLD_SIZE": "16", "MASTER_ADDR": "127.0.0.9", "MASTER_PORT": "29500", "PRIMARY_ADDR": "127.0.0.9"}
NO_NAMES = {"bad.name": "1", "2nd": "2"}  # no shell can hold them
DUMP = "env -0"


def parsed(output):
    pairs = (entry.partition(b"=") for entry in output.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    made = pods.Pod(tmp_path_factory.mktemp("pod"))
    variables = GIVEN | NO_NAMES | WORLD | {"TRAIN_LOCAL_CLUSTER": "1", "UID": "7", "TERM": "dumb", "PS1": "no> "}
    variables |= {"RUNPOD_PUBLIC_IP": "203.0.113.5", f"RUNPOD_TCP_PORT_{made.port}": "40022"}
    with made.up(**variables):
        made.wait_for("Server listening")
        yield made
    assert made.process.returncode == 143


def of_command(pod):
    return pod.ssh(DUMP).stdout


def of_login_shell(pod):
    return pod.ssh(f"env -i HOME=/root bash -lc {DUMP!r}").stdout


def of_dash(pod):
    return pod.ssh(f"env -i HOME=/root sh -lc {DUMP!r}").stdout


def of_interactive_shell(pod):
    return typed(pod, DUMP)


def of_shell_in_a_shell(pod):
    return typed(pod, f"bash -i -c {DUMP!r}")


def typed(pod, command):
    """By a person at the prompt of `ssh host`, which is a login shell."""
    out = pod.folder / "typed"
    out.unlink(missing_ok=True)
    terminal = pexpect.spawn("ssh", ["-tt", "-p", str(pod.port), *pod.ssh_words()], encoding="utf-8", timeout=30)
    terminal.sendline(f"{command} > {out}; echo do''ne")
    terminal.expect("done")
    terminal.sendline("exit")
    terminal.expect(pexpect.EOF)
    terminal.close()
    return out.read_bytes()


def of_script(pod):
    script = pod.folder / "script.sh"
    script.write_text(f"#!/bin/bash\n{DUMP}\n")
    return pod.ssh(f"bash {script}").stdout


def of_tmux_window(pod):
    """The server is up already, with nothing in its environment."""
    out = pod.folder / "window"
    out.unlink(missing_ok=True)
    socket = pod.folder / "tmux"
    tmux = f"env -i TERM=xterm HOME=/root tmux -S {socket} -f /dev/null"
    pod.ssh(
        f"{tmux} new-session -d; {tmux} new-window; {tmux} send-keys '{DUMP} > {out}.part; mv {out}.part {out}' Enter"
    )
    runs.wait_for(out.exists, "the window wrote nothing", seconds=20)
    pod.ssh(f"{tmux} kill-server")
    return out.read_bytes()


KINDS = (
    of_command,
    of_login_shell,
    of_dash,
    of_interactive_shell,
    of_shell_in_a_shell,
    of_script,
    of_tmux_window,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.removeprefix("of_"))
def test_every_variable_is_there_exactly_as_given_and_a_python_there_is_one_process(pod, kind):
    if kind is of_tmux_window and not pods.shutil.which("tmux"):
        leave_out("no tmux here")
    there = parsed(kind(pod))
    assert {name: there.get(name) for name in GIVEN} == GIVEN
    assert "PUBLIC_KEY" in there
    assert not {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "UID", "PS1"} & set(there)
    assert there.get("TERM") != "dumb"
    assert there["TORCH_EXTENSIONS_DIR"]  # of the plan: what is compiled in a shell is found in training
    assert not (pod.folder / "run/never").exists()


def test_the_files_are_for_this_user_only(pod):
    files = (pod.folder / "run/roundhouse").rglob("*")
    private = {path.name for path in files if path.stat().st_mode & 0o777 == 0o600}
    assert private >= {"environment.sh", "environment.json", "authorized_keys", "sshd.json", "supervisor.sock"}
    assert private >= {"ssh_host_ed25519_key", "ssh_host_ecdsa_key"}
    assert (pod.folder / "run/roundhouse").stat().st_mode & 0o777 == 0o700


def test_a_person_may_change_a_variable_for_the_shells_below(pod):
    out = typed(pod, f"NODE_RANK=5 HF_TOKEN= bash -ic {DUMP!r}")
    assert (parsed(out)["NODE_RANK"], parsed(out)["HF_TOKEN"]) == ("5", "")


def test_what_a_person_has_to_know_is_shown_by_each_shell_in_which_somebody_types_once(pod):
    banner = pod.folder / "run/roundhouse/banner"
    banner.write_text("the run has failed\n")
    try:
        terminal = pexpect.spawn("ssh", ["-tt", "-p", str(pod.port), *pod.ssh_words()], encoding="utf-8", timeout=30)
        terminal.sendline("bash -i -c true; exit")
        terminal.expect(pexpect.EOF)
        assert terminal.before.count("the run has failed") == 2
        assert pod.ssh("true").stdout == b""
    finally:
        banner.unlink()


def test_our_own_command_sees_the_cluster_in_a_shell_that_hides_it(pod):
    ours = f"cd {runs.ROOT}; {sys.executable} -m entrypoint plan --json"
    plan = runs.json.loads(pod.ssh(ours).stdout)
    assert (plan["cluster"]["nodes"], plan["cluster"]["node_rank"]) == (2, 1)
    assert plan["cluster"]["primary_address"] == "127.0.0.9"
    changed = runs.json.loads(pod.ssh(f"export NODE_RANK=0 NUM_TRAINERS=4 WORLD_SIZE=8; {ours}").stdout)
    assert (changed["cluster"]["node_rank"], changed["cluster"]["world_size"]) == (0, 8)
    removed = pod.ssh(f"unset NODE_RANK; {ours}", check=False)
    assert b"no variable tells the rank of this node" in removed.stderr


@pytest.mark.torch
def test_a_python_with_accelerate_does_not_wait_for_fifteen_others(pod):
    code = "from accelerate import PartialState; print(PartialState(cpu=True).num_processes)"
    answer = pod.ssh(f"{sys.executable} -c '{code}'")
    assert answer.stdout.split()[-1:] == [b"1"]


def test_no_password_is_asked_for_and_no_other_key_is_let_in(pod, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    words = [
        "ssh",
        "-p",
        str(pod.port),
        "-o",
        "PreferredAuthentications=password,keyboard-interactive",
        *pod.ssh_words(),
    ]
    for refused in (words, ["ssh", "-p", str(pod.port), *pod.ssh_words()]):
        refused = [str(tmp_path / "other") if word == str(pod.key) else word for word in refused]
        answer = subprocess.run([*refused, "true"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert answer.returncode == 255
        assert "Permission denied (publickey)" in answer.stderr


def test_files_are_copied(pod, tmp_path):
    (tmp_path / "file").write_text("content")
    words = [
        "-q",
        "-P",
        str(pod.port),
        *pod.ssh_words()[:-1],
        str(tmp_path / "file"),
        f"root@127.0.0.1:{tmp_path}/copy",
    ]
    subprocess.run(["scp", *words], check=True)
    subprocess.run(["scp", "-O", *words[:-1], f"{words[-1]}2"], check=True)  # through a shell
    assert (tmp_path / "copy").read_text() == (tmp_path / "copy2").read_text() == "content"


def test_the_start_says_who_may_come_in_and_which_host_key_it_is(pod):
    listed = subprocess.run(
        ["ssh-keygen", "-lf", pod.folder / "run/roundhouse/ssh_host_ed25519_key.pub"], capture_output=True, text=True
    )
    outside = "(ssh root@203.0.113.5 -p 40022)"
    key = f"host key ED25519 {listed.stdout.split()[1]}"
    assert f"sshd: port {pod.port} {outside}, 1 key of PUBLIC_KEY; {key}\n" in pod.said()
    assert f"[sshd] Server listening on 0.0.0.0 port {pod.port}.\n" in pod.said()


def test_orphans_of_sessions_leave_no_zombie(pod):
    pod.ssh("for i in $(seq 50); do (sleep 0.1 &) ; done")
    time.sleep(1)
    assert [one for one in pod.processes("") if one.status() == "zombie"] == []


def test_a_second_start_appends_nothing_and_keeps_the_host_key(tmp_path):
    pod = pods.Pod(tmp_path)
    before = (tmp_path / "bash.bashrc").read_bytes(), (tmp_path / "profile.d/roundhouse.sh").read_bytes()
    keys, files = [], []
    for variables in ({"NODE_RANK": "0", "NCCL_DEBUG": "INFO", "NUM_NODES": "1"}, {"NODE_RANK": "0", "NEW": "1"}):
        with pod.up(**variables):
            pod.wait_for("Server listening")
            there = parsed(of_command(pod))
            assert {name: there.get(name) for name in ("NODE_RANK", "NCCL_DEBUG", "NEW", "NUM_NODES")} == {
                name: variables.get(name) for name in ("NODE_RANK", "NCCL_DEBUG", "NEW", "NUM_NODES")
            }
            keys.append((tmp_path / "known_hosts").read_text())
            files.append(sorted(path.name for path in (tmp_path / "run/roundhouse").iterdir()))
            assert (tmp_path / "run/roundhouse/authorized_keys").read_text() == f"{pod.public}\n"
    assert keys[0] == keys[1]
    assert files[0] == files[1]
    assert before == ((tmp_path / "bash.bashrc").read_bytes(), (tmp_path / "profile.d/roundhouse.sh").read_bytes())


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PUBLIC_KEY": "null", "JUPYTER_PASSWORD": "x"}, "no ssh: PUBLIC_KEY is null\n"),
        ({"PUBLIC_KEY": "", "JUPYTER_PASSWORD": "x"}, "no ssh: PUBLIC_KEY is empty\n"),
        ({"PUBLIC_KEY": "SeCrEt"}, "PUBLIC_KEY: key 1 is no public key\n  fix: "),
        ({"PUBLIC_KEY": "-----BEGIN OPENSSH PRIVATE KEY-----\nSeCrEt"}, "PUBLIC_KEY holds a private key: refused"),
        ({"SSH_PORT": "SeCrEt0"}, "no ssh: SSH_PORT=SeCrEt0 is not a port in 1..65535\n  fix: "),
    ],
)
def test_without_a_key_that_can_be_used_nothing_listens_and_one_line_says_so(tmp_path, variables, said):
    pod = pods.Pod(tmp_path)
    with pod.up(**variables):
        pod.wait_for("this container stays")
        assert pod.said().count(said) == 1, pod.said()
        assert pod.processes("sshd") == []
        assert [c for one in pod.processes("") for c in one.net_connections() if c.status == "LISTEN"] == []
    assert "SeCrEt\n" not in pod.said()
    for path in (tmp_path / "run").rglob("*"):
        assert not (path.is_file() and b"PRIVATE KEY" in path.read_bytes() and "ssh_host" not in path.name), path


def test_a_port_that_is_taken_is_left_to_who_has_it(tmp_path):
    pod = pods.Pod(tmp_path)
    with pods.socket.create_server(("0.0.0.0", pod.port)), pod.up():
        pod.wait_for("this container stays")
        assert f"no ssh: port {pod.port} cannot be had: Address already in use\n  fix: SSH_PORT names" in pod.said()


def test_a_signal_to_all_of_the_group_ends_the_services_with_the_container(tmp_path):
    pod = pods.Pod(tmp_path)
    with pod.up():
        pod.wait_for("Server listening")
        began = time.monotonic()
        pod.signal(signal.SIGTERM)
        assert pod.process.wait(20) == 143
        assert time.monotonic() - began < 6
    assert "Received signal 15; terminating" in pod.said()
