"""A real supervisord and its watch, with services that do what services do."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
import runs
import test_ssh

from entrypoint.run_folder import read_json

why_not = subprocess.run([sys.executable, "-c", "import supervisor"], capture_output=True).returncode != 0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not and os.environ.get("CI") != "true", reason="no supervisor here"),
]

KEEP = """
import json, sys
from pathlib import Path
from entrypoint import services
from entrypoint.service import Service
from entrypoint.watch import Watch

folder, told, environment = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
made = [Service(one["name"], tuple(one["command"]), "by nobody", environment=one["environment"]) for one in told]
services.prepare(folder, made, environment)
Watch(folder, made).run()
"""
LIVE = ("sh", "-c", "echo here I am; exec sleep 600")


class Kept:
    """A watch over services, each given as name and command."""

    def __init__(self, folder, environment=None, own=None, **commands):
        self.folder = folder
        told = [{"name": n, "command": c, "environment": (own or {}).get(n, {})} for n, c in commands.items()]
        given = {"PATH": os.environ["PATH"], **(environment or {})}
        command = [sys.executable, "-c", KEEP, folder, json.dumps(told), json.dumps(given)]
        with open(folder / "out", "wb") as out:
            self.process = subprocess.Popen(
                command, cwd=runs.ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def said(self):
        return (self.folder / "out").read_text()

    def wait_for(self, text, seconds=40):
        runs.wait_for(lambda: text in self.said(), f"never said {text!r}", seconds)

    def states(self):
        return {one["name"]: one["state"] for one in read_json(self.folder / "services.json") or ()}

    def tree(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, word):
        return next(one for one in self.tree() if word in " ".join(one.cmdline()))

    def stop(self):
        self.process.terminate()
        return self.process.wait(20)


@pytest.fixture
def keep(tmp_path):
    kept = []

    def start(**options):
        kept.append(Kept(tmp_path, **options))
        return kept[-1]

    yield start
    for one in kept:
        tree = one.tree() if one.process.poll() is None else []
        one.process.kill()
        one.process.wait()
        alive = psutil.wait_procs(tree, timeout=10)[1]
        for left in alive:
            left.kill()
        assert not alive, f"left: {alive}"


def test_a_service_that_gives_up_is_told_once_with_its_last_words_and_the_others_live(keep, tmp_path):
    kept = keep(broken=("sh", "-c", "echo one; echo 'port 8888 is taken'; exit 3"), live=LIVE)
    kept.wait_for("broken gave up")
    time.sleep(3)
    assert kept.said().count("gave up") == 1
    log = tmp_path / "logs/broken.log"
    control = f"supervisorctl -c {tmp_path}/supervisord.conf"
    assert (
        "broken gave up after 4 starts: port 8888 is taken; everything else goes on\n"
        f"  fix: read {log}, then `{control} start broken`\n"
    ) in kept.said()
    assert kept.said().count("[broken] port 8888 is taken\n") == 4
    assert "[live] here I am\n" in kept.said()
    runs.wait_for(lambda: kept.states() == {"broken": "gave up", "live": "running"}, "wrong states")
    words = [sys.executable, "-m", "supervisor.supervisorctl", *control.split()[1:], "status", "live"]
    assert "RUNNING" in subprocess.run(words, capture_output=True, text=True).stdout
    assert kept.stop() == 0
    assert kept.states() == {"broken": "stopped", "live": "stopped"}


def test_a_service_gets_its_command_folder_and_variables_exactly(keep, tmp_path):
    words = ("a b", "%(here)s", "100%", 'it\'s "q" ; # $(x)\n', "")
    command = ("python3", "-c", "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))", str(tmp_path / "words"))
    given = test_ssh.GIVEN
    keep(
        environment={**given, "OWN": "everybody's"},
        own={"dump": {"OWN": "its own"}},
        dump=("sh", "-c", f"env -0 > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/dump; exec sleep 600"),
        words=(*command, *words),
    )
    runs.wait_for((tmp_path / "dump").exists, "not started")
    runs.wait_for((tmp_path / "words").exists, "not started")
    there = test_ssh.parsed((tmp_path / "dump").read_bytes())
    assert {name: there.get(name) for name in given} == given
    assert there["OWN"] == "its own"
    runs.wait_for(lambda: (tmp_path / "words").read_text() == repr(list(words)), (tmp_path / "words").read_text())


def test_a_service_that_ended_after_a_while_is_started_again_and_told(keep, tmp_path):
    kept = keep(live=LIVE)
    runs.wait_for(lambda: kept.states() == {"live": "running"}, "not running")
    kept.child("sleep 600").kill()
    kept.wait_for("live ended and is started again\n")
    runs.wait_for(lambda: kept.said().count("[live] here I am") == 2, "not started again")


def test_a_supervisor_that_was_killed_takes_no_service_along_for_good(keep):
    kept = keep(live=LIVE)
    kept.wait_for("[live] here I am")
    first = kept.child("sleep 600")
    kept.child("supervisor.supervisord").kill()
    kept.wait_for("supervisor was killed by signal 9; it and its services are started again\n")
    runs.wait_for(lambda: kept.said().count("[live] here I am") == 2, "not started again")
    assert not first.is_running()
    for _ in range(2):
        kept.child("supervisor.supervisord").kill()
        time.sleep(2)
    kept.wait_for(
        "supervisor was killed by signal 9, 3 times; there are no services now, and training goes on\n  fix: "
    )
    assert kept.process.poll() is None
    assert kept.states() == {"live": "gave up"}


def test_a_stop_ends_a_service_that_will_not_and_leaves_nothing(keep):
    kept = keep(stubborn=("sh", "-c", "trap '' TERM; echo up; while true; do sleep 1; done"), live=LIVE)
    kept.wait_for("[stubborn] up")
    tree, began = kept.tree(), time.monotonic()
    assert kept.stop() == 0
    assert time.monotonic() - began < 9
    assert [one for one in tree if one.is_running() and one.status() != "zombie"] == []


def test_a_watch_that_was_killed_leaves_nothing(keep):
    kept = keep(live=LIVE)
    kept.wait_for("[live] here I am")
    tree = kept.tree()
    kept.process.kill()
    assert psutil.wait_procs(tree, timeout=10)[1] == []


def test_there_is_no_port_and_the_way_in_is_this_users_alone(keep, tmp_path):
    kept = keep(live=LIVE)
    kept.wait_for("[live] here I am")
    assert [one.net_connections("inet") for one in kept.tree() if one.net_connections("inet")] == []
    assert (tmp_path / "supervisor.sock").stat().st_mode & 0o777 == 0o600


def test_supervisors_own_lines_are_not_shown(keep):
    kept = keep(live=LIVE)
    runs.wait_for(lambda: kept.states() == {"live": "running"}, "not running")
    kept.stop()
    assert kept.said() == "[live] here I am\n"


def test_a_service_that_talks_without_end_fills_neither_the_screen_nor_the_disk(keep, tmp_path):
    kept = keep(loud=("python3", "-c", "for i in range(300_000): print('line', i)\nimport time; time.sleep(600)"))
    runs.wait_for(lambda: (tmp_path / "logs/loud.log.1").exists(), "not that much said")
    runs.wait_for(lambda: kept.states() == {"loud": "running"}, "not running")
    kept.stop()
    shown = kept.said().splitlines()
    # One may tell how much was passed over, and the next begin in the middle of a line.
    assert sum(bool(re.fullmatch(r"\[loud\] line \d+", line)) for line in shown[:30]) >= 28, shown[:30]
    (more,) = [line for line in shown[30:] if line]
    assert re.fullmatch(rf"\[loud\] \(\d+ more lines are in {tmp_path}/logs/loud.log\)", more)
    assert sum(path.stat().st_size for path in (tmp_path / "logs").iterdir()) < 3 << 20


def test_the_runs_folder_has_the_services_lines_and_states(keep, tmp_path):
    (tmp_path / "run/logs").mkdir(parents=True)
    kept = keep(live=("sh", "-c", "echo early; sleep 4; echo late; exec sleep 600"))
    kept.wait_for("[live] early")
    (tmp_path / "run.json").write_text(json.dumps({"path": str(tmp_path / "run"), "node": 1}))
    kept.wait_for("[live] late")
    assert "[live] late\n" in (tmp_path / "run/logs/services-n1.log").read_text()
    runs.wait_for(lambda: read_json(tmp_path / "run/services-n1.json"), "no states in the run's folder")


def test_services_end_when_who_started_them_is_killed(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from entrypoint.services import Beside; from entrypoint.service import Service\n"
        f"side = Beside(Path({str(tmp_path)!r}), {{}})\n"
        f"side.start([Service('live', {LIVE!r}, 'by nobody')], {{'PATH': os.defpath}})\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=runs.ROOT, stdout=subprocess.DEVNULL)
    runs.wait_for(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 3, "not started")
    runs.wait_for((tmp_path / "supervisor.sock").exists, "not started")
    tree = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(tree, timeout=15)[1] == []
