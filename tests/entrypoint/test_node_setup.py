"""TRAIN_SETUP as a user meets it: real processes."""

import signal
import time

import psutil
import pytest
import runs


@pytest.mark.parametrize(
    ("command", "how", "last"),
    [
        ("echo fetching; echo no such package >&2; exit 3", "ended with exit code 3", "no such package"),
        ("echo a; no-such-program --flag", "ended with exit code 127", "no-such-program: command not found"),
        ("echo b; kill -9 $$", "was killed by SIGKILL", "b"),
        ("if then", "ended with exit code 2", "syntax error"),
    ],
)
def test_one_that_fails_trains_nothing_and_its_output_is_what_is_seen(tmp_path, command, how, last):
    code, output = runs.train(tmp_path, runs.write_script(tmp_path), TRAIN_SETUP=command)
    run = tmp_path / "runs" / "own"
    assert code == 69
    assert f"error: TRAIN_SETUP {how} on node 0" in output
    assert "fix:" in output.splitlines()[-1]
    assert last in output
    assert last in (run / "logs" / "setup.log").read_text()
    assert runs.read(run / "exit.json")["exit_code"] == 69
    assert last in runs.read(run / "failure.json")["lines"][-1] + runs.read(run / "failure.json")["lines"][0]
    assert not list(run.glob("logs/attempt-*"))
    assert not (run / "attempts.json").exists()  # it counts as no attempt


def test_a_request_to_stop_ends_it_and_trains_nothing(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), TRAIN_SETUP="echo up; sleep 4000; echo down")
    run = tmp_path / "runs" / "own"
    runs.wait_for(lambda: "up" in read(run / "logs" / "setup.log"), "it never began")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, output = runs.finish(process)
    assert code == 143, output
    assert "stopped during TRAIN_SETUP" in output
    assert time.monotonic() - began < 10
    assert runs.processes_of(run) == []


def test_one_that_does_not_heed_a_request_is_killed_after_the_grace(tmp_path):
    command = "trap 'echo cleaning' TERM; echo up; while true; do sleep 0.2; done"
    process = runs.start(tmp_path, runs.write_script(tmp_path), TRAIN_SETUP=command, TRAIN_GRACE="2")
    log = tmp_path / "runs" / "own" / "logs" / "setup.log"
    runs.wait_for(lambda: "up" in read(log), "it never began")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert runs.finish(process)[0] == 143
    assert 1.5 < time.monotonic() - began < 12
    assert "cleaning" in read(log)


def test_it_does_not_outlive_a_launcher_that_is_killed(tmp_path):
    pid = tmp_path / "pid"
    process = runs.start(tmp_path, runs.write_script(tmp_path), TRAIN_SETUP=f"echo $$ > {pid}; exec sleep 4000")
    runs.wait_for(lambda: read(pid).strip(), "it never began")
    process.kill()
    process.communicate()
    runs.wait_for(lambda: not alive(int(read(pid))), "it lives on", seconds=10)


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def read(path):
    return path.read_text() if path.exists() else ""


@pytest.mark.torch
@pytest.mark.slow
def test_it_runs_once_for_all_attempts_and_what_it_did_is_there(tmp_path):
    script = runs.write_script(tmp_path)
    count, command = tmp_path / "count", 'echo "set up $TRAIN_RUN_DIR" | tee -a "$COUNT"; test -z "$TRAIN_TOKEN"'
    words = ("do=exit", "code=5", "at=3")
    options = {"TRAIN_SETUP": command, "COUNT": str(count), "TRAIN_RESTARTS": "2", "TRAIN_TOKEN": "secret word"}
    code, output = runs.train(tmp_path, script, *words, **options)
    run = tmp_path / "runs" / "own"
    assert code == 76, output
    assert len(list(run.glob("logs/attempt-*"))) >= 2
    assert count.read_text() == f"set up {run}\n"
    assert f"[setup] set up {run}" in output
    assert "TRAIN_SETUP ended well" in output
    for name, found in (("own", 76), ("b", 0), ("b", 0)):  # no attempt is left; a new run; one that has finished
        again, _ = runs.train(tmp_path, script, "steps=2", TRAIN_RUN=name, **options)
        assert again == found
    assert count.read_text() == f"set up {run}\nset up {run.with_name('b')}\n"


def test_the_plan_shows_it_without_its_password(tmp_path):
    command = "pip install git+https://me:hunter2@git.example/x.git"
    answer = runs.subprocess.run(
        [runs.sys.executable, "-m", "entrypoint", "plan", "ddp"],
        cwd=runs.ROOT,
        env=runs.environment(tmp_path, TRAIN_SETUP=command),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "git+https://***@git.example/x.git (once, before the first attempt)" in answer.stdout
    assert "hunter2" not in answer.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_other_nodes_are_told_why_one_does_not_come(tmp_path):
    breaks = 'case "$(readlink /proc/$$/fd/1)" in *setup-n1.log) echo no licence here; exit 4;; esac'
    answer = runs.subprocess.run(
        [runs.sys.executable, "-m", "entrypoint", "local", "--nodes", "2", str(runs.write_script(tmp_path))],
        cwd=runs.ROOT,
        env=runs.environment(tmp_path, TRAIN_SETUP=breaks, TRAIN_WAIT="12"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "node 1 | error: TRAIN_SETUP ended with exit code 4 on node 1" in answer.stdout
    assert "node 1 | [setup-n1] no licence here" in answer.stdout
    told = [line for line in answer.stdout.splitlines() if line.startswith("node 0 |") and "missing: node 1" in line]
    assert told, answer.stdout
    assert "it has ended: TRAIN_SETUP ended with exit code 4 on node 1" in told[0]
    assert answer.returncode in (68, 69)
