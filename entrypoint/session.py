"""The tmux session that shows a run.

The agent is not in the tmux pane but beside it. The pane has a viewer of the run's files, so nothing that a terminal
does (Ctrl-S, closing, kill-session) can reach the training, and no environment passes through the tmux server, which
would give a second run the variables of the first (tmux/tmux#3041).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from entrypoint.run_folder import RunFolder
from entrypoint.run_lock import living_holder
from entrypoint.viewer import Follower

SOCKET = "roundhouse"
OFFERED = "train"  # the session of a run that nobody typed
_ROOT = Path(__file__).resolve().parent.parent
_VIEWER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from entrypoint.viewer import main; main()"
_KEPT = ("PATH", "HOME", "TERM", "TMUX_TMPDIR", "LANG", "LC_ALL", "LC_CTYPE")


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


def offer(folder: RunFolder, variables: Mapping[str, str]) -> None:
    """A session `train` of a living run, for whoever comes to look at it; a line where tmux would not."""
    tmux = shutil.which("tmux", path=variables.get("PATH", os.defpath))
    if tmux is not None and living_holder(folder.lock):
        Tmux(tmux, variables).new_session(folder, first=OFFERED)


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

    def new_session(self, folder: RunFolder, first: str | None = None) -> str | None:
        """A session `first` or `train-<run>` whose pane follows the run; None: tmux would not."""
        base = "train-" + "".join(c if c.isalnum() or c in "-_" else "_" for c in folder.path.name)
        names = (first or base, base, *(f"{base}-{number}" for number in range(2, 100)))
        viewer = [sys.executable, "-P", "-c", _VIEWER, str(_ROOT), str(folder.path), str(folder.node)]
        for name in names:
            made = self.run(
                *("start-server", ";", "set-option", "-g", "history-limit", "50000", ";"),
                *("new-session", "-d", "-s", name, "-e", "LANG=C.UTF-8", "-e", "PYTHONUTF8=1", "--", *viewer),
                *(";", "set-option", "-t", f"={name}:", "@run", str(folder.path)),
            )
            if made.returncode == 0:
                return name
            if "duplicate session" not in made.stderr:
                print(f"no tmux session: {made.stderr.strip()}", file=sys.stderr)
                return None
        return None


def _attach(tmux: Tmux, folder: RunFolder) -> bool:
    """False: this terminal cannot show it."""
    session = tmux.session_of(folder) or tmux.new_session(folder)
    if session is None:
        return False
    # a session that is there no more was shown, until it or its server was killed
    return tmux.attach(session) or tmux.session_of(folder) is None
