"""The shortest correct loops that the recipes are measured against: same model, batch, optimizer; nothing else.

Each function builds one in a process group that is there, and returns its step. `turns.py` beside this runs them.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "train"))
import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import blocks_of, build_model
from optimizer import make_optimizer
from options import Options
from torch import Tensor, nn

Step = Callable[[Tensor], object]  # of this rank's rows (samples, length + 1)


def batches(options: Options) -> list[Tensor]:
    """This rank's rows (samples, length + 1) of each step: random bytes, made before the clock starts."""
    generator = torch.Generator().manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    shape = (options.steps, options.global_batch // int(os.environ["WORLD_SIZE"]), options.seq_length + 1)
    return list(torch.randint(0, 256, shape, generator=generator).to(device()))


def device() -> torch.device:
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=batch.is_cuda):
        logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, options: Options) -> Step:
    def step(batch: Tensor) -> None:
        loss_of(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(options: Options) -> Step:
    model = build_model(options, 256).to(device())
    wrapped = nn.parallel.DistributedDataParallel(model)
    return plain_step(wrapped, make_optimizer(model, options), options)


def fsdp(options: Options) -> Step:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32) if torch.cuda.is_available() else MixedPrecisionPolicy()
    )
    model = build_model(options, 256).to(device())
    for block in blocks_of(model):
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return plain_step(model, make_optimizer(model, options), options)


def zero(options: Options) -> Step:
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    model = build_model(options, 256).to(device())
    config = {
        "train_batch_size": options.global_batch,
        "gradient_clipping": options.clip,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": torch.cuda.is_available()},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=make_optimizer(model, options), config=config)

    def step(batch: Tensor) -> None:
        engine.backward(loss_of(engine, batch))
        engine.step()

    return step


class WithLoss(nn.Module):
    """A model as the Trainer wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"loss": loss_of(self.model, rows)}


def trainer(options: Options) -> Step:
    """Its loop is its own: it runs in a thread, which makes one step and waits for the next turn."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    may_step, has_stepped = threading.Semaphore(0), threading.Semaphore(0)

    class Turn(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 0:
                may_step.acquire()

        def on_step_end(self, args, state, control, **_):
            synchronize()
            has_stepped.release()
            may_step.acquire()

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
    data = [{"rows": row} for row in rows]
    theirs = Trainer(WithLoss(build_model(options, 256)), arguments, train_dataset=data, callbacks=[Turn()])
    running = ThreadPoolExecutor(1).submit(theirs.train)
    running.add_done_callback(lambda _: has_stepped.release())

    def step(_: Tensor) -> None:
        may_step.release()
        has_stepped.acquire()
        if running.done():
            running.result()  # its error

    return step


def accelerate(options: Options) -> Step:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    bare = build_model(options, 256)
    model, optimizer = accelerator.prepare(bare, make_optimizer(bare, options))

    def step(batch: Tensor) -> None:
        accelerator.backward(loss_of(model, batch))
        accelerator.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


STEPS = {"ddp": ddp, "fsdp": fsdp, "zero": zero, "trainer": trainer, "accelerate": accelerate}
