"""Image layouts on disk: their layers, and which files two of them do not share.

python image/oci.py sizes LAYOUT             # compressed and unpacked size of each layer
python image/oci.py compare LAYOUT LAYOUT    # exit code 1, and the names of the files, if they differ

A layout is a folder as the `oci` output of buildx writes it (tar=false), or `docker save` unpacked.
"""

import gzip
import hashlib
import json
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, cast


@dataclass(frozen=True, slots=True)
class Layer:
    digest: str
    diff_id: str  # of the unpacked archive: the same whatever compressed it
    compressed: int  # bytes
    made_by: str
    blob: Path


@dataclass(frozen=True, slots=True)
class Image:
    digest: str  # of the manifest of this platform: what two builds share, and `docker pull` names
    config: dict[str, Any]
    layers: tuple[Layer, ...]

    @property
    def unpacked(self) -> bool:
        """An engine without containerd's image store keeps no archive as it was pulled, and saves none compressed."""
        return all(layer.digest == layer.diff_id for layer in self.layers)


def read_image(layout: Path) -> Image:
    """The one image of a layout, without its attestations."""
    digest = _image_manifest(layout, _json(layout / "index.json"))
    manifest = _json(_blob(layout, digest))
    config = _json(_blob(layout, manifest["config"]["digest"]))
    steps = [step.get("created_by", "") for step in config["history"] if not step.get("empty_layer")]
    layers = [
        Layer(layer["digest"], diff_id, layer["size"], made_by, _blob(layout, layer["digest"]))
        for layer, diff_id, made_by in zip(manifest["layers"], config["rootfs"]["diff_ids"], steps, strict=True)
    ]
    return Image(digest, config, tuple(layers))


def _image_manifest(layout: Path, index: dict[str, Any]) -> str:
    described = [each for each in index["manifests"] if each.get("platform", {}).get("os") != "unknown"]
    if len({each["digest"] for each in described}) != 1:
        raise ValueError(f"{layout} has {len(described)} images; one is wanted")
    digest = str(described[0]["digest"])
    inner = _json(_blob(layout, digest))
    return _image_manifest(layout, inner) if "manifests" in inner else digest


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_bytes())
    assert isinstance(found, dict)
    return found


def _unpacked(layer: Layer) -> BinaryIO:
    return open(layer.blob, "rb") if layer.digest == layer.diff_id else cast(BinaryIO, gzip.open(layer.blob))


def layer_files(layer: Layer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each entry of a layer: its name, and all that an archive keeps of it."""
    with _unpacked(layer) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() else None
            yield (
                entry.name,
                {
                    "type": entry.type.decode(),
                    "mode": oct(entry.mode),
                    "owner": (entry.uid, entry.gid),
                    "time": entry.mtime,
                    "link": entry.linkname,
                    "size": entry.size,
                    "attributes": {k: v for k, v in entry.pax_headers.items() if k not in ("path", "linkpath")},
                    "content": hashlib.file_digest(content, "sha256").hexdigest() if content else "",
                },
            )


def differing_files(one: Layer, other: Layer) -> list[str]:
    """A line for each file that is not the same in both layers, saying in what; nothing if only the order differs."""
    first, second = dict(layer_files(one)), dict(layer_files(other))
    lines = []
    for name in sorted(first.keys() | second.keys()):
        if name not in first or name not in second:
            lines.append(f"{name}: only in the {'first' if name in first else 'second'}")
        elif parts := [part for part, value in first[name].items() if value != second[name][part]]:
            lines.append(f"{name}: {', '.join(f'{p} {first[name][p]} / {second[name][p]}' for p in parts)}")
    return lines


def unpacked_size(layer: Layer) -> int:
    """Bytes of the layer's files."""
    with _unpacked(layer) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
        return sum(entry.size for entry in archive)


def sizes(image: Image) -> str:
    """A table in Markdown: megabytes are 10⁶ bytes."""
    rows = ["| layer | compressed | unpacked | made by |", "|---|---|---|---|"]
    total = 0
    for number, layer in enumerate(image.layers):
        size = unpacked_size(layer)
        total += size
        rows.append(f"| {number} | {layer.compressed / 1e6:.1f} MB | {size / 1e6:.1f} MB | {_step(layer)} |")
    compressed = sum(layer.compressed for layer in image.layers)
    return "\n".join([*rows, f"| all | {compressed / 1e6:.1f} MB | {total / 1e6:.1f} MB | |"])


def compare(one: Image, other: Image) -> bool:
    """Says layer by layer whether two images are the same; the digests decide."""
    same = one.digest == other.digest
    print(f"manifest  {one.digest}\n          {other.digest}  {'equal' if same else 'DIFFERENT'}")
    for number, (first, second) in enumerate(zip_longest(one.layers, other.layers)):
        if first is None or second is None:
            print(f"layer {number}   only in the {'second' if first is None else 'first'}")
            continue
        equal = first.digest == second.digest
        verdict = "equal" if equal else "DIFFERENT"
        print(f"layer {number}   {first.digest[7:19]} {second.digest[7:19]} {verdict}  {_step(first)}")
        if not equal:
            lines = differing_files(first, second) or ["the same files: order or compression differs"]
            print("\n".join(f"          {line}" for line in lines[:50]))
            if len(lines) > 50:
                print(f"          and {len(lines) - 50} more")
    if not same and one.config != other.config:
        changed = {
            key for key in one.config.keys() | other.config.keys() if one.config.get(key) != other.config.get(key)
        }
        print(f"config    differs in {', '.join(sorted(changed))}")
    return same


def _step(layer: Layer) -> str:
    """The step in Dockerfile, without what BuildKit writes around it."""
    step = layer.made_by.split("/bin/sh -c ", 1)[-1].removesuffix(" # buildkit")
    return " ".join(step.replace("/context/", "").split())[:80].replace("|", "\\|")


def main() -> int:
    match sys.argv[1:]:
        case ["sizes", layout]:
            print(sizes(read_image(Path(layout))))
            return 0
        case ["compare", one, other]:
            return 0 if compare(read_image(Path(one)), read_image(Path(other))) else 1
    print(__doc__, file=sys.stderr)
    return 78


if __name__ == "__main__":
    sys.exit(main())
