"""The size of a checkpoint before there is a model, against the models themselves and against one that was saved."""

import json
from pathlib import Path

import pytest

from entrypoint.checkpoint_size import PARAMETERS, checkpoint_bytes
from entrypoint.recipes import choose_recipe


def of(*arguments: str, script: str = "ddp"):
    return checkpoint_bytes(choose_recipe(script, arguments, base=Path("/")))


@pytest.mark.torch
@pytest.mark.parametrize("size", PARAMETERS)
def test_the_table_is_the_models(size):
    import torch
    from model import SIZES, Decoder

    with torch.device("meta"):
        model = Decoder(SIZES[size], 256)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[size]


@pytest.mark.torch
def test_every_size_of_the_option_is_in_the_table():
    from model import SIZES

    assert set(PARAMETERS) == set(SIZES)


@pytest.mark.parametrize(
    ("arguments", "script", "expected"),
    [
        ((), "ddp", (12 * PARAMETERS["tiny"], 2)),
        (("--model-size", "1b", "--keep", "5"), "fsdp", (12 * PARAMETERS["1b"], 5)),
        (("--model", "some/hub-id"), "ddp", (None, 2)),
        ((), "/my/script.py", (None, 2)),
    ],
)
def test_what_is_known_follows_from_the_options(arguments, script, expected):
    assert of(*arguments, script=script) == expected


def test_without_a_recipe_it_is_unknown():
    assert checkpoint_bytes(None) == (None, 2)


def test_a_model_in_a_folder_is_as_large_as_its_files_say(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    for number in (1, 2):
        with open(tmp_path / f"model-0000{number}-of-00002.safetensors", "wb") as file:
            file.truncate(1 << 20)
    assert of("--model", str(tmp_path)) == (12 << 20, 2)
    assert of("--model", str(tmp_path), "--lora-rank", "8") == (None, 2)
    (tmp_path / "config.json").unlink()
    assert of("--model", str(tmp_path)) == (None, 2)
