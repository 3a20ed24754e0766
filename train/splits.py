"""Train or validation on its way to disk: nothing has its final name before all of it is there."""

import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np


class SplitFile:
    """Train or validation on its way to disk: X.bin, and for conversations X.learn.bin and X.starts.npy."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.count = 0  # tokens
        self._path, self._dtype = path, dtype
        self._starts = array("q", [0])
        self._streams = {kind: open(self._partial(kind), "wb") for kind in ("bin", "learn.bin")}  # noqa: SIM115

    def add(self, tokens: np.ndarray, learn: np.ndarray | None) -> None:
        self._streams["bin"].write(tokens.astype(self._dtype).tobytes())
        self.count += len(tokens)
        if learn is not None:
            self._streams["learn.bin"].write(learn.tobytes())
            self._starts.append(self.count)

    def __enter__(self) -> "SplitFile":
        return self

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        for stream in self._streams.values():
            stream.close()
        if len(self._starts) > 1:
            self._write_starts()
        else:
            self._partial("learn.bin").unlink()

    def tokens(self) -> np.ndarray:
        return np.fromfile(self._partial("bin"), self._dtype)

    def replace(self, tokens: np.ndarray) -> None:
        tokens.tofile(self._partial("bin"))

    def move_last_to(self, other: "SplitFile") -> None:
        begin = self._starts[-2]
        for kind, width in (("bin", self._dtype.itemsize), ("learn.bin", 1)):
            content = self._partial(kind).read_bytes()
            other._partial(kind).write_bytes(content[begin * width :])
            os.truncate(self._partial(kind), begin * width)
        other._starts.append(self._starts.pop() - begin)
        self._write_starts()
        other._write_starts()

    def commit(self, digest: Any) -> None:
        """Give the files their names, and their content to the digest."""
        for kind in ("bin", "learn.bin", "starts.npy"):
            if self._partial(kind).exists():
                with open(self._partial(kind), "rb") as stream:
                    while block := stream.read(1 << 20):
                        digest.update(block)
                os.replace(self._partial(kind), f"{self._path}.{kind}")

    def _write_starts(self) -> None:
        with open(self._partial("starts.npy"), "wb") as stream:
            np.save(stream, np.frombuffer(self._starts, np.int64))

    def _partial(self, kind: str) -> Path:
        return Path(f"{self._path}.{kind}.partial")
