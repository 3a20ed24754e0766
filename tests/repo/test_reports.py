"""docs/reports.md: each public report names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "reports.md").read_text().splitlines()
    if re.match(r"\| [a-z]+-\d", line)
]


def test_each_report_is_there_once():
    names = [row[0] for row in ROWS]
    assert len(names) == len(set(names)) == 85


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_tests_of_a_report_exist(row):
    _, reported, wrong, here, tests = row
    assert reported
    assert wrong
    assert here
    for test in tests.split("<br>"):
        path, name = test.split("::")
        functions = {
            node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, test
