"""The container's health: by steps, by how it ended, and cheap."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import runs

from entrypoint.health import look
from entrypoint.runtime import Runtime, State

LONG_AGO = 10000.0


@pytest.fixture
def container(tmp_path):
    """Files as a launcher leaves them. Ages in seconds; None: no such file."""
    run, runtime = tmp_path / "runs" / "own", Runtime((tmp_path / "runtime",))

    def make(state, *, attempts=(), step_age=None, bound=None, saved_age=None):
        (run / "checkpoints" / "step-5.partial").mkdir(parents=True)
        if state is not None:
            runtime.write(state)
        for name, document in (("attempts.json", list(attempts)), ("liveness.json", {"bound_seconds": bound})):
            if document and document != {"bound_seconds": None}:
                (run / name).write_text(json.dumps(document))
        touch(run / "step", "7\n", step_age)
        touch(run / "checkpoints" / "step-5.partial" / "shard", "x", LONG_AGO if saved_age is None else saved_age)
        touch(run / "checkpoints" / "step-5.partial", None, LONG_AGO)
        return {"TRAIN_RUNTIME": str(runtime.folder)}

    return make, State(str(run))


def touch(path, text, age):
    if age is None:
        return
    if text is not None:
        path.write_text(text)
    os.utime(path, (time.time() - age, time.time() - age))


RUNNING, ENDED = {"attempt": 0, "exit_code": None}, {"attempt": 0, "exit_code": 1}


@pytest.mark.parametrize(
    ("files", "healthy", "said"),
    [
        ({}, True, "before the first"),  # roll call, TRAIN_SETUP
        ({"attempts": [RUNNING]}, True, "no step yet"),  # importing, compiling, or a script that tells nothing
        ({"attempts": [RUNNING], "step_age": 5}, True, "step 7"),
        ({"attempts": [RUNNING], "step_age": 119}, True, "bound 120 s"),
        ({"attempts": [RUNNING], "step_age": 130}, False, "no step is made any more"),
        ({"attempts": [RUNNING], "step_age": 130, "saved_age": 2}, True, "step 7"),  # a long save
        ({"attempts": [RUNNING], "step_age": 900, "bound": 1200}, True, "bound 1200 s"),  # slow steps
        ({"attempts": [RUNNING], "step_age": 1300, "bound": 1200}, False, "no step"),
        ({"attempts": [ENDED], "step_age": 900}, True, "between attempts"),  # a node is waited for
        ({"attempts": [ENDED, RUNNING], "step_age": 900}, False, "no step"),
    ],
)
def test_a_training_is_healthy_while_it_makes_steps_or_cannot_make_any_yet(container, files, healthy, said):
    make, state = container
    found = look(make(state, **files))
    assert (found.healthy, said in found.text) == (healthy, True), found


@pytest.mark.parametrize(
    ("changes", "healthy"),
    [
        (None, True),
        ({"exit_code": 0}, True),
        ({"exit_code": 143}, True),
        ({"exit_code": 1}, False),
        ({"exit_code": 78, "run": None}, False),
        ({"exit_code": 0, "trouble": "this machine is NOT stopped"}, False),
    ],
)
def test_what_has_ended_is_healthy_unless_somebody_has_to_see_to_it(container, changes, healthy):
    make, state = container
    found = look(make(None if changes is None else State(**({"run": state.run} | changes))))
    assert found.healthy == healthy, found


def test_a_state_that_is_not_ours_to_read_is_none(tmp_path):
    (tmp_path / "state.json").write_text('{"run": 1, "other": 2}')
    assert look({"TRAIN_RUNTIME": str(tmp_path)}).healthy


def test_it_imports_nothing_large(tmp_path):
    """As the image's command asks: without what the other commands import."""
    code = """if True:
        import sys
        from entrypoint import health
        code = health.main((), {"TRAIN_RUNTIME": "/nonexistent"})
        assert not {"click", "rich", "psutil", "asyncio", "torch", "yaml"} & set(sys.modules), sys.modules
        sys.exit(code)
    """
    subprocess.run([sys.executable, "-c", code], cwd=runs.ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.torch
@pytest.mark.slow
def test_a_real_training_that_is_held_up_is_unhealthy_and_healthy_again_when_it_goes_on(tmp_path):
    runtime = str(tmp_path / "runtime")
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=100000", TRAIN_RUNTIME=runtime)
    run = tmp_path / "runs" / "own"

    def health():
        command = [sys.executable, "-m", "entrypoint", "health", "--seconds", "2"]
        return subprocess.run(command, cwd=runs.ROOT, env={"TRAIN_RUNTIME": runtime}, stdout=subprocess.DEVNULL)

    try:
        runs.wait_for_step(run, 3)
        assert health().returncode == 0
        pids = [runs.read(path)["pid"] for path in run.glob("logs/attempt-0/*.started.json")]
        ranks = [child.pid for pid in pids for child in psutil.Process(pid).children()]
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        runs.wait_for(lambda: health().returncode == 1, "it stays healthy", seconds=15)
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        runs.wait_for(lambda: health().returncode == 0, "it stays unhealthy", seconds=15)
    finally:
        process.send_signal(signal.SIGTERM)
        assert runs.finish(process)[0] == 143
    assert health().returncode == 0  # stopped on request
