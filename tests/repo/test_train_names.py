"""torchrun by path puts train/ first on sys.path: a train/accelerate.py would break accelerate and transformers."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).resolve().parents[2] / "train"


@pytest.mark.parametrize("name", sorted(path.stem for path in TRAIN.glob("*.py")))
def test_no_training_module_has_the_name_of_an_installed_package(name):
    assert name not in importlib.metadata.packages_distributions()
    assert name not in sys.stdlib_module_names
