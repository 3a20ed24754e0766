"""What `up` does when training has ended or could not begin: real processes, a real API on this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import runs
from clouds import OK, Api

from entrypoint import afterwards
from entrypoint.afterwards import Afterwards, End
from entrypoint.ending import Cloud, Ending
from entrypoint.interrupts import Interrupts
from entrypoint.run_folder import RunFolder, write_json
from entrypoint.runtime import Runtime

VAST = {"VAST_CONTAINERLABEL": "C.4711", "CONTAINER_API_KEY": "TOPSECRET"}
STOP = {**VAST, "TRAIN_ON_EXIT": "stop"}


class Container:
    """`up` as a container runs it, with a run that has finished or a setting that is wrong: nothing is trained."""

    def __init__(self, folder, **variables) -> None:
        self.folder, self.run, self.runtime = folder, folder / "runs" / "own", Runtime((folder / "runtime",))
        script = runs.write_script(folder)
        if "TRAIN_NODES" not in variables:
            self.run.mkdir(parents=True, exist_ok=True)
            if not (self.run / "exit.json").exists():
                ended = {"exit_code": 0, "text": None, "command": [str(script)], "ended_at": 1.0}
                (self.run / "exit.json").write_text(json.dumps(ended))
        names = {"TRAIN_SCRIPT": str(script), "TRAIN_RUNTIME": str(self.runtime.folder)} | variables
        self.variables = runs.environment(folder, **names)
        self.log = folder / f"log-{time.monotonic_ns()}"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "entrypoint", "up"],
                cwd=runs.ROOT,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        runs.wait_for(lambda: text in self.said() or self.process.poll() is not None, text, seconds=90)
        assert text in self.said(), self.said()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def command(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "entrypoint", *words],
            cwd=runs.ROOT,
            env=self.variables,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def container(tmp_path):
    made = []

    def start(**variables):
        made.append(Container(tmp_path, **variables))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


def test_a_finished_run_ends_the_container_with_0(container):
    one = container()
    assert one.process.wait(30) == 0
    assert "own has finished" in one.said()


def test_where_the_platform_starts_it_again_a_finished_run_stays_and_is_healthy(container):
    one = container(**VAST)
    one.wait_for("this container stays")
    health = one.command("health")
    assert (health.returncode, health.stdout) == (0, "own has ended with 0\n")
    assert not one.runtime.banner.exists()
    assert one.stop() == 0


def test_a_start_that_fails_stays_too_instead_of_being_tried_for_ever(container):
    one = container(**VAST, TRAIN_NODES="two")
    one.wait_for("this container stays")
    assert "error: TRAIN_NODES" in one.said()
    assert "error: TRAIN_NODES" in one.runtime.banner.read_text()
    health = one.command("health")
    assert (health.returncode, "failed with exit code 78" in health.stdout) == (1, True)
    status = one.command("status")
    assert (status.returncode, "the start has failed with exit code 78" in status.stdout) == (78, True)
    assert runs.json.loads(one.command("status", "--json").stdout)["exit_code"] == 78
    assert one.stop() == 78


def test_elsewhere_a_start_that_fails_is_over(container):
    one = container(TRAIN_NODES="two")
    assert one.process.wait(30) == 78
    assert "fix:" in one.said()


def test_a_finished_run_stops_its_machine_once_and_a_start_after_that_is_left_alone(container):
    with Api() as api:
        one = container(**STOP, TRAIN_CLOUD_API=api.url)
        api.wait_for(1)
        one.wait_for("Vast.ai was asked to stop this machine, and does")
        assert one.process.poll() is None  # until the cloud's signal
        assert one.stop() == 0
        again = container(**STOP, TRAIN_CLOUD_API=api.url)  # a person wants to look at the results
        again.wait_for("was stopped for it once")
        again.wait_for("this container stays")
        assert again.stop() == 0
        assert len(api.seen) == 1
        elsewhere = container(**STOP | {"VAST_CONTAINERLABEL": "C.4712"}, TRAIN_CLOUD_API=api.url)
        api.wait_for(2)
        assert elsewhere.stop() == 0
        (one.run / "exit.json").write_text((one.run / "exit.json").read_text().replace("1.0", "2.0"))  # trained again
        newer = container(**STOP, TRAIN_CLOUD_API=api.url)
        api.wait_for(3)
        assert newer.stop() == 0
    said = one.said() + again.said() + newer.said()
    assert "TOPSECRET" not in said + (one.run / "stop-request.json").read_text()
    assert [seen.path for seen in api.seen] == [f"/console.vast.ai/api/v0/instances/{n}/" for n in (4711, 4712, 4711)]


def test_a_stop_that_is_faster_than_its_answer_was_the_one(container):
    """The machine goes down while the answer is on its way; a person who starts it again is left alone."""
    with Api(["stall"]) as api:
        one = container(**STOP, TRAIN_CLOUD_API=api.url)
        api.wait_for(1)
        assert one.stop() == 0  # at once, although the server stalls
        again = container(**STOP, TRAIN_CLOUD_API=api.url)
        again.wait_for("was stopped for it once")
        assert len(api.seen) == 1


def test_what_was_asked_and_not_taken_is_asked_again_by_the_next_start(container):
    with Api(["stall"]) as api:
        one = container(**STOP, TRAIN_CLOUD_API=api.url)
        api.wait_for(1)
        one.process.kill()  # a crash of the host is no stop
        one.process.wait()
    with Api() as api:
        again = container(**STOP, TRAIN_CLOUD_API=api.url)
        again.wait_for("and does")
        assert len(api.seen) == 1


def test_a_refused_stop_is_said_and_the_container_stays_unhealthy(container):
    with Api([(401, {"error": "bad key TOPSECRET"})]) as api:
        one = container(**STOP, TRAIN_CLOUD_API=api.url)
        one.wait_for("this machine is NOT stopped and costs: Vast.ai refuses: console.vast.ai answers 401: bad key ***")
        one.wait_for("this container stays")
    assert one.command("health").returncode == 1
    assert "NOT stopped" in one.runtime.banner.read_text()
    assert "TOPSECRET" not in one.said() + one.runtime.banner.read_text()
    assert one.stop() == 0


@pytest.mark.parametrize(
    ("stop_on", "requests"),
    [("success", 0), ("always", 1), ("failure:1s", 1)],
)
def test_after_a_failure_the_machine_is_stopped_where_that_was_told(container, stop_on, requests):
    with Api() as api:
        one = container(**STOP, TRAIN_CLOUD_API=api.url, TRAIN_STOP_ON=stop_on, TRAIN_NPROC="many")
        one.wait_for("and does" if requests else "this container stays")
        assert len(api.seen) == requests
        assert one.stop() == 78
    assert ("keeps it" in one.said()) == stop_on.startswith("failure")


def test_a_person_keeps_a_machine_that_would_be_stopped(container):
    with Api() as api:
        one = container(**STOP, TRAIN_CLOUD_API=api.url, TRAIN_STOP_ON="failure:1h", TRAIN_NPROC="many")
        one.wait_for("keeps it")
        assert str(one.runtime.keep) in one.runtime.banner.read_text()
        one.runtime.keep.touch()
        one.wait_for("keep is there")
        one.wait_for("this container stays")
        assert api.seen == []
        assert one.stop() == 78


# ---- in this process, with shorter times ----


@pytest.fixture
def conclude(tmp_path, monkeypatch):
    """Run it to its end; after `seconds` a SIGTERM comes."""
    monkeypatch.setattr(afterwards, "SAY_SECONDS", 0.3)
    monkeypatch.setattr(afterwards, "_LOOK_SECONDS", 0.05)
    folder, runtime = RunFolder(tmp_path / "runs" / "own"), Runtime((tmp_path / "runtime",))
    folder.path.mkdir(parents=True)

    def run(ending, code, *, seconds, variables=None, may_stay=True, text=None, meanwhile=lambda runtime: None):
        write_json(folder.of_node("exit.json"), {"exit_code": code, "text": text, "ended_at": time.time()})
        said: list[str] = []
        state = runtime.begin(folder.path, 0)
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
        threading.Timer(seconds / 2, meanwhile, (runtime,)).start()
        with Interrupts() as interrupts:
            timer.start()
            after = Afterwards(
                ending, variables or {}, runtime, state, may_stay=may_stay, say=said.append, interrupts=interrupts
            )
            began = time.monotonic()
            found = after.conclude(End(code, folder, text))
            took = time.monotonic() - began
            timer.cancel()
        return found, said, took, runtime

    return run


STAY, EXIT = Ending("stay", "stay", "stay", "why"), Ending("exit", "exit", "exit", "why")
ASK = Ending("stop", "stop", "stay", "why", cloud=Cloud("vast", "4711"))


def test_a_failure_is_said_again_and_again_and_in_each_new_shell(conclude):
    code, said, took, runtime = conclude(STAY, 42, seconds=1.2, text="first to fail: node 0 rank 1")
    assert code == 42
    assert took >= 1.1
    assert 3 <= sum("failed with exit code 42" in line for line in said) <= 5
    assert "it costs meanwhile" in said[-1]
    banner = runtime.banner.read_text()
    assert "own has failed with exit code 42" in banner
    assert "first to fail: node 0 rank 1" in banner


def test_a_success_is_said_once(conclude):
    code, said, _, runtime = conclude(STAY, 0, seconds=1.2)
    assert code == 0
    assert [line for line in said if "has finished" in line] == said
    assert len(said) == 1
    assert not runtime.banner.exists()


@pytest.mark.parametrize(("code", "may_stay"), [(0, False), (1, False)])
def test_a_command_that_somebody_typed_ends(conclude, code, may_stay):
    found, _, took, _ = conclude(STAY, code, seconds=5, may_stay=may_stay)
    assert found == code
    assert took < 1


def test_a_run_that_was_stopped_on_request_stops_no_machine(conclude):
    with Api() as api:
        code, said, _, runtime = conclude(ASK, 143, seconds=0.5, variables={**VAST, "TRAIN_CLOUD_API": api.url})
    assert code == 143
    assert api.seen == []
    assert "was stopped on request" in said[0]
    assert not runtime.banner.exists()


def test_a_stop_that_was_taken_and_does_not_come_is_said_and_not_asked_for_again(conclude):
    with Api() as api:
        code, said, _, runtime = conclude(ASK, 0, seconds=1.5, variables={**VAST, "TRAIN_CLOUD_API": api.url})
    assert code == 0
    assert len(api.seen) == 1
    assert "still runs and costs: stop it by hand" in said[-1]
    assert runtime.read().trouble is not None
    assert "still runs and costs" in runtime.banner.read_text()


def test_another_training_on_the_machine_cancels_a_stop_to_come(conclude):
    ending = Ending("stop", "stop", "stay", "why", failure_seconds=3600, cloud=Cloud("vast", "4711"))
    with Api() as api:
        variables = {**VAST, "TRAIN_CLOUD_API": api.url}
        _, said, _, _ = conclude(ending, 1, seconds=1, variables=variables, meanwhile=lambda r: r.begin(None, 0))
    assert api.seen == []
    assert any("another training was started here" in line for line in said)


def test_a_typed_command_asks_and_ends(conclude):
    with Api([(500, ""), OK]) as api:
        code, said, took, _ = conclude(
            ASK, 0, seconds=20, variables={**VAST, "TRAIN_CLOUD_API": api.url}, may_stay=False
        )
    assert code == 0
    assert len(api.seen) == 2
    assert took < 10
    assert "and does" in said[-1]


def test_nothing_is_done_where_it_ends_with_its_code(conclude):
    assert conclude(EXIT, 7, seconds=5)[0:2] == (7, [])
