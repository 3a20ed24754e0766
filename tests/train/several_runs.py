"""Started by test_zero.py under our launcher: several short runs, one after another in the same processes.

Its one argument is JSON: name → {"recipe": …, "arguments": […]} and what else `Asked` has. A run lies in
TRAIN_RUN_DIR/name.
"""

import dataclasses
import importlib
import json
import os
import sys
from dataclasses import dataclass

import numpy as np
import options
import process_group
import torch
import torch.distributed as dist
import zero
from run import Run


@dataclass(frozen=True, slots=True)
class Asked:
    recipe: str
    arguments: list[str]
    poisoned_step: int | None = None  # the loss of one pass of the last rank is not a number in it
    uneven: bool = False  # how many tokens are learnt differs between ranks and passes


def main():
    process = process_group.start()
    folder = os.environ["TRAIN_RUN_DIR"]
    del os.environ["TRAIN_CHECKPOINT_DIR"]  # then it lies in the run's own folder
    for name, words in json.loads(sys.argv[1]).items():
        asked = Asked(**words)
        os.environ["TRAIN_RUN_DIR"] = f"{folder}/{name}"
        run = Run(asked.recipe, options.parse(asked.arguments, options.KINDS[asked.recipe]), process)
        run.report = lambda *_: None  # a text of 240 bytes takes longer than 20 steps
        if asked.uneven:
            run.samples = learnt_here_and_there(run.samples)
        assert train(run, asked) == 0
    process_group.stop()
    process_group.leave(0)


def train(run, asked):
    if asked.poisoned_step is None:
        return importlib.import_module(asked.recipe).train(run)
    summed_loss, update = zero.summed_loss, zero.update
    zero.summed_loss, zero.update = poisoned(summed_loss, run.passes * asked.poisoned_step), watched(update)
    try:
        return zero.train(run)
    finally:
        zero.summed_loss, zero.update = summed_loss, update


def poisoned(summed_loss, call):
    """summed_loss, but for one call on the last rank."""
    calls = []

    def loss(*arguments, **named):
        calls.append(1)
        mine = len(calls) == call and dist.get_rank() == dist.get_world_size() - 1
        return summed_loss(*arguments, **named) * (float("nan") if mine else 1.0)

    return loss


def watched(update):
    """update, which must change this rank's state if it says so, and must not if it does not."""

    def watched_update(engine):
        before = state(engine)
        finite = update(engine)
        after = state(engine)
        changed = len(before) != len(after) or not all(map(torch.equal, before, after))
        assert changed == finite
        return finite

    return watched_update


def state(engine):
    """This rank's share of the weights, as the optimizer and as the model has them, and of Adam's state."""
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    held = [part for weight, state in optimizer.state.items() for part in (weight, *state.values())]
    weights = [getattr(weight, "ds_tensor", weight) for weight in engine.module.parameters()]
    return [tensor.detach().clone() for tensor in held + weights if isinstance(tensor, torch.Tensor)]


def learnt_here_and_there(samples):
    positions = np.arange(len(samples.train.tokens))
    learn = (positions % 7 <= positions // 64 % 7).astype(np.uint8)
    return dataclasses.replace(samples, train=dataclasses.replace(samples.train, learn=learn))


if __name__ == "__main__":
    main()
