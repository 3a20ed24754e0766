"""How large a checkpoint of a recipe will be, as far as that can be known before the model is built."""

import json
from pathlib import Path
from typing import Any

from entrypoint.recipes import Recipe, read_options

# Parameters of our own model by --model-size, over bytes as tokens; a test compares them with the model.
PARAMETERS = {
    "tiny": 803_968,
    "124m": 85_347_072,
    "350m": 304_137_216,
    "1b": 974_194_688,
    "3b": 2_820_320_256,
    "8b": 6_981_685_248,
}
_BYTES = 12  # a weight and Adam's two moments, in fp32
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}


def checkpoint_bytes(recipe: Recipe | None) -> tuple[int | None, int]:
    """Bytes of one checkpoint (None: not known) and how many are kept."""
    if recipe is None or not recipe.ours:
        return None, 2
    options = read_options(recipe)
    if options.lora_rank:
        return None, options.keep
    parameters = PARAMETERS[options.model_size] if options.model is None else _parameters(Path(options.model))
    return (None if parameters is None else _BYTES * parameters), options.keep


def _parameters(folder: Path) -> int | None:
    """Parameters of a model in a folder, by the sizes of its weight files and the type that its config names."""
    files = [path.stat().st_size for path in folder.glob("*.safetensors")] if folder.is_dir() else []
    width = _WIDTHS.get(str(_config(folder).get("dtype") or _config(folder).get("torch_dtype")))
    return sum(files) // width if files and width else None


def _config(folder: Path) -> dict[str, Any]:
    try:
        said = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
