"""Text files → two byte arrays on the volume (train, validation) → windows of tokens. A token is a byte."""

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from options import Problem

VOCABULARY = 256
END_OF_FILE = b"\0"  # occurs in no text file
_BLOCK_BYTES = 1 << 16
_VALIDATION_EVERY = 20  # every 20th block is validation: one rule for one big file and for thousands of small ones


@dataclass(frozen=True, slots=True)
class Corpus:
    """Bytes to train on and bytes to validate on, mapped from files that all processes share."""

    train: np.ndarray
    validation: np.ndarray
    files: int
    fingerprint: str  # sha256 of both parts: a resume on other data would not see the samples that it thinks


def find_files(paths: Sequence[str]) -> tuple[Path, ...]:
    """The text files that paths, folders and globs name, sorted; without any, the Python library's own sources."""
    if not paths:
        library = Path(sysconfig.get_path("stdlib"))
        return tuple(sorted(p for p in library.rglob("*.py") if "site-packages" not in p.parts))
    found: set[Path] = set()
    for path in paths:
        matches = [Path(path)] if os.path.exists(path) else [Path(match) for match in glob.glob(path, recursive=True)]
        if not matches:
            raise Problem(f"--data {path}: no such file, folder or match", fix="give paths that this node can read")
        for match in matches:
            found.update(p for p in match.rglob("*") if p.is_file()) if match.is_dir() else found.add(match)
    return tuple(sorted(found))


def prepare(paths: Sequence[str], folder: Path) -> None:
    """Write train.bin, validation.bin and data.json into `folder`, unless they are there for these very files.

    For one process of all; the others open the result after a barrier.
    """
    files = find_files(paths)
    source = _source(files)
    if _read_about(folder).get("source") == source:
        return
    folder.mkdir(parents=True, exist_ok=True)
    text = b"".join(_texts(files))
    if len(text) < 4096:
        raise Problem(
            f"--data {' '.join(paths)}: {len(text)} bytes of text are too few to train on", fix="give more text"
        )
    parts = dict(zip(("train", "validation"), _split(np.frombuffer(text, np.uint8)), strict=True))
    digest = hashlib.sha256()
    for name, part in parts.items():
        _write(folder / f"{name}.bin", part.tobytes())
        digest.update(part)
    about = {"source": source, "files": len(files), "fingerprint": digest.hexdigest()}
    _write(folder / "data.json", json.dumps(about).encode())  # last: it says that the other two are whole


def open_corpus(folder: Path) -> Corpus:
    about = _read_about(folder)
    train, validation = (np.memmap(folder / f"{name}.bin", np.uint8, "r") for name in ("train", "validation"))
    return Corpus(train, validation, about["files"], about["fingerprint"])


def windows(text: np.ndarray, seq_length: int) -> int:
    """How many samples `text` holds: windows of seq_length + 1 bytes that share only their end byte."""
    return (len(text) - 1) // seq_length


def batch(text: np.ndarray, seq_length: int, samples: Iterable[int]) -> torch.Tensor:
    """Windows as a tensor (samples, seq_length + 1) of int64: inputs are [:, :-1], targets [:, 1:]."""
    rows = [text[i * seq_length : (i + 1) * seq_length + 1] for i in samples]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def bigram_loss(text: np.ndarray, windows_of_validation: torch.Tensor) -> float:
    """Cross-entropy in nats per byte of a bigram model of `text` (counts plus one) on (samples, length + 1) windows.

    The least that a language model must beat: it knows only the byte before.
    """
    pairs = text[:-1].astype(np.int64) * VOCABULARY + text[1:]
    counts = np.bincount(pairs, minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY) + 1.0
    log_probability = np.log(counts / counts.sum(axis=1, keepdims=True))
    rows = windows_of_validation.numpy()
    return float(-log_probability[rows[:, :-1], rows[:, 1:]].mean())


def printable(text: bytes) -> str:
    """For a screen: what a model writes may hold control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{MIDDLE DOT}" for c in text.decode(errors="replace"))


def _source(files: Sequence[Path]) -> str:
    """Changes when a file is added, taken away or written."""
    seen = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _texts(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        text = path.read_bytes()
        if END_OF_FILE not in text[:8192]:  # as git and grep tell binary files
            yield text + END_OF_FILE


def _split(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    block = min(_BLOCK_BYTES, len(text) // _VALIDATION_EVERY)
    is_validation = np.arange(len(text)) // block % _VALIDATION_EVERY == _VALIDATION_EVERY - 1
    return text[~is_validation], text[is_validation]


def _read_about(folder: Path) -> dict:
    path = folder / "data.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
