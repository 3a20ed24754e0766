"""Scripts go into an image and onto volumes: a CR after `#!/bin/bash` is "no such file or directory" there (rt-18)."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("entrypoint", "train", "image", "templates")


def test_a_checkout_on_any_machine_has_line_feeds_alone():
    assert (ROOT / ".gitattributes").read_text() == "* text=auto eol=lf\n"
    paths = [path for part in PRODUCT for path in (ROOT / part).rglob("*") if "__pycache__" not in path.parts]
    files = [path for path in paths if path.is_file()]
    assert {".py", ".sh", ".yaml", ".json"} <= {path.suffix for path in files}
    assert [str(path) for path in files if b"\r\n" in path.read_bytes()] == []
