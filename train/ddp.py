"""Data parallel: every process holds the whole model and all-reduces gradients.

python -m entrypoint train ddp --steps 300                  # two processes on a laptop's CPU
torchrun --nproc-per-node 8 train/ddp.py --model-size 350m  # the same without us
python train/ddp.py --steps 20                              # one process, no launcher
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import checkpoint
import data
import process_group
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checkpoint import Found
from metrics import Metrics
from model import SIZES, Decoder
from options import Options, Problem, accumulation, parse, settle_batch
from order import samples_of_step
from process_group import Process
from schedule import Cadence, learning_rate
from stop import EXIT_CODE as STOPPED
from stop import StopRequest
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

VALIDATION_SAMPLES = 128


def main() -> int:
    options = parse(sys.argv[1:])
    process = process_group.start()
    try:
        return train(options, process)
    finally:
        process_group.stop()


def train(options: Options, process: Process) -> int:
    run_dir = Path(os.environ.get("TRAIN_RUN_DIR", "runs/ddp")).absolute()
    checkpoints = Path(os.environ.get("TRAIN_CHECKPOINT_DIR", run_dir / "checkpoints"))
    found = checkpoint.newest(checkpoints)  # what an earlier start of this run left
    options = settle_batch(options, process.world_size, found.about["global_batch"] if found else None)
    passes = accumulation(options, process.world_size)
    corpus = open_data(options, run_dir / "data", process)
    metrics = Metrics(run_dir, options.steps, options.seq_length, options.global_batch, speak=process.is_first)
    identity = {
        "model_size": options.model_size,
        "seq_length": options.seq_length,
        "global_batch": options.global_batch,
        "seed": options.seed,
        "data": corpus.fingerprint,
    }

    # The model, the same on every rank, and the line that differs between the recipes.
    torch.manual_seed(options.seed)
    model = Decoder(SIZES[options.model_size], data.VOCABULARY).to(process.device)
    ddp = DistributedDataParallel(model, device_ids=[process.local_rank] if process.device.type == "cuda" else None)
    assert_in_force(ddp, process)
    optimizer = make_optimizer(model, options)
    bfloat16 = wants_bfloat16(options, process.device)

    step = resume(found, ddp, optimizer, identity, metrics) if found else 0
    if process.is_first:
        count = sum(parameter.numel() for parameter in model.parameters())
        metrics.say(f"model {options.model_size}, {count:,} parameters, {'bf16' if bfloat16 else 'fp32'}")
        metrics.say(f"data  {len(corpus.train):,} bytes to train on from {corpus.files:,} files")

    stop, save = StopRequest.from_environment(), Cadence(options.save_every)
    samples = data.windows(corpus.train, options.seq_length)
    while step < options.steps:
        lr = learning_rate(options, step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        mine = samples_of_step(options.seed, step, options.global_batch, samples)[process.rank :: process.world_size]
        batch = data.batch(corpus.train, options.seq_length, mine).to(process.device)
        loss = train_step(ddp, optimizer, batch, passes, options, bfloat16)
        step += 1
        metrics.step_done(step)

        # One small all-reduce a step: the loss of the global batch, and what any rank wants all ranks to do.
        wishes = torch.stack([loss, loss.new_tensor(stop.seen()), loss.new_tensor(process.is_first and save.due(step))])
        dist.all_reduce(wishes)
        mean_loss, stopping, saving = wishes[0].item(), wishes[1].item() > 0, wishes[2].item() > 0

        last = step == options.steps
        validation_loss = None
        if last or step % options.eval_every == 0:
            with metrics.apart():
                validation_loss = validate(model, corpus, options, process, bfloat16)
        if last or stopping or validation_loss is not None or step % options.log_every == 0:
            metrics.log(step, mean_loss, lr, validation_loss)
        if last or stopping or saving:
            with metrics.apart():
                path = checkpoint.save(checkpoints, step, ddp, optimizer, identity)
                checkpoint.prune(checkpoints, options.keep)
                save.done()
            metrics.say(f"saved {path}")
        if stopping and not last:
            metrics.say(f"stopped on request after step {step}; start it again to go on")
            return STOPPED

    report(model, corpus, options, process, bfloat16, metrics)
    return 0


def train_step(
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    passes: int,
    options: Options,
    bfloat16: bool,
) -> Tensor:
    """One optimizer update on this rank's rows (samples, length + 1); this rank's share of the global mean loss."""
    # Tokens of the *global* batch: a mean over means would weigh short passes more (transformers#34191).
    tokens = options.global_batch * options.seq_length
    total = torch.zeros((), device=batch.device)
    micro_batches = batch.chunk(passes)
    for number, micro_batch in enumerate(micro_batches, start=1):
        with ddp.no_sync() if number < len(micro_batches) else nullcontext():
            loss = summed_loss(ddp, micro_batch, bfloat16) / tokens
            # DDP averages gradients over ranks; the loss is already a share of the global mean.
            (loss * dist.get_world_size()).backward()
        total += loss.detach()
    if options.clip:
        nn.utils.clip_grad_norm_(ddp.parameters(), options.clip)
    optimizer.step()
    optimizer.zero_grad()
    return total


def summed_loss(model: nn.Module, batch: Tensor, bfloat16: bool) -> Tensor:
    """Cross-entropy in nats, summed over the tokens of rows (samples, length + 1)."""
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=bfloat16):
        logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")


@torch.no_grad()
def validate(model: nn.Module, corpus: data.Corpus, options: Options, process: Process, bfloat16: bool) -> float:
    """Mean loss in nats per token on the first windows of the validation text, shared out over the ranks."""
    count = validation_windows(corpus, options)
    rows = data.batch(corpus.validation, options.seq_length, range(count))[process.rank :: process.world_size]
    total = torch.zeros((), device=process.device)
    for micro_batch in rows.split(16):
        total += summed_loss(model, micro_batch.to(process.device), bfloat16)
    dist.all_reduce(total)
    return total.item() / (count * options.seq_length)


def validation_windows(corpus: data.Corpus, options: Options) -> int:
    return min(VALIDATION_SAMPLES, data.windows(corpus.validation, options.seq_length))


def report(
    model: Decoder, corpus: data.Corpus, options: Options, process: Process, bfloat16: bool, metrics: Metrics
) -> None:
    """The end: validation loss beside a bigram model's, and a text that the model wrote."""
    loss = validate(model, corpus, options, process, bfloat16)
    if process.is_first:
        rows = data.batch(corpus.validation, options.seq_length, range(validation_windows(corpus, options)))
        bigram = data.bigram_loss(corpus.train, rows)
        metrics.finish(options.steps, loss, bigram)
        prompt = torch.tensor([list(b"def ")], device=process.device)
        text = model.generate(prompt, 240, options.seq_length, temperature=0.7, seed=options.seed)
        metrics.say("a sample:\n" + data.printable(bytes(text[0].tolist())))


def open_data(options: Options, folder: Path, process: Process) -> data.Corpus:
    """Rank 0 writes the corpus to the volume, everybody maps it; a Problem of rank 0 is everybody's."""
    problem: Problem | None = None
    if process.is_first:
        try:
            data.prepare(options.data, folder)
        except Problem as error:
            problem = error
    if problem := process_group.from_first(problem):
        raise problem
    corpus = data.open_corpus(folder)
    if not data.windows(corpus.validation, options.seq_length):
        raise Problem(
            f"--seq-length {options.seq_length}: the validation text has only {len(corpus.validation)} bytes",
            fix="a shorter --seq-length, or more --data",
        )
    return corpus


def resume(found: Found, ddp: nn.Module, optimizer: torch.optim.Optimizer, identity: dict, metrics: Metrics) -> int:
    """Read what was found; the step to go on from."""
    for damaged in found.damaged:
        metrics.say(f"passed over a damaged checkpoint: {damaged}")
    for name, value in identity.items():
        if found.about.get(name) != value:
            raise Problem(
                f"{name} is {value} now, but {found.path} was written with {found.about.get(name)}",
                fix="use the same options and data, or give this run another name (TRAIN_RUN)",
            )
    checkpoint.load(found, ddp, optimizer)
    metrics.say(f"going on from {found.path}")
    return found.step


def make_optimizer(model: nn.Module, options: Options) -> torch.optim.Optimizer:
    """AdamW that decays matrices and leaves norms alone."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)


def wants_bfloat16(options: Options, device: torch.device) -> bool:
    if options.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return options.precision == "bf16"


def assert_in_force(ddp: nn.Module, process: Process) -> None:
    """Several processes that do not know of each other would each train the whole run."""
    if not isinstance(ddp, DistributedDataParallel) or dist.get_world_size() != process.world_size:
        raise RuntimeError(f"asked for DDP over {process.world_size}, got {type(ddp)} over {dist.get_world_size()}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {problem}", file=sys.stderr, flush=True)
        sys.exit(problem.exit_code)
