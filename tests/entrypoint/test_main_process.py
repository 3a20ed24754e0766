"""As process 1 of a pid namespace, which a container is: with tini before us, and where a platform has replaced it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import psutil
import pytest
import runs

NAMESPACE = ("unshare", *(() if os.getuid() == 0 else ("-r",)), "-pf", "--mount-proc", "--kill-child")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0,
        reason="no pid namespaces here",
    ),
]
TINI = pytest.param(("tini", "-g", "--"), marks=pytest.mark.skipif(not shutil.which("tini"), reason="no tini here"))
INITS = pytest.mark.parametrize("init", [TINI, ()], ids=["tini", "none"])
ORPHANS = """
import contextlib, os, time
from pathlib import Path

for _ in range(100):
    if not (child := os.fork()):
        if not os.fork():
            time.sleep(0.1)
        os._exit(0)
    os.waitpid(child, 0)

def count():
    states = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            states.append(path.read_text().rpartition(")")[2].split()[0])
    return states.count("Z")

until = time.monotonic() + 20
while time.monotonic() < until and (time.sleep(0.5) or count()):
    pass
print("zombies:", count())
"""


class Machine:
    """A volume with a script, and process 1 of a namespace that has both."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "runs" / "own"
        runs.write_script(folder)
        self.variables = runs.environment(folder, TMUX_TMPDIR=str(folder), TERM="xterm-256color", LANG="C.UTF-8")

    def command(self, init, *words):
        return [*NAMESPACE, *init, sys.executable, "-m", "entrypoint", *map(str, words)]

    def up(self, init, script="own.py", arguments="steps=3000"):
        return subprocess.Popen(
            self.command(init, "up"),
            cwd=runs.ROOT,
            env=self.variables
            | {"TRAIN_SCRIPT": str(self.folder / script), "TRAIN_ARGS": arguments, "TRAIN_RESTARTS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tmux(self, *words):
        command = ["tmux", "-L", "roundhouse", *words]
        return subprocess.run(command, env=self.variables, capture_output=True, text=True).stdout

    def goes_on(self):
        runs.wait_for_step(self.run, int((self.run / "step").read_text()) + 3)


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    runs.wait_for(lambda: not runs.processes_of(machine.run), "something was left", seconds=20)


def end(process: subprocess.Popen, number: signal.Signals) -> None:
    """As an engine does it: to process 1 alone."""
    os.kill(psutil.Process(process.pid).children()[0].pid, number)


@INITS
def test_a_stop_reaches_the_trainer_in_its_own_session_and_the_next_start_goes_on(machine, init):
    first = machine.up(init)
    runs.wait_for_step(machine.run, 5)
    if shutil.which("tmux"):
        assert machine.tmux("list-sessions", "-F", "#{session_name}") == "train\n"
    end(first, signal.SIGTERM)
    code, output = runs.finish(first)
    assert code == 143, output
    assert "[n0r0] step 5\n" in output
    assert len(list((machine.run / "checkpoints").glob("step-*"))) == 1
    second = machine.up(init, arguments="steps=3")
    assert runs.finish(second)[0] == 0
    third = machine.up(init, arguments="steps=3")
    code, output = runs.finish(third)
    assert code == 0
    assert "own has finished" in output
    assert len(list(machine.run.glob("logs/attempt-*"))) == 2


@INITS
def test_the_exit_code_is_the_trainings(machine, init):
    code, output = runs.finish(machine.up(init, arguments="do=exit code=42"))
    assert code == 42
    assert "first to fail: node 0 rank 1, exit code 42" in output


@INITS
def test_no_zombie_is_left_of_a_hundred_orphans(machine, init):
    (machine.folder / "orphans.py").write_text(ORPHANS)
    code, output = runs.finish(machine.up(init, script="orphans.py"))
    assert code == 0, output
    assert "[n0r0] zombies: 0" in output


@INITS
def test_an_agent_that_was_killed_is_a_failure(machine, init):
    process = machine.up(init)
    runs.wait_for_step(machine.run, 2)
    tree = psutil.Process(process.pid).children(recursive=True)
    agent = next(one for one in tree if "elastic.py" in " ".join(one.cmdline())).parent()
    agent.kill()
    code, output = runs.finish(process)
    assert code == 137
    assert "was killed before it could tell" in output


def test_a_stop_before_the_training_has_begun_is_no_bug_of_ours(machine):
    (machine.run.parent).mkdir()
    lock = machine.run.with_name(".own.lock")
    other = {"pid": 1, "host": "other", "boot": "b", "pids": "p", "started": 0.0, "token": "t", "beat": 0}
    lock.write_text(runs.json.dumps(other))  # another machine's: watched for 15 s
    process = machine.up(())
    for line in process.stdout:
        if "waiting" in line:
            break
    end(process, signal.SIGTERM)
    code, output = runs.finish(process)
    assert code == 143
    assert "stopped before the training began" in output
    lock.unlink()


@INITS
@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")
def test_leaving_the_terminal_does_not_end_the_container_and_a_stop_still_saves(machine, init):
    name, *words = machine.command(init, "train", machine.folder / "own.py", "steps=3000")
    terminal = pexpect.spawn(
        name, words, cwd=str(runs.ROOT), env=machine.variables, encoding="utf-8", timeout=40, dimensions=(30, 120)
    )
    terminal.expect(r"\[n0r0\] step 5")
    terminal.send("\x02d")  # tmux: detach
    terminal.expect(re.escape("own goes on, and this container with it"))
    terminal.expect(r"\[n0r0\] step \d+")
    machine.goes_on()
    machine.tmux("kill-server")
    machine.goes_on()
    process_1 = psutil.Process(terminal.pid).children()[0].pid
    os.kill(process_1, signal.SIGHUP)  # what `docker run` hands on when the laptop is closed
    machine.goes_on()
    os.kill(process_1, signal.SIGTERM)
    terminal.expect("the run is in")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 143
    assert len(list((machine.run / "checkpoints").glob("step-*"))) == 1


@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")
def test_a_stop_while_the_terminal_shows_the_run_saves_too(machine):
    init = ("tini", "-g", "--") if shutil.which("tini") else ()
    name, *words = machine.command(init, "train", machine.folder / "own.py", "steps=3000", "save=2")
    terminal = pexpect.spawn(
        name, words, cwd=str(runs.ROOT), env=machine.variables, encoding="utf-8", timeout=40, dimensions=(30, 120)
    )
    terminal.expect(r"\[n0r0\] step 5")
    os.kill(psutil.Process(terminal.pid).children()[0].pid, signal.SIGTERM)
    terminal.expect("the run is in")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert "cannot use this terminal" not in terminal.before
    assert terminal.exitstatus == 143
    assert len(list((machine.run / "checkpoints").glob("step-*"))) == 1
