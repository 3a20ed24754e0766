"""A run that outlives its terminal: the agent in a session of its own, and a tmux session that shows it.

The agent is not in the tmux pane but beside it. The pane has a viewer of the run's files, so nothing that a terminal
does (Ctrl-S, closing, kill-session) can reach the training, and no environment passes through the tmux server, which
would give a second run the variables of the first (tmux/tmux#3041).
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from entrypoint.errors import OWN_BUG, Problem
from entrypoint.run_folder import RunFolder
from entrypoint.run_lock import living_holder
from entrypoint.viewer import Follower

SOCKET = "roundhouse"
_ROOT = Path(__file__).resolve().parent.parent
_VIEWER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from entrypoint.viewer import main; main()"
_KEPT = ("PATH", "HOME", "TERM", "TMUX_TMPDIR", "LANG", "LC_ALL", "LC_CTYPE")


class Refused(Problem):
    """What the agent refused, told again on the terminal that started it."""

    def __init__(self, problem: str, *, fix: str, exit_code: int) -> None:
        super().__init__(problem, fix=fix)
        self.exit_code = exit_code  # type: ignore[misc]


def start_agent(agent: Callable[[Callable[[str | None], None]], int], log: Path) -> str | None:
    """Fork the agent into a session of its own. It calls what it is given when it has the run: then its output goes to
    `log`. Returns the text that it gave there (None: it trains); Refused where a Problem came first."""
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        with open(read) as told:
            document = json.loads(told.read() or "null")
        if document is None:
            raise Refused("the launcher ended before it began", fix=f"look at {log}", exit_code=OWN_BUG)
        if "problem" in document:
            raise Refused(document["problem"], fix=document["fix"], exit_code=document["exit_code"])
        text: str | None = document["ready"]
        return text
    code = OWN_BUG
    try:
        os.close(read)
        code = _agent(agent, write, log)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the rest of this stack belongs to the parent


def _agent(agent: Callable[[Callable[[str | None], None]], int], write: int, log: Path) -> int:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def ready(text: str | None) -> None:
        null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        _tell(write, {"ready": text})

    try:
        return agent(ready)
    except Problem as problem:
        _tell(write, {"problem": problem.problem, "fix": problem.fix, "exit_code": problem.exit_code})
        return problem.exit_code


def _tell(write: int, document: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        os.write(write, json.dumps(document).encode())
        os.close(write)


def attach(folder: RunFolder, variables: Mapping[str, str]) -> None:
    """Show a living run on this terminal until it ends or the person leaves: in tmux where that is possible."""
    holder = living_holder(folder.lock)
    if holder is None:
        return
    tmux = shutil.which("tmux", path=variables.get("PATH", os.defpath))
    if tmux is None:
        print(
            f"no tmux here: the run is a background process (pid {holder.pid}); closing this terminal does not end it"
        )
    else:
        if _attach(Tmux(tmux, variables), folder) or living_holder(folder.lock) is None:
            return
        print(f"tmux cannot use this terminal (TERM={variables.get('TERM', '')}); closing it does not end the run")
    Follower(folder).follow()


class Tmux:
    """Our own server, with nothing of the caller's environment or configuration in it."""

    def __init__(self, program: str, variables: Mapping[str, str]) -> None:
        self._command = [program, "-L", SOCKET, "-f", os.devnull]
        self._environment = {name: variables[name] for name in _KEPT if variables.get(name)}

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*self._command, *words], env=self._environment, capture_output=True, text=True)

    def attach(self, session: str) -> bool:
        return (
            subprocess.run([*self._command, "attach-session", "-t", f"={session}"], env=self._environment).returncode
            == 0
        )

    def session_of(self, folder: RunFolder) -> str | None:
        listed = self.run("list-sessions", "-F", "#{@run}\t#{session_name}").stdout
        names = dict(line.split("\t", 1) for line in listed.splitlines() if "\t" in line)
        return names.get(str(folder.path))

    def new_session(self, folder: RunFolder) -> str | None:
        """A session `train-<run>` whose pane follows the run; None: tmux would not."""
        base = "train-" + "".join(c if c.isalnum() or c in "-_" else "_" for c in folder.path.name)
        viewer = [sys.executable, "-P", "-c", _VIEWER, str(_ROOT), str(folder.path), str(folder.node)]
        for name in (base, *(f"{base}-{number}" for number in range(2, 100))):
            made = self.run(
                *("start-server", ";", "set-option", "-g", "history-limit", "50000", ";"),
                *("new-session", "-d", "-s", name, "-e", "LANG=C.UTF-8", "-e", "PYTHONUTF8=1", "--", *viewer),
                *(";", "set-option", "-t", f"={name}:", "@run", str(folder.path)),
            )
            if made.returncode == 0:
                return name
            if "duplicate session" not in made.stderr:
                print(made.stderr.strip(), file=sys.stderr)
                return None
        return None


def _attach(tmux: Tmux, folder: RunFolder) -> bool:
    """False: this terminal cannot show it."""
    session = tmux.session_of(folder) or tmux.new_session(folder)
    if session is None:
        return False
    # a session that is there no more was shown, until it or its server was killed
    return tmux.attach(session) or tmux.session_of(folder) is None
