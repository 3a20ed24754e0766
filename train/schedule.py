"""When and how much: the learning rate of a step, and the clock that says a save is due."""

import math
import time

from options import Interval, Options


def learning_rate(options: Options, step: int) -> float:
    """Rate of optimizer update `step` (0, 1, …): a function of the step alone, whatever the number of processes.

    >>> [round(learning_rate(Options(lr=1.0, warmup=2, steps=4, schedule="linear"), step), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.55]
    """
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    if options.schedule == "constant":
        return options.lr
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    share = 0.5 * (1 + math.cos(math.pi * done)) if options.schedule == "cosine" else 1 - done
    return options.lr * (0.1 + 0.9 * share)  # ends at a tenth of the peak


class Cadence:
    """Whether something that is done every so many steps, or every so many seconds, is due.

    Clocks of ranks differ: for seconds, rank 0's answer must be agreed on (two ranks that disagree would hang).
    """

    def __init__(self, every: Interval) -> None:
        self._every = every
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        if self._every.steps is not None:
            return step % self._every.steps == 0
        return time.monotonic() - self._last >= (self._every.seconds or 0)

    def done(self) -> None:
        self._last = time.monotonic()
