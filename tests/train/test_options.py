import subprocess
import sys
from pathlib import Path

import pytest
from options import Interval, Options, Problem, accumulation, help_text, parse

TRAIN = Path(__file__).resolve().parents[2] / "train"


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ([], "steps", 500),
        (["--steps", "7"], "steps", 7),
        (["--data", "a", "b", "c", "--steps", "7"], "data", ("a", "b", "c")),
        (["--data", "a", "--data", "b"], "data", ("a", "b")),
        (["--steps", "7", "--data", "a"], "data", ("a",)),
        (["--save-every", "500"], "save_every", Interval(steps=500)),
        (["--save-every", "30m"], "save_every", Interval(seconds=1800)),
        (["--save-every", "90s"], "save_every", Interval(seconds=90)),
        (["--lr=1e-4"], "lr", 1e-4),
        ([], "lr", 3e-3),
        (["--model", "some/model"], "lr", 2e-5),
        (["--model", "some/model", "--lora-rank", "8"], "lr", 2e-4),
        (["--model", "some/model", "--lora-rank", "8", "--lr", "1"], "lr", 1.0),
    ],
)
def test_options_are_read(arguments, field, value):
    assert getattr(parse(arguments), field) == value


@pytest.mark.parametrize(
    ("arguments", "quoted", "fix"),
    [
        (["--stepz", "5"], "--stepz", "--steps"),
        (["--global_batch", "5"], "--global_batch", "--global-batch"),
        (["--steps", "0"], "--steps", ""),
        (["--steps", "five"], "five", ""),
        (["--precision", "fp8"], "fp8", ""),
        (["--save-every", "5x"], "5x", ""),
        (["--save-every", "0"], "'0'", ""),
        (["--keep", "0"], "--keep", ""),
        (["stray"], "stray", ""),
        (["--steps"], "--steps", ""),
        (["--lr", "nan"], "nan", ""),
    ],
)
def test_a_wrong_option_is_one_line_that_quotes_it_and_a_fix(arguments, quoted, fix):
    with pytest.raises(Problem) as caught:
        parse(arguments)
    assert quoted in caught.value.problem
    assert fix in caught.value.fix
    assert "\n" not in caught.value.problem
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "processes", "passes"),
    [
        (256, 4, 1, 64),
        (256, 4, 2, 32),
        (256, 4, 16, 4),
        (16, None, 2, 1),
        (6, None, 3, 1),
        (6, 1, 3, 2),
    ],
)
def test_accumulation_follows_from_the_global_batch(global_batch, micro_batch, processes, passes):
    assert accumulation(Options(global_batch=global_batch, micro_batch=micro_batch), processes) == passes


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "processes", "nearest"),
    [
        (100, 4, 16, "64 or 128"),
        (10, None, 4, "8 or 12"),
        (2, None, 4, "4"),
    ],
)
def test_an_impossible_batch_names_the_nearest_possible_ones(global_batch, micro_batch, processes, nearest):
    with pytest.raises(Problem, match=f"--global-batch {global_batch} is not a multiple") as caught:
        accumulation(Options(global_batch=global_batch, micro_batch=micro_batch), processes)
    assert nearest in caught.value.fix


def test_every_option_has_a_line_of_help():
    assert all(f"--{name.replace('_', '-')}" in help_text() for name in Options.__dataclass_fields__)
    assert all(field.metadata["help"] for field in Options.__dataclass_fields__.values())


def test_reading_options_imports_no_torch():
    code = f"import sys; sys.path.insert(0, {str(TRAIN)!r}); import options; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
