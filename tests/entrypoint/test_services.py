"""Services beside a training: what becomes of one does not become of the other."""

import os
import signal
import time

import pods
import psutil
import pytest
import runs

why_not = pods.missing()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(why_not is not None and os.environ.get("CI") != "true", reason=str(why_not)),
]
BROKEN = "#!/bin/sh\necho 'sshd: no hostkeys available' >&2\nexit 1\n"


@pytest.fixture
def pod(tmp_path):
    pod = pods.Pod(tmp_path)
    runs.write_script(pod.volume)
    return pod


def training(pod, arguments):
    return pod.up(TRAIN_SCRIPT=str(pod.volume / "own.py"), TRAIN_ARGS=arguments, TRAIN_RESTARTS="1")


def test_a_service_that_dies_for_good_neither_ends_nor_hides_the_run(pod):
    (pod.folder / "sshd").write_text(BROKEN)
    (pod.folder / "sshd").chmod(0o755)
    with training(pod, "steps=1000 pace=0.1 do=exit at=250 code=42"):
        pod.wait_for("sshd gave up")
        runs.wait_for(lambda: "gave up" in pod.inside("status"), "status does not tell it")
        assert "own: running, " in pod.inside("status")
        (sshd,) = runs.json.loads(pod.inside("status", "--json"))["services"]
        assert (sshd["name"], sshd["state"], sshd["text"]) == ("sshd", "gave up", "sshd: no hostkeys available")
        assert pod.process.wait(180) == 42
    assert pod.said().count("sshd gave up after 4 starts: sshd: no hostkeys available; everything else goes on\n") == 1
    assert "first to fail: node 0 rank 1, exit code 42" in pod.said().splitlines()[-1]
    assert "sshd gave up" in (pod.volume / "runs/own/logs/services.log").read_text()
    assert runs.read(pod.volume / "runs/own/services.json")[0]["state"] == "stopped"


def test_a_training_that_ended_well_is_not_started_again_and_a_service_is(pod):
    """Supervisor#212"""
    with pod.up(TRAIN_SCRIPT=str(pod.volume / "own.py"), TRAIN_ARGS="steps=3", TRAIN_ON_EXIT="stay"):
        pod.wait_for("this container stays")
        # Before it has lived ten seconds a restart is a try to start, of which only the last is told.
        notes = pod.volume / "runs/own/services.json"
        runs.wait_for(lambda: notes.exists() and runs.read(notes)[0]["state"] == "running", "sshd is not steady")
        pod.processes("sshd -D")[0].kill()
        pod.wait_for("sshd ended and is started again")
        runs.wait_for(lambda: pod.said().count("Server listening on 0.0.0.0") == 2, "sshd did not come back")
        time.sleep(5)
        assert pod.said().count("[n0r0] step 3") == 1
        assert len(runs.read(pod.volume / "runs/own/attempts.json")) == 1
        pod.signal(signal.SIGTERM)
        assert pod.process.wait(30) == 0


def test_at_a_stop_the_training_saves_before_the_services_end(pod):
    with training(pod, "steps=3000 save=3"):
        runs.wait_for_step(pod.volume / "runs/own", 5)
        pod.wait_for("Server listening")
        pod.signal(signal.SIGTERM)
        time.sleep(1.5)
        assert pod.ssh("echo still here").stdout == b"still here\n"
        assert pod.process.wait(30) == 143
    lines = pod.said().splitlines()
    ended = next(i for i, line in enumerate(lines) if "Received signal 15; terminating" in line)
    assert max(i for i, line in enumerate(lines) if line.startswith("[n0r0] step")) < ended
    assert len(list((pod.volume / "runs/own/checkpoints").glob("step-*"))) == 1


def test_neither_a_killed_supervisor_nor_its_killed_watch_touches_the_run(pod):
    with training(pod, "steps=3000"):
        run = pod.volume / "runs/own"
        runs.wait_for_step(run, 3)
        (daemon,) = pod.processes("supervisor.supervisord")
        daemon.kill()
        pod.wait_for("supervisor was killed by signal 9; it and its services are started again")
        runs.wait_for(lambda: pod.said().count("Server listening on 0.0.0.0") == 2, "sshd did not come back")
        assert pod.ssh("echo here").stdout == b"here\n"
        (daemon,) = pod.processes("supervisor.supervisord")
        daemon.parent().kill()
        pod.wait_for("the services' watch has ended, and they with it; everything else goes on\n  fix: ")
        psutil.wait_procs([daemon], timeout=10)
        runs.wait_for_step(run, runs.step_of(run) + 10)
        assert pod.processes("supervisor.supervisord") == pod.processes("sshd -D") == []
        pod.signal(signal.SIGTERM)
        assert pod.process.wait(30) == 143


def test_a_watch_that_hangs_as_on_a_volume_that_is_gone_does_not_hold_up_the_end(pod):
    with training(pod, "steps=3000"):
        runs.wait_for_step(pod.volume / "runs/own", 3)
        pod.wait_for("Server listening")
        (daemon,) = pod.processes("supervisor.supervisord")
        daemon.parent().suspend()
        pod.signal(signal.SIGTERM)
        assert pod.process.wait(40) == 143


def test_shells_get_the_settings_of_the_runs_plan(pod):
    with training(pod, "steps=3000"):
        runs.wait_for_step(pod.volume / "runs/own", 3)
        pod.wait_for("Server listening")
        assert b"GLOO_SOCKET_IFNAME=" in pod.ssh("env").stdout
        assert b"TRAIN_RUN_DIR" not in pod.ssh("env").stdout
