"""Model FLOPs and the peaks of GPUs: how much of a card a training step uses (MFU)."""

import torch
from model import Decoder
from torch import nn

# Dense bf16 TFLOPS from NVIDIA's data sheets; the first name that is part of the card's name counts, so the longer
# names come first. An unknown card has no MFU: a guess was three times too high elsewhere (OLMo-core#810).
PEAKS = (
    ("H100 NVL", 835e12),
    ("H200 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("GH200", 989e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("H800", 989e12),
    ("B200", 2250e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names in configurations of Hugging Face


def peak(device: torch.device) -> float | None:
    """Dense bf16 FLOP/s of this GPU; None: not a GPU that the table has."""
    return peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def peak_of(name: str) -> float | None:
    """
    >>> peak_of("NVIDIA H100 80GB HBM3") == 989e12, peak_of("NVIDIA GeForce GTX 1080")
    (True, None)
    """
    words = name.replace("-", " ").split()
    if "MIG" in words:  # a slice of a card, which has a part of its peak
        return None
    return next((flops for card, flops in PEAKS if all(word in words for word in card.split())), None)


def per_token(model: nn.Module, seq_length: int) -> float | None:
    """FLOPs of forward and backward for one token: 6 a weight that multiplies, and attention's 12 × layers × width ×
    length (Chowdhery et al. 2022, appendix B). A frozen weight has no gradient of its own: 4. None for a model whose
    shape is not known, or of whose experts each token meets only some."""
    if isinstance(model, Decoder):
        layers, width = model.size.layers, model.size.width
    elif hasattr(model, "config") and not any(getattr(model.config, name, None) for name in _EXPERTS):
        layers, width = getattr(model.config, "num_hidden_layers", None), getattr(model.config, "hidden_size", None)
    else:
        return None
    if not layers or not width:
        return None
    embedding = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    tied = embedding is not None and any(
        m.weight is embedding.weight for m in model.modules() if isinstance(m, nn.Linear)
    )
    looked_up = None if embedding is None or tied else embedding.weight
    multiplied = [parameter for parameter in model.parameters() if parameter is not looked_up]
    weights = sum((6.0 if parameter.requires_grad else 4.0) * parameter.numel() for parameter in multiplied)
    return weights + 12.0 * layers * width * seq_length
