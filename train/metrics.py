"""What rank 0 tells of the run: a line for people and one in metrics.jsonl, with speeds of the training alone."""

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch
from options import Options
from trackers import numbers, open_trackers


class Metrics:
    """Counts what was trained since the last line. Time spent on validation and saving is left out of the speeds.

    Tokens are those that the model reads: of a conversation the questions too, padding not. So are those of MFU.
    """

    def __init__(self, run_dir: Path, options: Options, *, speak: bool) -> None:
        self.validation_loss: float | None = None
        self._run_dir, self._options, self._speak = run_dir, options, speak
        self._step_file = os.environ.get("TRAIN_STEP_FILE") if speak else None
        self._began = time.perf_counter()
        self._apart = 0.0
        self._updates = self._tokens = 0
        self._skipped_steps = 0
        self._unwritten = False
        self._flops_per_token: float | None = None
        self._peak: float | None = None
        self._trackers = open_trackers(run_dir, options) if speak else []

    def set_flops(self, per_token: float | None, peak: float | None) -> None:
        """FLOPs for one token, and FLOP/s of all processes' GPUs together; None where either is not known."""
        self._flops_per_token, self._peak = per_token, peak

    def step_done(self, step: int, tokens: int) -> None:
        """One more optimizer update, with these tokens of all processes; the step file says "alive, and this far"."""
        self._updates += 1
        self._tokens += tokens
        if self._step_file:
            with self._surviving():
                Path(self._step_file).write_text(f"{step}\n")

    def skipped(self, step: int) -> None:
        self._skipped_steps += 1
        self.say(f"step {step}: the gradient is not finite; the step is skipped ({self._skipped_steps} so far)")

    def apart(self) -> "_Apart":
        """`with metrics.apart():` around work that is not training."""
        return _Apart(self)

    def log(self, step: int, loss: float, lr: float) -> None:
        """Write one record; loss in nats per token, speeds over all processes, eta in seconds."""
        options = self._options
        seconds = time.perf_counter() - self._began - self._apart
        samples_per_second = self._updates * options.global_batch / seconds if seconds > 0 else 0.0
        tokens_per_second = self._tokens / seconds if seconds > 0 else 0.0
        eta = (options.steps - step) * options.global_batch / samples_per_second if samples_per_second else None
        record = {
            "step": step,
            "steps": options.steps,
            "loss": loss if math.isfinite(loss) else None,  # JSON has no nan
            "lr": lr,
            "tokens_per_second": round(tokens_per_second, 1),
            "samples_per_second": round(samples_per_second, 2),
            "eta_seconds": None if eta is None else round(eta, 1),
        }
        if self._flops_per_token and self._peak:
            record["mfu"] = round(tokens_per_second * self._flops_per_token / self._peak, 4)
        if torch.cuda.is_available():
            record["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if self._skipped_steps:
            record["skipped_steps"] = self._skipped_steps
        self._write("metrics.jsonl", record)
        self.say(_line(record))
        self._began, self._apart = time.perf_counter(), 0.0
        self._updates = self._tokens = 0

    def log_validation(self, step: int, loss: float) -> None:
        self.validation_loss = loss
        self._write("validation.jsonl", {"step": step, "validation_loss": loss if math.isfinite(loss) else None})
        self.say(f"step {step:>{len(str(self._options.steps))}}/{self._options.steps}  validation loss {loss:.4f}")

    def say(self, text: str) -> None:
        if self._speak:
            print(text, flush=True)

    def _write(self, name: str, record: dict) -> None:
        if self._speak:
            with self._surviving():
                with open(self._run_dir / name, "a") as stream:
                    stream.write(json.dumps(record) + "\n")
                for track in self._trackers:
                    track(record["step"], numbers(record))

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """A full volume loses figures and not the training; it is told once."""
        try:
            yield
        except OSError as error:
            if not self._unwritten:
                self.say(f"warning: {self._run_dir}: {error.strerror or error}; training goes on without these figures")
            self._unwritten = True


class _Apart:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._metrics._apart += time.perf_counter() - self._began


def _line(record: dict) -> str:
    width = len(str(record["steps"]))
    parts = [
        f"step {record['step']:>{width}}/{record['steps']}",
        "loss not finite" if record["loss"] is None else f"loss {record['loss']:.4f}",
        f"lr {record['lr']:.2e}",
        f"{record['tokens_per_second']:,.0f} tokens/s",
        f"{record['samples_per_second']:,.1f} samples/s",
        f"eta {_duration(record['eta_seconds'])}",
    ]
    if "mfu" in record:
        parts.append(f"mfu {record['mfu']:.1%}")
    return "  ".join(parts)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
