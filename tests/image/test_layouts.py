"""Two image layouts are compared by digest, and what differs is named down to the file."""

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

OCI = Path(__file__).resolve().parents[2] / "image" / "oci.py"
FILES = {"opt/a.txt": {}, "opt/b.txt": {}}


def blob(layout: Path, content: bytes) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    folder = layout / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def layer(files: dict[str, dict[str, int | bytes]]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, changes in files.items():
            content = bytes(changes.get("content", b"same"))
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), 1000, 0o644
            for attribute in changes.keys() - {"content"}:
                setattr(entry, attribute, changes[attribute])
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def layout(folder: Path, files: dict[str, dict[str, int | bytes]], *, level: int | None = 6) -> Path:
    """An image of one layer, with an attestation beside it as BuildKit writes them."""
    archive = layer(files)
    config = {
        "history": [{"created_by": "RUN /bin/sh -c make # buildkit"}, {"created_by": "ENV", "empty_layer": True}],
        "rootfs": {"diff_ids": ["sha256:" + hashlib.sha256(archive).hexdigest()]},
    }
    manifest = {
        "config": blob(folder, json.dumps(config).encode()),
        "layers": [blob(folder, archive if level is None else gzip.compress(archive, level, mtime=0))],
    }
    image = {**blob(folder, json.dumps(manifest).encode()), "platform": {"os": "linux", "architecture": "amd64"}}
    attestation = {**blob(folder, b"{}"), "platform": {"os": "unknown", "architecture": "unknown"}}
    index = blob(folder, json.dumps({"manifests": [image, attestation]}).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [index]}))
    return folder


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, OCI, *map(str, words)], capture_output=True, text=True, check=False)


def test_equal_images_are_equal(tmp_path):
    done = run("compare", layout(tmp_path / "one", FILES), layout(tmp_path / "two", FILES))
    assert done.returncode == 0
    assert "DIFFERENT" not in done.stdout


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({**FILES, "opt/b.txt": {"content": b"else"}}, "opt/b.txt: content "),
        ({**FILES, "opt/b.txt": {"mtime": 1001}}, "opt/b.txt: time 1000 / 1001"),
        ({**FILES, "opt/b.txt": {"mode": 0o664}}, "opt/b.txt: mode 0o644 / 0o664"),
        ({**FILES, "opt/b.txt": {"uid": 7}}, "opt/b.txt: owner (0, 0) / (7, 0)"),
        ({"opt/a.txt": {}}, "opt/b.txt: only in the first"),
        ({**FILES, "opt/c.txt": {}}, "opt/c.txt: only in the second"),
        ({"opt/b.txt": {}, "opt/a.txt": {}}, "the same files: order or compression differs"),
    ],
)
def test_what_differs_is_named(tmp_path, files, line):
    done = run("compare", layout(tmp_path / "one", FILES), layout(tmp_path / "two", files))
    assert done.returncode == 1
    assert line in done.stdout
    assert "opt/a.txt:" not in done.stdout


def test_another_compression_is_another_digest_and_no_file_is_blamed(tmp_path):
    big = {"opt/a.txt": {"content": bytes(range(256)) * 400}}
    done = run("compare", layout(tmp_path / "one", big, level=1), layout(tmp_path / "two", big, level=9))
    assert done.returncode == 1
    assert "order or compression" in done.stdout


def test_layers_that_an_engine_has_kept_unpacked_are_read_too(tmp_path):
    done = run("compare", layout(tmp_path / "one", FILES), layout(tmp_path / "two", FILES, level=None))
    assert done.returncode == 1, done.stderr
    assert "order or compression" in done.stdout


def test_sizes_are_by_layer_with_the_step_that_made_it(tmp_path):
    done = run("sizes", layout(tmp_path / "one", {"opt/a.txt": {"content": bytes(2_500_000)}}))
    assert done.returncode == 0
    assert "| 0 | 0.0 MB | 2.5 MB | make |" in done.stdout
