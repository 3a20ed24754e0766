"""The loss of all recipes: cross-entropy summed over tokens, to be divided by the tokens of the global batch."""

import torch
import torch.nn.functional as F
from samples import IGNORE
from torch import Tensor, nn


def summed_loss(model: nn.Module, inputs: Tensor, targets: Tensor, *, bfloat16: bool) -> Tensor:
    """Cross-entropy in nats, summed over the targets (samples, length) that are not IGNORE.

    A sum, since a mean over means would weigh short samples and short passes more (transformers#34191).
    """
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
        output = model(inputs)
    logits = output if isinstance(output, Tensor) else output.logits  # ours, or a model of Hugging Face
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
