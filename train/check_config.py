"""Looks at a DeepSpeed JSON or an Accelerate YAML of your own before it costs GPU time.

python train/check_config.py ds_config.json --processes 16     # for the Trainer of Hugging Face
python train/check_config.py mine.json --for zero              # for our recipe zero
python train/check_config.py accelerate.yaml
"""

import sys
from pathlib import Path

import click
from accelerate_check import check_accelerate
from deepspeed_check import HF_FILLS, ZERO_FILLS, check
from deepspeed_config import read_config
from options import Problem


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--processes", default=1, type=click.IntRange(1), help="over all nodes; batch values must multiply out")
@click.option("--for", "user", default="hf", type=click.Choice(["hf", "zero"]), help='who fills in what is "auto"')
def main(file: Path, processes: int, user: str) -> None:
    """Exit code 0 if nothing is wrong, 78 with one line and a fix if something is."""
    try:
        if file.suffix in (".yaml", ".yml"):
            check_accelerate(_read_yaml(file), str(file))
        else:
            fills = HF_FILLS if user == "hf" else ZERO_FILLS
            check(read_config(str(file)), str(file), fills=fills, world_size=processes)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    print(f"{file}: nothing wrong was found")


def _read_yaml(file: Path) -> dict[str, object]:
    import yaml

    try:
        document = yaml.safe_load(file.read_text())
    except OSError as error:
        raise Problem(f"{file}: {error.strerror}", fix="give a file that can be read") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise Problem(f"{file}: no YAML: {' '.join(str(error).split())}", fix="correct it at that place") from None
    if not isinstance(document, dict):
        raise Problem(f"{file}: no mapping at its top", fix="names with values, as `accelerate config` writes them")
    return document


if __name__ == "__main__":
    main()
