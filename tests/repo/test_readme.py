"""What the README says is what the code does."""

import re
import subprocess
from pathlib import Path

from entrypoint.request import markdown_table

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MAKE = "".join((ROOT / name).read_text() for name in ("Makefile", "image/image.mk", "requirements/audit.mk"))
TARGETS = set(re.findall(r"^([a-z-]+):.*?## ", MAKE, re.MULTILINE))


def test_the_commands_of_the_readme_are_the_makefiles():
    used = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"train", "test"} <= used <= TARGETS


def test_make_help_lists_every_target():
    listed = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True).stdout
    assert (
        set(re.findall(r"make ([a-z-]+) ", listed))
        == TARGETS
        == {
            "help",
            "setup",
            "train",
            "test",
            "lint",
            "lock",
            "audit",
            "plan",
            "bench-cluster",
            "wheel",
            "templates",
            "clean",
            "base",
            "image",
            "reproduce",
            "debs",
            "verify",
            "release",
        }
    )


def test_the_makefile_fits_on_a_screen_or_two():
    assert len((ROOT / "Makefile").read_text().splitlines()) < 80


def test_the_table_of_variables_is_the_codes():
    assert markdown_table() in README


def test_ci_calls_the_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    assert "make lint" in script
    assert "make test" in script
    assert "make reproduce VARIANT=cpu" in script
