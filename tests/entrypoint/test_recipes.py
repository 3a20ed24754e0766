from pathlib import Path

import pytest

from entrypoint.errors import SettingError
from entrypoint.recipes import choose_recipe, refuse_wrong_options, split_arguments

BASE = Path("/home/someone")


@pytest.mark.parametrize(
    ("script", "name", "target"),
    [
        ("/workspace/my.py", "my", ("/workspace/my.py",)),
        ("my.py", "my", ("/home/someone/my.py",)),
        ("./run me.py", "run me", ("/home/someone/run me.py",)),
        ("scripts/go.sh", "go", ("/home/someone/scripts/go.sh",)),
        ("-m axolotl.cli.train", "train", ("-m", "axolotl.cli.train")),
    ],
)
def test_a_path_or_a_module_of_the_users_own(script, name, target):
    recipe = choose_recipe(script, base=BASE)
    assert (recipe.name, recipe.target, recipe.ours) == (name, target, False)


def test_a_recipe_of_ours_is_named_by_a_word():
    recipe = choose_recipe("ddp", ("--steps", "3"), base=BASE)
    assert recipe.script is not None
    assert recipe.script.is_file()
    assert recipe.ours
    assert recipe.arguments == ("--steps", "3")


@pytest.mark.parametrize("script", ["-m a b", "-m a-b", "-m ", "-m a..b", "-m /my.py"])
def test_what_is_no_module_is_refused(script):
    with pytest.raises(SettingError, match="not the name of a module"):
        choose_recipe(script, base=BASE)


@pytest.mark.parametrize("script", ["ddpp", "train", "-x", "-m"])
def test_an_unknown_word_names_the_recipes(script):
    with pytest.raises(SettingError, match=script) as caught:
        choose_recipe(script, base=BASE)
    assert "ddp" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("--steps 3  --data 'my text.txt'", ("--steps", "3", "--data", "my text.txt")),
        ("--name $(rm -rf /) `id`", ("--name", "$(rm", "-rf", "/)", "`id`")),
    ],
)
def test_arguments_are_split_as_a_shell_does_and_run_by_none(text, words):
    assert split_arguments(text) == words


def test_an_open_quote_is_refused():
    with pytest.raises(SettingError, match="TRAIN_ARGS") as caught:
        split_arguments("--data 'my")
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("arguments", "world_size", "quoted"),
    [
        (("--stepz", "3"), 2, "--stepz"),
        (("--global-batch", "100", "--micro-batch", "4"), 16, "100"),
        (("--global-batch", "12"), 8, "12"),
    ],
)
def test_wrong_options_of_a_recipe_are_refused_before_launch(arguments, world_size, quoted):
    with pytest.raises(SettingError, match=quoted):
        refuse_wrong_options(choose_recipe("ddp", arguments, base=BASE), world_size)


def test_options_of_a_users_script_are_its_own():
    refuse_wrong_options(choose_recipe("/my.py", ("--stepz",), base=BASE), 2)
