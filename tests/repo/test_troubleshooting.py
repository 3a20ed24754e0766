"""docs/troubleshooting.md names the questions that doctor asks, all that can warn or stop, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "entrypoint").glob("*.py"))
ASKED = set(re.findall(r'\bCheck\(\s*"([a-z0-9]+\.[a-z0-9_]+)"', SOURCE))
TOLD = set(re.findall(r"`([a-z0-9]+\.[a-z0-9]+)`", TEXT))
# They tell what there is, never a problem; or carry a problem that says itself what is wrong.
_QUIET = {"memory.ram", "tools.container", "tools.tmux", "software.deepspeed", "cluster.process", "cluster.ranks",
          "plan.problem", "plan.finding"}  # fmt: skip


def test_the_questions_of_the_page_are_those_of_the_code():
    assert set() == TOLD - ASKED
    assert ASKED - TOLD == _QUIET
