"""What the person asked for: the `TRAIN_*` variables, in one table that the README shows too."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.errors import SettingError
from entrypoint.values import clean

PREFIX = "TRAIN_"
LAUNCHERS = ("torchrun", "deepspeed", "accelerate")


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: the field of Request that it sets (None: `environment` reads it), and how it is read."""

    name: str
    meaning: str
    default: str  # in words, for the table
    field: str | None = None
    read: Callable[[str], Any] = str


@dataclass(frozen=True, slots=True)
class Request:
    """The person's wishes. Nodes, ranks and addresses are not here: `environment` weighs them against the cloud's."""

    script: str | None = None
    arguments: str = ""
    launcher: str = "torchrun"
    volume: Path | None = None
    run: str | None = None
    restarts: int = 3
    again: bool = False
    wait_seconds: int = 600
    grace_seconds: int = 60
    token: str | None = None
    mount: str | None = None
    setup: str | None = None
    stop_on: str = "success"
    on_exit: str | None = None
    stop_command: str | None = None

    def __repr__(self) -> str:
        token = "None" if self.token is None else "'***'"
        return f"Request(script={self.script!r}, run={self.run!r}, volume={self.volume!r}, token={token}, …)"


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text

    return read


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("a whole number, 0 or more")
    return int(text)


def _run_name(text: str) -> str:
    if "/" in text or text in (".", "..") or not text.isprintable():
        raise ValueError("a name without / that can be a folder")
    return text


def _stop_on(text: str) -> str:
    word, _, delay = text.partition(":")
    if word in ("success", "always") and not delay:
        return text
    if word == "failure" and (not delay or (re.fullmatch("[0-9]{1,5}[smh]", delay))):
        return text
    raise ValueError("success, always or failure:30m")


VARIABLES = (
    Variable(
        "TRAIN_SCRIPT",
        "recipe name (`ddp`, `fsdp`, `zero`, `hf`), path of a script, or `-m module`",
        "none",
        "script",
    ),
    Variable("TRAIN_ARGS", "its arguments, split as a shell splits words", "empty", "arguments"),
    Variable(
        "TRAIN_LAUNCHER",
        "what starts the processes: `torchrun`, `accelerate`, or on one node `deepspeed`",
        "torchrun",
        "launcher",
        _choice(*LAUNCHERS),
    ),
    Variable("TRAIN_NODES", "number of nodes", "from the cloud's variables, else 1"),
    Variable("TRAIN_NODE_RANK", "which node this is, from 0", "from the cloud's variables, else 0"),
    Variable("TRAIN_NPROC", "processes per node", "from the cloud's variables, else one a GPU (CPU: 2)"),
    Variable("TRAIN_PRIMARY", "`host:port` of node 0", "from the cloud's variables"),
    Variable("TRAIN_INTERFACE", "names the interface(s) by hand", "chosen"),
    Variable("TRAIN_VOLUME", "the shared volume", "the cloud's own name for it, else `/workspace`", "volume", Path),
    Variable("TRAIN_RUN", "run name; its folder is `<volume>/runs/<name>`", "the recipe's name", "run", _run_name),
    Variable(
        "TRAIN_RESTARTS",
        "attempts in a row without a new complete checkpoint before giving up",
        "3",
        "restarts",
        _count,
    ),
    Variable(
        "TRAIN_AGAIN",
        "1: train a finished run again",
        "0",
        "again",
        lambda text: _choice("0", "1")(text) == "1",
    ),
    Variable("TRAIN_WAIT", "seconds to wait for the other nodes", "600", "wait_seconds", _count),
    Variable(
        "TRAIN_GRACE",
        "seconds between a requested stop and SIGKILL, for a last checkpoint",
        "60",
        "grace_seconds",
        _count,
    ),
    Variable(
        "TRAIN_TOKEN",
        "secret of the roll call",
        "32 random bytes in a 0600 file on the shared volume",
        "token",
    ),
    Variable(
        "TRAIN_MOUNT",
        "what to mount at the volume's path (`nfs://host/export?vers=4.1`, `host:/export`, a device)",
        "nothing",
        "mount",
    ),
    Variable("TRAIN_SETUP", "command to run once per node before training (by `bash -c`)", "none", "setup"),
    Variable(
        "TRAIN_ON_EXIT",
        "when training ends: `exit`, `stay` (keep the services), `stop` or `terminate` (ask the cloud to do it to this "
        "machine)",
        "`exit`; `stay` where the platform restarts an ended container",
        "on_exit",
        _choice("exit", "stay", "stop", "terminate"),
    ),
    Variable(
        "TRAIN_STOP_ON",
        "when `stop` applies: after `success`, `always`, or with `failure:30m` after a failure only so much later",
        "`success`",
        "stop_on",
        _stop_on,
    ),
    Variable(
        "TRAIN_STOP_COMMAND",
        "what `stop` runs (by `bash -c`) instead of asking Runpod or Vast.ai",
        "none",
        "stop_command",
    ),
)

# Set by us for training scripts, or for tests: a person need not write them, and they are no typing errors.
CONTRACT = ("TRAIN_RUN_DIR", "TRAIN_CHECKPOINT_DIR", "TRAIN_ATTEMPT", "TRAIN_STEP_FILE", "TRAIN_STOP_FILE")
_INTERNAL = ("TRAIN_LOCAL_CLUSTER", "TRAIN_SHELL", "TRAIN_CLOUD_API", "TRAIN_RUNTIME")


def read_request(variables: Mapping[str, str]) -> Request:
    """The wishes in `variables`; SettingError for a value out of range or a name that is nearly one of ours."""
    refuse_near_misses(variables)
    wishes: dict[str, Any] = {}
    for variable in VARIABLES:
        given = variables.get(variable.name, "")
        # In a list of words the outer quotes may belong to the first and the last.
        text = given.strip() if variable.name == "TRAIN_ARGS" else clean(given)
        if not text or variable.field is None:
            continue
        try:
            wishes[variable.field] = variable.read(text)
        except ValueError as error:
            raise SettingError(
                f"{variable.name}={text!r} is not {error}", fix=f"{variable.name} means: {variable.meaning}"
            ) from None
    return Request(**wishes)


def refuse_near_misses(names: Mapping[str, str]) -> None:
    """A typo in a cloud's form costs hours: an unknown TRAIN_* within two edits of one of ours is an error."""
    known = [variable.name for variable in VARIABLES]
    for name in sorted(names):
        if not name.startswith(PREFIX) or name in known or name in CONTRACT or name in _INTERNAL:
            continue
        near = min(known, key=lambda candidate: edits(name, candidate))
        if edits(name, near) <= 2:
            raise SettingError(
                f"{name} is not a variable of ours", fix=f"did you mean {near}? Else choose another name"
            )


def edits(a: str, b: str) -> int:
    """Levenshtein distance: insertions, deletions and replacements that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (letter != other))
    return row[-1]


def markdown_table() -> str:
    """The table of the README; a test compares them."""
    rows = [f"| `{v.name}` | {v.meaning} | {v.default} |" for v in VARIABLES]
    return "\n".join(["| variable | meaning | default |", "|---|---|---|", *rows])
