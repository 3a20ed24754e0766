"""A recipe and the shortest correct loop in one process, taking turns step by step.

    torchrun --nproc-per-node 2 bench/turns.py ddp ddp|accelerate RECIPE-OPTION…

What else the machine does then meets both alike. Rank 0 prints one JSON line: the median over steps of bare seconds by
ours. All that the recipe does between two steps is its own: the batch, the rate, the flags, the log.
"""

import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import bare  # puts train/ on sys.path
import main as recipes
import run as runs
import torch.distributed as dist
from torch import Tensor

WARM_UP = 10


class Turns(runs.Run):
    """After each step of the recipe, one of the bare loop."""

    other: str

    def resume(self, read: Callable[[Path], None]) -> int:
        step = super().resume(read)
        self._bare = bare.STEPS[self.other](self.options)
        self._batches = iter(bare.batches(self.options))
        self._ours, self._theirs, self._began = list[float](), list[float](), self._now()
        return step

    def step_done(self, step: int, loss: Tensor, *, finite: bool = True) -> runs.Due:
        due = super().step_done(step, loss, finite=finite)
        self._ours.append(self._now() - self._began)
        batch, began = next(self._batches), self._now()
        self._bare(batch)
        self._theirs.append(self._now() - began)
        if step == self.options.steps:
            self._tell()
        self._began = self._now()
        return due

    def _now(self) -> float:
        """When all are ready: else one side pays for what the other left the slower rank to do."""
        bare.synchronize()
        dist.barrier()
        return time.perf_counter()

    def _tell(self) -> None:
        pairs = list(zip(self._ours, self._theirs, strict=True))[WARM_UP:]
        ours, theirs = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        tokens = self.options.global_batch * self.options.seq_length
        if self.process.is_first:
            line = {"contender": self.other, "ratio": round(ratio, 4), "tokens_per_second": round(tokens / ours, 1)}
            print(json.dumps(line | {"bare": round(tokens / theirs, 1)}), flush=True)
        # What is measured is printed: validation and the last checkpoint are not timed.
        os._exit(0)


if __name__ == "__main__":
    recipe, Turns.other = sys.argv[1:3]
    recipes.Run = Turns
    sys.argv[:3] = [str(Path(__file__).parents[1] / "train" / f"{recipe}.py")]
    runpy.run_path(sys.argv[0], run_name="__main__")
