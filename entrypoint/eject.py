"""Copies a recipe with what it imports into a folder of the user's, runnable there by plain torchrun."""

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from entrypoint.errors import SettingError
from entrypoint.recipes import OURS, TRAIN

_README = """\
# {recipe}

{title}. Yours from here on: `{recipe}.py` reads from top to bottom, the other files are what it imports.

    python {recipe}.py --help                                # the options
    torchrun --nproc-per-node 8 {recipe}.py --steps 1000     # on one node
    python {recipe}.py --steps 20                            # one process

The run goes to `runs/{recipe}`; start it again and it goes on. It needs the packages that the files import:

    pip install {packages}

Under Roundhouse: `TRAIN_SCRIPT={folder}/{recipe}.py`.
"""


def eject(recipe: str, folder: Path) -> tuple[Path, ...]:
    """The files written; SettingError if the recipe is not ours or a file would be written over."""
    if recipe not in OURS:
        raise SettingError(f"{recipe!r} is no recipe", fix=f"one of {', '.join(OURS)}")
    sources = needed(TRAIN / f"{recipe}.py")
    targets = [folder / source.name for source in sources] + [folder / "README.md"]
    if there := [str(target) for target in targets if target.exists()]:
        raise SettingError(f"{there[0]} is there already", fix="name an empty or a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        shutil.copyfile(source, folder / source.name)
    text = _README.format(
        recipe=recipe, title=OURS[recipe].capitalize(), folder=folder, packages=" ".join(sorted(packages(sources)))
    )
    (folder / "README.md").write_text(text)
    return tuple(targets)


def needed(script: Path) -> list[Path]:
    """The script and every module beside it that it imports, directly or through others; the script first."""
    found = [script]
    for path in found:  # grows while it is read
        beside = (script.parent / f"{name}.py" for name in imported(path))
        found += [module for module in dict.fromkeys(beside) if module.is_file() and module not in found]
    return found


def packages(sources: list[Path]) -> set[str]:
    """Installed packages that the files import, by the names of their imports."""
    modules = {path.stem for path in sources}
    return {name for path in sources for name in imported(path)} - modules - sys.stdlib_module_names


def imported(path: Path) -> Iterator[str]:
    """Top-level names of all imports of a file, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
