"""The container's variables as a shell or a notebook gets them, and back: what the container itself was given. Pure.

sshd, login shells and tmux hand on nothing of the container's environment. A file of shell code brings it, which the
image's shells read first (image/shell.sh). A plain `python` typed there is one process: what would make a library
wait for fifteen others is left out, and our own command takes it from the second file, which a shell does not read.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from entrypoint.keys import KEY_VARIABLES, holds_private
from entrypoint.reasons import Setting
from entrypoint.stale import stale_variables

MARK = "TRAIN_SHELL"  # set where the variables are there already: a shell below must not take back what was changed
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Of a session or terminal, never of the container.
_SESSION = frozenset(
    {
        *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "TMUX", "TMUX_PANE"),
        *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "SSH_ORIGINAL_COMMAND", MARK),
    }
)
# Bash refuses to set the first six, reads its own text by the seventh, and takes the last for "somebody types here".
_OF_BASH = frozenset(("BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID", "IFS", "PS1"))
_OF_ONE_PROCESS = frozenset(("OMP_NUM_THREADS",))  # a training process's share of the cores


@dataclass(frozen=True, slots=True)
class Shells:
    """`given`: what the container has; `shown`: what its shells get; `start`: which start of the container it was."""

    start: str
    given: Mapping[str, str]
    shown: Mapping[str, str]


def make_shells(variables: Mapping[str, str], settings: Iterable[Setting], start: str) -> Shells:
    """`settings`: the plan's, for interfaces and caches; they win, as they do in training."""
    private = {name for name in KEY_VARIABLES if holds_private(variables.get(name, ""))}
    given = {name: value for name, value in variables.items() if name not in _SESSION | private}
    shown = given | {one.name: one.value for one in settings if one.name not in _OF_ONE_PROCESS}
    hidden = _OF_BASH.union(stale_variables(shown))
    shown = {name: value for name, value in shown.items() if name not in hidden and _NAME.fullmatch(name)}
    return Shells(start, given, {**shown, MARK: start})


def to_script(shells: Shells) -> str:
    """Shell code, for bash and for dash: once in a session, but for PATH, which a login has just replaced."""
    lines = [f'if [ -z "${{{MARK}-}}" ]; then']
    lines += [f"unset {name}" for name in stale_variables(shells.given)]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(shells.shown.items())]
    lines += ["fi"]
    if "PATH" in shells.shown:
        lines += [f'[ -z "${{roundhouse_login-}}" ] || PATH={shlex.quote(shells.shown["PATH"])}']
    return "\n".join(lines) + "\n"


def to_document(shells: Shells) -> dict[str, Any]:
    return {"start": shells.start, "given": dict(shells.given), "shown": dict(shells.shown)}


def from_document(document: Any) -> Shells | None:
    """None: there is none."""
    return Shells(document["start"], document["given"], document["shown"]) if document else None


def restored(current: Mapping[str, str], shells: Shells | None) -> dict[str, str]:
    """What our own command works with in such a shell: the container's variables, and what was changed since.

    `current`: those of the command. Where it was not started from a shell of `shells`, they stay as they are.
    """
    if shells is None or current.get(MARK) != shells.start:
        return dict(current)
    kept = {n: value for n, value in shells.given.items() if n not in shells.shown or n in current}
    changed = {n: value for n, value in current.items() if shells.shown.get(n) != value}
    return kept | changed
