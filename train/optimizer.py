"""AdamW, and the update that is made only if its gradient is finite."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from options import BETAS, Options, Problem
from torch import nn
from torch.optim import Optimizer


def make_optimizer(model: nn.Module, options: Options) -> Optimizer:
    """AdamW that decays matrices and leaves norms and biases alone; frozen parameters are not in it."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=options.lr, betas=BETAS, fused=True)


def refuse_unused(model: nn.Module) -> None:
    """Problem where a weight got no gradient: DDP would wait for it and end the next step (pytorch#106985)."""
    unused = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    if unused:
        shown = ", ".join(unused[:3]) + f" and {len(unused) - 3} more" * (len(unused) > 3)
        raise Problem(
            f"{len(unused)} of the model's weights get no gradient, and DDP waits for each: {shown}",
            fix="--find-unused-parameters, or the recipe fsdp or zero, which do without them",
        )


def complete_state(optimizer: Optimizer) -> None:
    """Adam's state of weights that have had no gradient yet, as Adam itself would begin it.

    It makes a weight's state with its first gradient; a checkpoint without some cannot be read: the reader asks for all
    of them (accelerate#3971).
    """
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        if not optimizer.state[weight]:
            step = torch.zeros((), dtype=torch.float32, device=weight.device)
            optimizer.state[weight] = {
                "step": step,
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }


def set_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


@contextmanager
def keeping_decay(optimizer: Optimizer) -> Iterator[None]:
    """Around the reading of its state, which brings the weight decay of the start that wrote it."""
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    yield
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        group["weight_decay"] = decay


def update(model: nn.Module, optimizer: Optimizer, clip: float) -> bool:
    """Clip, step, clear; False where the gradient was not finite and nothing was changed.

    The norm is that of the whole model, so every rank comes to the same answer without asking.
    """
    norm = nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # a DTensor is one rank's view
    finite = bool(torch.isfinite(norm))
    if finite:
        if clip:
            nn.utils.clip_grads_with_norm_(model.parameters(), clip, norm)
        optimizer.step()
    optimizer.zero_grad()
    return finite
