"""The shortest correct loops that the recipes are measured against: same model, data, batch, optimizer; nothing else.

    torchrun --nproc-per-node 2 bench/bare.py ddp|fsdp|zero|trainer|accelerate RECIPE-OPTION…

Rank 0 prints one JSON line: tokens/s over the steps after the first five.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train"))
import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import blocks_of, build_model
from options import Options, parse
from torch import Tensor, nn

WARM_UP = 5


def main() -> None:
    contender, options = sys.argv[1], parse(sys.argv[2:])
    speed = CONTENDERS[contender](options)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"contender": contender, "tokens_per_second": round(speed, 1)}), flush=True)


def batches(options: Options) -> list[Tensor]:
    """This rank's rows (samples, length + 1) of each step: random bytes, made before the clock starts."""
    generator = torch.Generator().manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    shape = (options.steps, options.global_batch // int(os.environ["WORLD_SIZE"]), options.seq_length + 1)
    return list(torch.randint(0, 256, shape, generator=generator).to(device()))


def device() -> torch.device:
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")


def timed(options: Options, step: Callable[[Tensor], object]) -> float:
    """Tokens/s of all processes together."""
    for number, batch in enumerate(batches(options)):
        if number == WARM_UP:
            synchronize()
            began = time.perf_counter()
        step(batch)
    synchronize()
    return (options.steps - WARM_UP) * options.global_batch * options.seq_length / (time.perf_counter() - began)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=batch.is_cuda):
        logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def adamw(model: nn.Module, options: Options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), fused=True)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, options: Options) -> Callable[[Tensor], None]:
    def step(batch: Tensor) -> None:
        loss_of(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(options: Options) -> float:
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    model = build_model(options, 256).to(device())
    wrapped = nn.parallel.DistributedDataParallel(model)
    speed = timed(options, plain_step(wrapped, adamw(model, options), options))
    dist.destroy_process_group()
    return speed


def fsdp(options: Options) -> float:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32) if torch.cuda.is_available() else MixedPrecisionPolicy()
    )
    model = build_model(options, 256).to(device())
    for block in blocks_of(model):
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    speed = timed(options, plain_step(model, adamw(model, options), options))
    dist.destroy_process_group()
    return speed


def zero(options: Options) -> float:
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    model = build_model(options, 256).to(device())
    config = {
        "train_batch_size": options.global_batch,
        "gradient_clipping": options.clip,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": torch.cuda.is_available()},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model, options), config=config)

    def step(batch: Tensor) -> None:
        engine.backward(loss_of(engine, batch))
        engine.step()

    speed = timed(options, step)
    dist.destroy_process_group()
    return speed


class WithLoss(nn.Module):
    """A model as the Trainer wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"loss": loss_of(self.model, rows)}


def trainer(options: Options) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        began = ended = 0.0

        def on_step_begin(self, args, state, control, **_):
            if state.global_step == WARM_UP:
                synchronize()
                self.began = time.perf_counter()

        def on_train_end(self, args, state, control, **_):
            synchronize()
            self.ended = time.perf_counter()

    world_size = int(os.environ["WORLD_SIZE"])
    rows = torch.randint(0, 256, (options.steps * options.global_batch, options.seq_length + 1))
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=options.global_batch // world_size,
        learning_rate=options.lr,
        adam_beta2=0.95,
        max_grad_norm=options.clip,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=options.log_every,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    clock = Clock()
    data = [{"rows": row} for row in rows]
    Trainer(WithLoss(build_model(options, 256)), arguments, train_dataset=data, callbacks=[clock]).train()
    return (options.steps - WARM_UP) * options.global_batch * options.seq_length / (clock.ended - clock.began)


def accelerate(options: Options) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    bare = build_model(options, 256)
    model, optimizer = accelerator.prepare(bare, adamw(bare, options))

    def step(batch: Tensor) -> None:
        accelerator.backward(loss_of(model, batch))
        accelerator.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()

    return timed(options, step)


CONTENDERS = {"ddp": ddp, "fsdp": fsdp, "zero": zero, "trainer": trainer, "accelerate": accelerate}

if __name__ == "__main__":
    main()
    os._exit(0)  # what is measured is printed; gloo's threads can hang a process that leaves after its peer
