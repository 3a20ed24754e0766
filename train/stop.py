"""A requested stop: SIGTERM, or the stop file appears. Both mean: save and leave with 143."""

import os
import signal
import time
from pathlib import Path
from types import FrameType

EXIT_CODE = 143  # 128 + SIGTERM: stopped, state saved, can go on


class StopRequest:
    """Whether this process was asked to stop. What one rank saw, all ranks must agree on before they act."""

    def __init__(self, stop_file: Path | None) -> None:
        self._signalled = False
        self._stop_file = stop_file
        self._looked_at = 0.0
        signal.signal(signal.SIGTERM, self._on_signal)

    @classmethod
    def from_environment(cls) -> "StopRequest":
        path = os.environ.get("TRAIN_STOP_FILE")
        return cls(Path(path) if path else None)

    def seen(self) -> bool:
        return self._signalled or self._file_seen()

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self._signalled = True

    def _file_seen(self) -> bool:
        now = time.monotonic()
        if self._stop_file is None or now - self._looked_at < 1.0:  # a stat on a network volume is not free
            return False
        self._looked_at = now
        return self._stop_file.exists()
