"""What is trained on: text files → token arrays on the volume → samples of equal length.

A token is a byte, unless a model of Hugging Face brings its tokenizer (tokenized.py makes those arrays).
"""

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from options import Problem
from torch import Tensor

IGNORE = -100  # the target that cross_entropy leaves out
BYTES = 256
END_OF_FILE = b"\0"  # occurs in no text file
_BLOCK = 1 << 16
_VALIDATION_EVERY = 20  # every 20th block is validation: one rule for one big file and for thousands of small ones


@dataclass(frozen=True, slots=True)
class Split:
    """A stream of tokens, mapped from a file that all processes share, and which of them are to be learnt.

    Without `starts` a sample is a window of seq_length + 1 tokens that shares only its end with the next one; with
    `starts` (n + 1 offsets) it is one document, cut or padded to that length. `learn` None: every token.
    """

    tokens: np.ndarray
    seq_length: int
    learn: np.ndarray | None = None
    starts: np.ndarray | None = None

    def __len__(self) -> int:
        if self.starts is not None:
            return len(self.starts) - 1
        return max(0, len(self.tokens) - 1) // self.seq_length

    def cut(self) -> int:
        """How many conversations do not fit into a sample."""
        return 0 if self.starts is None else int((np.diff(self.starts) > self.seq_length + 1).sum())

    def inputs(self, indices: np.ndarray) -> int:
        """How many tokens the model reads of these samples (n,); padding is none."""
        if self.starts is None:
            return len(indices) * self.seq_length
        lengths = self.starts[indices + 1] - self.starts[indices]
        return int((np.minimum(lengths, self.seq_length + 1) - 1).sum())

    def learnt(self, indices: Iterable[int]) -> int:
        """How many targets these samples have."""
        if self.learn is None and self.starts is None:
            return len(list(indices)) * self.seq_length
        spans = (self._span(int(index)) for index in indices)
        return sum(
            end - begin - 1 if self.learn is None else int(self.learn[begin + 1 : end].sum()) for begin, end in spans
        )

    def rows(self, indices: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets (samples, seq_length) of int64; a target that is not learnt is IGNORE."""
        inputs, targets = zip(*(self._row(int(index)) for index in indices), strict=True)
        return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))

    def _row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        begin, end = self._span(index)
        tokens = self.tokens[begin:end].astype(np.int64)
        targets = tokens.copy()
        if self.learn is not None:
            targets[self.learn[begin:end] == 0] = IGNORE
        inputs_row = np.zeros(self.seq_length, np.int64)
        targets_row = np.full(self.seq_length, IGNORE, np.int64)
        inputs_row[: len(tokens) - 1], targets_row[: len(tokens) - 1] = tokens[:-1], targets[1:]
        return inputs_row, targets_row

    def _span(self, index: int) -> tuple[int, int]:
        if self.starts is None:
            return index * self.seq_length, (index + 1) * self.seq_length + 1
        begin, end = int(self.starts[index]), int(self.starts[index + 1])
        return begin, min(end, begin + self.seq_length + 1)


@dataclass(frozen=True, slots=True)
class Samples:
    """What to train on and what to validate on. `fingerprint`: a resume on other data would not see what it thinks."""

    train: Split
    validation: Split
    fingerprint: str
    files: int
    vocabulary: int = BYTES


def find_files(paths: Sequence[str]) -> tuple[Path, ...]:
    """The files that paths, folders and globs name, sorted; without any, the Python library's own sources."""
    if not paths:
        library = Path(sysconfig.get_path("stdlib"))
        return tuple(sorted(p for p in library.rglob("*.py") if "site-packages" not in p.parts))
    found: set[Path] = set()
    for path in paths:
        matches = [Path(path)] if os.path.exists(path) else [Path(match) for match in glob.glob(path, recursive=True)]
        if not matches:
            raise Problem(f"--data {path}: no such file, folder or match", fix="give paths that this node can read")
        for match in matches:
            if not (match.is_dir() or match.is_file()):  # reading a pipe would never end
                raise Problem(f"--data {match}: neither a file nor a folder", fix="give paths that this node can read")
            found.update(p for p in match.rglob("*") if p.is_file()) if match.is_dir() else found.add(match)
    return tuple(sorted(found))


def prepare_bytes(paths: Sequence[str], folder: Path) -> None:
    """Write train.bin, validation.bin and data.json into `folder`, unless they are there for these very files.

    For one process of all; the others open the result afterwards.
    """
    files = find_files(paths)

    def write() -> dict[str, int | str]:
        text = b"".join(_texts(files))
        if len(text) < 4096:
            raise Problem(
                f"--data {' '.join(paths)}: {len(text)} bytes of text are too few to train on", fix="give more text"
            )
        digest = hashlib.sha256()
        for name, part in zip(("train", "validation"), cut(np.frombuffer(text, np.uint8)), strict=True):
            write_file(folder / f"{name}.bin", part.tobytes())
            digest.update(part)
        return {"files": len(files), "fingerprint": digest.hexdigest()}

    prepare_once(folder, source_of(files), write)


def open_prepared(folder: Path, seq_length: int) -> Samples:
    """What prepare_bytes or tokenized.prepare wrote, mapped; Problem where it is too short for the sequence length."""
    about = read_about(folder)
    train, validation = (_open_split(folder / name, about, seq_length) for name in ("train", "validation"))
    if not len(train) or not len(validation):
        raise Problem(
            f"--seq-length {seq_length}: the validation text has only {len(validation.tokens)} tokens",
            fix="a shorter --seq-length, or more --data",
        )
    if not train.learnt(range(min(128, len(train)))) or not validation.learnt(range(min(128, len(validation)))):
        raise Problem(
            f"--seq-length {seq_length}: the conversations have no answer within so many tokens",
            fix="a longer --seq-length",
        )
    return Samples(train, validation, about["fingerprint"], about["files"], about.get("vocabulary", BYTES))


def _open_split(path: Path, about: dict, seq_length: int) -> Split:
    tokens = np.memmap(f"{path}.bin", about.get("dtype", "uint8"), "r")
    if not about.get("chat"):
        return Split(tokens, seq_length)
    learn = np.memmap(f"{path}.learn.bin", np.uint8, "r")
    return Split(tokens, seq_length, learn, np.load(f"{path}.starts.npy", mmap_mode="r"))


def bigram_loss(text: np.ndarray, inputs: Tensor, targets: Tensor) -> float:
    """Cross-entropy in nats per byte of a bigram model of `text` (counts plus one) on inputs and targets.

    The least that a language model must beat: it knows only the byte before.
    """
    pairs = text[:-1].astype(np.int64) * BYTES + text[1:]
    counts = np.bincount(pairs, minlength=BYTES**2).reshape(BYTES, BYTES) + 1.0
    log_probability = np.log(counts / counts.sum(axis=1, keepdims=True))
    return float(-log_probability[inputs.numpy(), targets.numpy()].mean())


def printable(text: str) -> str:
    """For a screen: what a model writes may hold control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{MIDDLE DOT}" for c in text)


# ---- files that are written once ----


def prepare_once(folder: Path, source: str, write: Callable[[], dict]) -> None:
    """Call `write` unless `folder` holds what it makes of this source; data.json, written last, says that it does."""
    if read_about(folder).get("source") == source:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").unlink(missing_ok=True)
    write_file(folder / "data.json", json.dumps({"source": source, **write()}).encode())


def source_of(files: Sequence[Path], *others: object) -> str:
    """Changes when a file is added, taken away or written, or when something else that decides the tokens changes."""
    seen = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(json.dumps([seen, *map(str, others)]).encode()).hexdigest()


def read_about(folder: Path) -> dict:
    path = folder / "data.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_file(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError:  # what is half written would keep a full volume full, and the log of this error out of it
        partial.unlink(missing_ok=True)
        raise


def _texts(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        text = path.read_bytes()
        if END_OF_FILE not in text[:8192]:  # as git and grep tell binary files
            yield text + END_OF_FILE


def cut(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Train and validation: every 20th block of the stream is validation."""
    block = min(_BLOCK, len(text) // _VALIDATION_EVERY)
    is_validation = np.arange(len(text)) // block % _VALIDATION_EVERY == _VALIDATION_EVERY - 1
    return text[~is_validation], text[is_validation]
