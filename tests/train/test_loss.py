"""The gradient is that of the mean over all tokens of the global batch, however it is cut (transformers#34191)."""

from pathlib import Path

import pytest
from ranks import on_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
LENGTHS = (1, 2, 16, 5, 9, 3, 1, 12)  # tokens to be learnt of each sample


def batch():
    """Inputs and targets (8, 16), the targets random masks of the given counts."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randint(256, (len(LENGTHS), 16), generator=generator)
    targets = torch.full_like(inputs, -100)
    for row, count in zip(targets, LENGTHS, strict=True):
        where = torch.randperm(16, generator=generator)[:count]
        row[where] = torch.randint(256, (count,), generator=generator)
    return inputs, targets


def small_model():
    from model import build_model
    from options import Options

    torch.manual_seed(0)
    return build_model(Options(), 256)


def expected():
    """Loss and gradients of torch's own mean over the whole batch, in one piece and without any wrapper."""
    model, (inputs, targets) = small_model(), batch()
    loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def check(recipe, model, passes):
    """This rank's rows through the recipe's own function."""
    from types import SimpleNamespace

    import torch.distributed as dist
    from run import Batch

    inputs, targets = (part[dist.get_rank() :: dist.get_world_size()] for part in batch())
    run = SimpleNamespace(passes=passes, bfloat16=False, process=SimpleNamespace(device=torch.device("cpu")))
    share = recipe.gradients(model, Batch(inputs, targets, sum(LENGTHS)), run)
    dist.all_reduce(share)
    loss, gradients = expected()
    assert share.item() == pytest.approx(loss, rel=1e-6)
    for name, parameter in model.named_parameters():
        found = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
        wanted = gradients[name.removeprefix("module.")]
        assert (found - wanted).norm() <= 1e-6 * wanted.norm(), (recipe.__name__, passes, name)


def each_recipe(_: Path) -> None:
    import ddp
    import fsdp
    import torch.distributed as dist
    from options import FsdpOptions
    from process_group import Process

    process = Process(dist.get_rank(), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    for passes in (1, 2, 4):
        check(ddp, torch.nn.parallel.DistributedDataParallel(small_model()), passes)
        sharded = small_model()
        fsdp.shard(sharded, FsdpOptions(), process, bfloat16=False)
        check(fsdp, sharded, passes)


@pytest.mark.parametrize("processes", [1, 2])
def test_short_samples_weigh_no_more_than_their_tokens(tmp_path, processes):
    """The recipes zero and hf: test_zero.py and test_hf.py, by their losses."""
    on_ranks(processes, each_recipe, tmp_path)


def test_a_mean_of_means_would_be_seen():
    """What the test above can tell apart: the mean over samples has another gradient by far."""
    model, (inputs, targets) = small_model(), batch()
    for row, wanted in zip(inputs, targets, strict=True):
        loss = torch.nn.functional.cross_entropy(model(row[None])[0], wanted, ignore_index=-100)
        (loss / len(inputs)).backward()
    _, gradients = expected()
    apart = [(p.grad - gradients[name]).norm() / gradients[name].norm() for name, p in model.named_parameters()]
    assert min(apart) > 0.05
