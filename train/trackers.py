"""Where numbers go besides metrics.jsonl: TensorBoard always, Weights & Biases when a key is set. For rank 0 alone."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from options import Options

Tracker = Callable[[int, Mapping[str, float]], None]  # (step, name → number)


def open_trackers(run_dir: Path, options: Options, variables: Mapping[str, str] = os.environ) -> list[Tracker]:
    """One function for each place that numbers are sent to; a place that cannot be had is told and left out."""
    places: dict[str, Callable[[], Tracker]] = {"TensorBoard": lambda: _tensorboard(run_dir)}
    if variables.get("WANDB_API_KEY") or variables.get("WANDB_MODE") == "offline":
        places["Weights & Biases"] = lambda: _wandb(run_dir, options, variables)
    opened = [_opened(name, place) for name, place in places.items()]
    return [tracker for tracker in opened if tracker is not None]


def _opened(name: str, place: Callable[[], Tracker]) -> Tracker | None:
    try:
        return place()
    except Exception as error:  # a wrong key, no network, no package: curves are not worth a run
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        print(f"warning: {name} is left out: {reason}; training goes on, all figures are in metrics.jsonl", flush=True)
        return None


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What of a record can be drawn as a curve."""
    return {name: float(value) for name, value in record.items() if isinstance(value, int | float) and name != "step"}


def _tensorboard(run_dir: Path) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run_dir / "tensorboard"))

    def track(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return track


def _wandb(run_dir: Path, options: Options, variables: Mapping[str, str]) -> Tracker:
    import wandb

    # The run's own name as its id: a run that goes on draws on in the same curves.
    run = wandb.init(
        project=variables.get("WANDB_PROJECT", "roundhouse"),
        id=variables.get("WANDB_RUN_ID", run_dir.name),
        resume="allow",
        dir=run_dir,
        config={name: str(value) for name, value in asdict(options).items()},
    )
    return lambda step, values: run.log(dict(values), step=step)
