import os
import subprocess
import sys

import pytest

from entrypoint.eject import eject, needed, packages
from entrypoint.errors import SettingError
from entrypoint.recipes import OURS, TRAIN


@pytest.mark.parametrize("recipe", OURS)
def test_a_recipe_comes_with_all_that_it_imports(tmp_path, recipe):
    written = {path.name for path in eject(recipe, tmp_path / "mine")}
    assert {f"{recipe}.py", "options.py", "order.py", "checkpoint.py", "README.md"} <= written
    assert written == {path.name for path in (tmp_path / "mine").iterdir()}
    for path in needed(TRAIN / f"{recipe}.py"):
        assert (tmp_path / "mine" / path.name).read_text() == path.read_text()


def test_other_recipes_stay_at_home(tmp_path):
    assert "fsdp.py" not in {path.name for path in eject("ddp", tmp_path / "mine")}


def test_the_readme_names_what_to_install(tmp_path):
    eject("ddp", tmp_path)
    assert {"torch", "numpy", "click"} <= packages(needed(TRAIN / "ddp.py"))
    assert "pip install" in (tmp_path / "README.md").read_text()


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "options.py").write_text("mine")
    with pytest.raises(SettingError, match=r"options\.py is there already"):
        eject("ddp", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["options.py"]


def test_an_unknown_recipe_is_named(tmp_path):
    with pytest.raises(SettingError, match="'dpp'") as caught:
        eject("dpp", tmp_path)
    assert "ddp" in caught.value.fix


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("recipe", OURS)
def test_an_ejected_recipe_runs_by_plain_torchrun_in_a_clean_environment(tmp_path, recipe):
    eject(recipe, tmp_path / "mine")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"{recipe}.py"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--steps", "3", "--log-every", "1", "--seq-length", "32"],
        cwd=tmp_path / "mine",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "mine" / "runs" / recipe / "checkpoints" / "step-3" / "manifest.json").exists()
