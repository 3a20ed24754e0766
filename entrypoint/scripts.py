"""A script of the user's own → what runs it: by suffix or `#!`, with or without the x bit, with any line endings."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from entrypoint.errors import SettingError
from entrypoint.recipes import Recipe

# $0 stays the script's own path, and nothing of it is copied; a sourced file sees the arguments of the shell.
WITHOUT_CR = 'source <(tr -d "\\r" < "$0")'
_SHELLS = ("sh", "bash", "dash")


def complete(recipe: Recipe) -> Recipe:
    """The recipe with its interpreter; as it is while there is no such file (`train` refuses it, `plan` need not)."""
    if recipe.ours or recipe.script is None or not recipe.script.is_file():
        return recipe
    try:
        with open(recipe.script, "rb") as stream:
            head = stream.read(1 << 16)
    except OSError as error:
        raise SettingError(
            f"{recipe.script}: {error.strerror}", fix="make it readable for the user that trains"
        ) from None
    return replace(recipe, interpreter=choose_interpreter(recipe.script, head))


def choose_interpreter(script: Path, head: bytes) -> tuple[str, ...] | None:
    """Words to put before the path; None: the launcher's own Python."""
    if script.suffix == ".py":
        return None
    words = _shebang(head)
    program = words[0].rpartition("/")[2] if words else ""
    if script.suffix in (".sh", ".bash") or program in _SHELLS:
        if b"\r\n" in head:
            return ("bash", "-c", WITHOUT_CR)
        return words or ("bash",)
    if program.startswith("python") and (len(words) == 1 and "/" not in words[0]):
        return None  # `env python3`: the one that has torch
    if words:
        if shutil.which(words[0]) is None:
            raise SettingError(
                f"{script} asks for {words[0]!r} in its first line, which is not here", fix="correct its #! line"
            )
        return words
    if os.access(script, os.X_OK):
        return ()  # a program
    raise SettingError(
        f"{script} has no suffix .py or .sh and no #! line, so what runs it is not known",
        fix="rename it, or begin it with #!/bin/bash or #!/usr/bin/env python3",
    )


def _shebang(head: bytes) -> tuple[str, ...]:
    """Program and arguments of the first line, `env` left out.

    >>> _shebang(b"#!/usr/bin/env -S python3 -u\\r\\nprint()")
    ('python3', '-u')
    """
    first = head.split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return ()
    words = first[2:].decode(errors="replace").split()
    if words and words[0].rpartition("/")[2] == "env":
        words = [word for word in words[1:] if word != "-S"]
    return tuple(words)


def refuse_missing(recipe: Recipe) -> None:
    """SettingError unless the script is a file."""
    script = recipe.script
    if script is None or script.is_file():
        return
    if script.is_dir():
        raise SettingError(f"{script} is a folder, not a script", fix="name the script in it (TRAIN_SCRIPT)")
    fix = "correct the path in TRAIN_SCRIPT"
    if " " in str(script):
        fix += "; arguments belong into TRAIN_ARGS"
    raise SettingError(f"{script}: no such file", fix=fix)
