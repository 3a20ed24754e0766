"""What rank 0 tells of the run: a line for people and one in metrics.jsonl, with speeds of the training alone."""

import json
import os
import time
from pathlib import Path
from types import TracebackType


class Metrics:
    """Counts what was trained since the last line. Time spent on validation and saving is left out of the speeds."""

    def __init__(self, run_dir: Path, steps: int, seq_length: int, global_batch: int, *, speak: bool) -> None:
        self._steps, self._seq_length, self._global_batch, self._speak = steps, seq_length, global_batch, speak
        self._run_dir = run_dir
        self._step_file = os.environ.get("TRAIN_STEP_FILE") if speak else None
        self._began = time.perf_counter()
        self._apart = 0.0
        self._updates = 0

    def step_done(self, step: int) -> None:
        """One more optimizer update; the step file says "alive, and this far"."""
        self._updates += 1
        if self._step_file:
            Path(self._step_file).write_text(f"{step}\n")

    def apart(self) -> "_Apart":
        """`with metrics.apart():` around work that is not training."""
        return _Apart(self)

    def log(self, step: int, loss: float, lr: float, validation_loss: float | None = None) -> None:
        """Write one record; loss in nats per token, speeds over all processes, eta in seconds."""
        seconds = time.perf_counter() - self._began - self._apart
        samples_per_second = self._updates * self._global_batch / seconds if seconds > 0 else 0.0
        eta = (self._steps - step) * self._global_batch / samples_per_second if samples_per_second else None
        record = {
            "step": step,
            "steps": self._steps,
            "loss": loss,
            "lr": lr,
            "tokens_per_second": round(samples_per_second * self._seq_length, 1),
            "samples_per_second": round(samples_per_second, 2),
            "eta_seconds": None if eta is None else round(eta, 1),
        }
        if validation_loss is not None:
            record["validation_loss"] = validation_loss
        if self._speak:
            with open(self._run_dir / "metrics.jsonl", "a") as stream:
                stream.write(json.dumps(record) + "\n")
            print(_line(record), flush=True)
        self._began, self._apart, self._updates = time.perf_counter(), 0.0, 0

    def say(self, text: str) -> None:
        if self._speak:
            print(text, flush=True)

    def finish(self, step: int, validation_loss: float, bigram_loss: float) -> None:
        """Write summary.json: losses in nats per byte, and what a model of byte pairs reaches on the same text."""
        summary = {"step": step, "validation_loss": validation_loss, "bigram_loss": bigram_loss}
        (self._run_dir / "summary.json").write_text(json.dumps(summary) + "\n")
        self.say(f"validation loss {validation_loss:.4f} nats/byte; a bigram model of the same data: {bigram_loss:.4f}")


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
        f"loss {record['loss']:.4f}",
        f"lr {record['lr']:.2e}",
        f"{record['tokens_per_second']:,.0f} tokens/s",
        f"{record['samples_per_second']:,.1f} samples/s",
        f"eta {_duration(record['eta_seconds'])}",
    ]
    if "validation_loss" in record:
        parts.append(f"validation {record['validation_loss']:.4f}")
    return "  ".join(parts)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
