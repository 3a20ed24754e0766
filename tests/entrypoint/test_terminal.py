"""A run in a real terminal: closing it, leaving and coming back, Ctrl-S, Ctrl-C, and terminals that lack something."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
import runs

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here"),
]
QUESTION = re.escape("stop the run? [y/N]")


class Desk:
    """A volume, a script, and terminals; each its own tmux server, ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "runs" / "own"
        self.script = runs.write_script(folder)
        self.variables = runs.environment(folder, TERM="xterm-256color", LANG="C.UTF-8", TMUX_TMPDIR=str(folder))
        self.terminals: list[pexpect.spawn] = []

    def type(self, *words: object, **variables: str) -> pexpect.spawn:
        terminal = pexpect.spawn(
            sys.executable,
            ["-m", "entrypoint", *map(str, words)],
            cwd=str(runs.ROOT),
            env=self.variables | variables,
            encoding="utf-8",
            codec_errors="replace",
            timeout=40,
            dimensions=(30, 120),
        )
        self.terminals.append(terminal)
        return terminal

    def train(self, *words: object, **variables: str) -> pexpect.spawn:
        return self.type("train", self.script, *words, **variables)

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-L", "roundhouse", *words]
        return subprocess.run(command, env=self.variables, capture_output=True, text=True).stdout

    def agent(self) -> int:
        return runs.read(self.run.with_name(".own.lock"))["pid"]

    def step(self) -> int:
        return int((self.run / "step").read_text() or 0)

    def goes_on(self) -> bool:
        before = self.step()
        runs.wait_for(lambda: self.step() > before + 3, "the training does not go on")
        return True

    def code(self) -> int:
        runs.wait_for((self.run / "exit.json").exists, "the run has not ended")
        return runs.read(self.run / "exit.json")["exit_code"]

    def clear(self) -> None:
        for pid in runs.processes_of(self.run):
            os.kill(pid, signal.SIGKILL)
        self.tmux("kill-server")
        for terminal in self.terminals:
            terminal.close(force=True)


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    yield desk
    desk.clear()
    assert not runs.processes_of(desk.run)


def code_of(terminal: pexpect.spawn) -> int | None:
    terminal.expect(pexpect.EOF)
    terminal.close()
    return terminal.exitstatus


LONG = ("steps=3000",)


def test_what_the_run_said_last_stays_on_the_screen_when_its_session_has_ended(desk):
    terminal = desk.train("steps=30")
    terminal.expect(re.escape("[exited]"))  # tmux has taken its screen away
    terminal.expect(r"\[n0r0\] step 30")
    terminal.expect(f"the run is in {re.escape(str(desk.run))}")
    assert code_of(terminal) == 0


def test_start_detach_reattach_resize_and_the_end_with_the_trainings_code(desk):
    terminal = desk.train("steps=150", "do=exit", "at=150", "code=42", TRAIN_RESTARTS="1")
    terminal.expect(r"\[n0r0\] step 5")
    terminal.send("\x02d")  # tmux: detach
    terminal.expect("own goes on")
    assert code_of(terminal) == 0
    assert desk.goes_on()
    again = desk.type("attach", "own")
    again.expect(r"\[n0r1\] step \d+")
    again.setwinsize(20, 60)
    runs.wait_for(lambda: "60x" in desk.tmux("list-sessions", "-F", "#{window_width}x"), "not resized")
    again.expect(r"\[n0r1\] step \d+")
    again.expect("first to fail: node 0 rank 1, exit code 42")
    assert code_of(again) == 42


def test_ctrl_s_stops_the_screen_and_not_the_training(desk):
    terminal = desk.train(*LONG)
    terminal.expect(r"\[n0r0\] step 5")
    terminal.send("\x13")
    desk.tmux("send-keys", "-t", "train-own", "C-s")  # in the pane itself too
    assert desk.goes_on()


def test_ctrl_c_asks_and_yes_saves(desk):
    terminal = desk.train(*LONG)
    terminal.expect(r"\[n0r0\] step 5")
    terminal.send("\x03")
    terminal.expect(QUESTION)
    assert desk.goes_on()
    terminal.send("n\r")
    terminal.expect("it goes on")
    terminal.expect(r"\[n0r0\] step \d+")
    terminal.send("\x03")
    terminal.expect(QUESTION)
    terminal.send("y\r")
    assert code_of(terminal) == 143
    assert len(list((desk.run / "checkpoints").glob("step-*"))) == 1


def test_a_second_ctrl_c_within_the_question_kills_at_once(desk):
    terminal = desk.train(*LONG, "term=ignore")
    terminal.expect(r"\[n0r0\] step 5")
    terminal.send("\x03")
    terminal.expect(QUESTION)
    terminal.send("\x03")
    terminal.expect("killed at once, as asked")
    assert code_of(terminal) == 137


def test_killing_the_tmux_session_or_its_server_does_not_end_the_run(desk):
    terminal = desk.train(*LONG)
    terminal.expect(r"\[n0r0\] step 5")
    desk.tmux("kill-session", "-t", "train-own")
    terminal.expect("own goes on")
    assert code_of(terminal) == 0
    assert desk.goes_on()
    again = desk.type("attach")
    again.expect(r"\[n0r0\] step \d+")
    desk.tmux("kill-server")
    again.expect("own goes on")
    assert desk.goes_on()
    os.kill(desk.agent(), signal.SIGTERM)
    assert desk.code() == 143


@pytest.mark.parametrize("path", [None, "empty"])
def test_closing_the_terminal_does_not_end_the_run(desk, path):
    variables = {"PATH": str(desk.folder / "empty")} if path else {}
    terminal = desk.train(*LONG, **variables)
    terminal.expect(r"\[n0r0\] step 5")
    terminal.close(force=True)  # SIGHUP to what is in the foreground
    assert desk.goes_on()
    os.kill(desk.agent(), signal.SIGHUP)
    assert desk.goes_on()
    os.kill(desk.agent(), signal.SIGTERM)
    assert desk.code() == 143


def test_a_second_run_has_its_own_environment_and_not_the_first_ones(desk):
    first = desk.train(*LONG, FOO="one", ONLY_FIRST="x")
    first.expect(r"\[n0r0\] step 5")
    script = runs.write_script(
        desk.folder, "import os\nprint('FOO', os.environ['FOO'], os.environ.get('ONLY_FIRST'))\n", name="second.py"
    )
    second = desk.type("train", script, FOO="two")
    assert code_of(second) == 0
    log = desk.folder / "runs" / "second" / "logs" / "attempt-0" / "n0r0.log"
    assert log.read_text() == "FOO two None\n"
    assert "train-own" in desk.tmux("list-sessions")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"LANG": "C", "LC_ALL": "C"}, r"\[n0r0\] step 5"),
        ({"TERM": "unknown"}, "tmux cannot use this terminal"),
        ({"TERM": "no-such-terminal"}, "tmux cannot use this terminal"),
        ({"TERM": ""}, "tmux cannot use this terminal"),
        ({"PATH": "/nowhere"}, "no tmux here: the run is a background process"),
    ],
)
def test_a_terminal_that_lacks_something_shows_the_run_all_the_same(desk, variables, said):
    terminal = desk.train("steps=30", "do=exit", "at=30", "code=7", TRAIN_RESTARTS="1", **variables)
    terminal.expect(said)
    terminal.expect(r"\[n0r0\] step \d+")
    terminal.expect("first to fail: node 0 rank 1, exit code 7")
    assert code_of(terminal) == 7


def test_what_is_refused_is_told_on_the_terminal(desk):
    first = desk.train(*LONG)
    first.expect(r"\[n0r0\] step 5")
    second = desk.train(*LONG)
    second.expect(rf"own is trained already, by pid {desk.agent()} of")
    assert code_of(second) == 78
    assert desk.goes_on()


def test_status_and_logs_from_another_terminal_and_after_the_end(desk):
    terminal = desk.train("steps=3000", "every=5")
    terminal.expect(r"\[n0r0\] step 7")
    said = desk.type("status", "--json")
    said.expect('"state": "running"')
    said.expect(r'"checkpoint": \d+')
    desk.type("logs", "own", "-f").expect(r"\[n0r1\] step 6")
    os.kill(desk.agent(), signal.SIGTERM)
    assert code_of(terminal) == 143
    desk.type("status", "own").expect(r"own: stopped, step \d+, last step \d+ s ago, .*exit code 143")
    desk.type("logs", "--json").expect(r'{"process": "n0r0", "line": "step \d+"}')
    ended = desk.type("attach")
    assert code_of(ended) == 143
