"""Started by test_hf.py under torchrun: several short runs, one after another in the same processes.

Its arguments are a folder and JSON: a list of runs with the fields of `Asked`. A run lies in folder/name.
"""

import importlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

TRAIN = Path(__file__).resolve().parents[2] / "train"
sys.path.insert(0, str(TRAIN))
import hf  # noqa: E402
import options  # noqa: E402
import process_group  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from run import Run  # noqa: E402
from several_runs import learnt_here_and_there  # noqa: E402


@dataclass(frozen=True, slots=True)
class Asked:
    name: str
    arguments: list[str]
    recipe: str = "hf"
    forget: str | None = None  # a checkpoint to remove before, as if the run had died on its way there
    spoil: str | None = None  # a checkpoint to damage before
    poisoned_step: int | None = None  # the loss of the last rank is not a number in it
    uneven: bool = False  # how many tokens are learnt differs between ranks and passes


def main():
    process = process_group.start()
    for words in json.loads(sys.argv[2]):
        asked = Asked(**words)
        forget_the_last_run()
        folder = Path(sys.argv[1], asked.name)
        os.environ["TRAIN_RUN_DIR"] = str(folder)
        if process.is_first:
            prepare(folder / "checkpoints", asked)
        dist.barrier()
        try:
            code = train(asked, process)
        except options.Problem as problem:
            code = problem
        if process.is_first:
            (folder / "outcome").write_text(str(code))
        dist.barrier()
    process_group.stop()
    process_group.leave(0)


def forget_the_last_run():
    """accelerate and transformers remember, for the whole process, that DeepSpeed was used."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]


def prepare(checkpoints, asked):
    if asked.forget:
        shutil.rmtree(checkpoints / asked.forget)
    if asked.spoil:
        next(path for path in (checkpoints / asked.spoil).rglob("optimizer.pt")).write_bytes(b"cut")


def train(asked, process):
    run = Run(asked.recipe, options.parse(asked.arguments, options.KINDS[asked.recipe]), process)
    if not run.options.model:
        run.report = lambda *_: None  # a text of 240 bytes takes longer than 20 steps
    if asked.uneven:
        run.samples = learnt_here_and_there(run.samples)
    original = hf.summed_loss
    calls = []

    def summed_loss(*arguments, **named):
        calls.append(1)
        mine = len(calls) == run.passes * asked.poisoned_step and process.rank == process.world_size - 1
        return original(*arguments, **named) * (float("nan") if mine else 1.0)

    if asked.poisoned_step:
        hf.summed_loss = summed_loss
    try:
        return importlib.import_module(asked.recipe).train(run)
    finally:
        hf.summed_loss = original


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
