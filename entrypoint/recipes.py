"""What can be trained: the scripts that come with us, a script of the user's own, or a module."""

import importlib.util
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from entrypoint.errors import SettingError

TRAIN = Path(__file__).resolve().parent.parent / "train"


@dataclass(frozen=True, slots=True)
class Recipe:
    """An entry script with its arguments. Exactly one of script and module is set."""

    name: str
    title: str
    script: Path | None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    ours: bool = False
    interpreter: tuple[str, ...] | None = None  # None: the launcher's own Python; (): the script is a program itself

    @property
    def target(self) -> tuple[str, ...]:
        """How torchrun is told what to run."""
        if self.module:
            return ("-m", self.module)
        if self.interpreter is None:
            return (str(self.script),)
        return ("--no-python", *self.interpreter, str(self.script))


OURS = {
    "ddp": "data parallel: the whole model on each process",
    "fsdp": "FSDP2: weights, gradients and optimizer sharded over the processes",
    "zero": "DeepSpeed ZeRO: optimizer, gradients and weights sharded, as far as --zero-stage says",
    "hf": "the Trainer of Hugging Face, over DDP, DeepSpeed ZeRO or FSDP",
}


def choose_recipe(script: str, arguments: tuple[str, ...] = (), *, base: Path) -> Recipe:
    """The recipe that TRAIN_SCRIPT or the command line names; a relative path counts from `base`.

    Whether the file is there is not looked at: that is a check of the machine.
    """
    if script in OURS:
        return Recipe(script, OURS[script], TRAIN / f"{script}.py", arguments=arguments, ours=True)
    if script == "-m" and arguments:
        return choose_recipe(f"-m {arguments[0]}", arguments[1:], base=base)
    if re.match(r"-m\s", script):
        module = script[2:].strip()
        if not all(part.isidentifier() for part in module.split(".")):
            raise SettingError(
                f"{script!r}: {module!r} is not the name of a module",
                fix="as in '-m package.module'; arguments belong into TRAIN_ARGS, or after it on the command line",
            )
        return Recipe(module.rpartition(".")[2], f"module {module}", None, module, arguments)
    if "/" in script or script.endswith((".py", ".sh")):
        path = base / script
        return Recipe(path.stem, f"script {path}", path, arguments=arguments)
    if script.startswith("-"):
        raise SettingError(
            f"no such option: {script}", fix=f"name what to train first ({', '.join(OURS)}, a path), then its options"
        )
    raise SettingError(
        f"{script!r} is no recipe",
        fix=f"one of {', '.join(OURS)}; a path with a slash or a suffix (./{script}); or '-m {script}'",
    )


def split_arguments(text: str) -> tuple[str, ...]:
    """TRAIN_ARGS as a shell splits words; nothing in it is ever run by one."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SettingError(f"TRAIN_ARGS={text!r} cannot be split into words: {error}", fix="close the quote") from None


def refuse_wrong_options(recipe: Recipe, world_size: int) -> None:
    """What a recipe's own options say about its arguments, before any process starts; prints --help if asked."""
    if not recipe.ours:
        return
    options, parsed = _train_options(), read_options(recipe)
    try:
        options.accumulation(options.settle_batch(parsed, world_size), world_size)
    except options.Problem as problem:
        raise SettingError(problem.problem, fix=problem.fix) from None


def read_options(recipe: Recipe) -> Any:
    """The options of a recipe of ours, as its own parser reads its arguments; SettingError where it refuses them."""
    options = _train_options()
    try:
        return options.parse(recipe.arguments, options.KINDS[recipe.name])
    except options.Problem as problem:
        raise SettingError(problem.problem, fix=problem.fix) from None


def _train_options() -> ModuleType:
    """train/options.py by its path: a `train` in the user's folder must not be taken for ours."""
    name = "roundhouse_train_options"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TRAIN / "options.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up here
        spec.loader.exec_module(module)
    return sys.modules[name]
