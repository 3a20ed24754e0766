"""The README's table of images, made from the rows in docker-bake.hcl: `python image/table.py`."""

import re
from pathlib import Path

BAKE = Path(__file__).resolve().parents[1] / "docker-bake.hcl"


def rows() -> list[dict[str, str]]:
    """The version table, a dictionary a row."""
    table = re.search(r'variable "IMAGES" \{(.*?)^\}', BAKE.read_text(), re.DOTALL | re.MULTILINE)
    assert table
    return [dict(re.findall(r'(\w+) = "([^"]*)"', line)) for line in re.findall(r"\{ name = .*\}", table[1])]


def markdown_table() -> str:
    lines = ["| image | torch | CUDA | NVIDIA driver | |", "|---|---|---|---|---|"]
    for row in rows():
        driver = f"{row['driver']} or newer" if row["driver"] else "none"
        state = "" if row["lock"] else "not built by us: no lock yet"
        lines.append(f"| `{row['name']}` | {row['torch']} | {row['cuda'] or 'none'} | {driver} | {state} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown_table())
