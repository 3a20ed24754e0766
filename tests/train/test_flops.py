import types

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
from flops import peak, peak_of, per_token  # noqa: E402
from model import SIZES, Decoder  # noqa: E402


@pytest.mark.parametrize(
    ("card", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", None),
        ("Tesla V100-SXM2-32GB", None),
        ("NVIDIA B300 SXM6 AC", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
    ],
)
def test_a_card_has_the_peak_of_its_data_sheet_or_none(card, tflops):
    assert peak_of(card) == (tflops and tflops * 1e12)


def test_a_cpu_has_no_peak():
    assert peak(torch.device("cpu")) is None


def test_flops_are_six_a_weight_and_attentions_own():
    with torch.device("meta"):
        model = Decoder(SIZES["tiny"], 256)
    weights = sum(p.numel() for p in model.parameters()) - 256 * 128
    assert per_token(model, 512) == 6 * weights + 12 * 4 * 128 * 512
    assert per_token(torch.nn.Linear(2, 2), 512) is None


def test_frozen_weights_have_no_gradient_of_their_own():
    with torch.device("meta"):
        model = Decoder(SIZES["tiny"], 256)
    attention = 12 * 4 * 128 * 512
    trained = per_token(model, 512) - attention
    model.requires_grad_(False)
    assert per_token(model, 512) - attention == pytest.approx(trained * 4 / 6)


@pytest.mark.parametrize(("name", "known"), [("num_local_experts", False), ("vocab_size", True)])
def test_a_mixture_of_experts_is_not_counted(name, known):
    model = torch.nn.Linear(2, 2)
    model.config = types.SimpleNamespace(num_hidden_layers=2, hidden_size=2, **{name: 8})
    assert (per_token(model, 512) is not None) == known


def test_the_count_agrees_with_torchs_counter_within_a_few_percent():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = Decoder(SIZES["tiny"], 256)
    tokens = torch.zeros(2, 256, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it counts no fused attention on CPU
        model(tokens).sum().backward()
    assert per_token(model, 256) * tokens.numel() == pytest.approx(counter.get_total_flops(), rel=0.02)
