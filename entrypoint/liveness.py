"""Whether the training still makes steps. Only a script that writes the step file is judged."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

HANG_SECONDS = 120.0
_MEDIANS = 10
_REMEMBERED = 101


class Liveness:
    """Fed with the step file's content and time of change; `stuck_for` is the verdict."""

    def __init__(self, floor: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._floor = HANG_SECONDS if floor is None else floor
        self._clock = clock
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)  # of one step
        self._step: int | None = None
        self._stamp: float | None = None
        self._changed_at = 0.0

    @property
    def stepped(self) -> bool:
        return self._stamp is not None

    @property
    def bound(self) -> float:
        """Seconds without a step that are a hang."""
        return max(self._floor, _MEDIANS * median(self._seconds)) if self._seconds else self._floor

    def see(self, step: int | None, stamp: float | None) -> None:
        """`stamp`: when the file was written (None: it is not there). Writing the same step again is life too."""
        if stamp is None or stamp == self._stamp:
            return
        now = self._clock()
        if step is not None and self._step is not None and step > self._step:
            self._seconds.append((now - self._changed_at) / (step - self._step))
        self._step, self._stamp, self._changed_at = step, stamp, now

    def alive(self) -> None:
        """Something else shows life: a checkpoint that is being written."""
        self._changed_at = self._clock()

    def stuck_for(self) -> float | None:
        """Seconds since the last step where they are too many; None: alive, or not to be judged."""
        if not self.stepped:
            return None
        still = self._clock() - self._changed_at
        return still if still > self.bound else None
