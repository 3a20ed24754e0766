"""What a cluster launch costs and gains: two nodes in network namespaces, one JSON line each.

    sudo .venv/bin/python bench/cluster.py [interface] [overhead] [missing] [--rounds 3]

interface: tokens/s of `train ddp` with 22 MB of gradients, where eth0 is shaped to 20 Mbit/s and ens1 is not, against
           plain torchrun with its defaults, and with the best interface set by hand.
overhead:  seconds from the command to the first step of `train ddp` on one node, against bare torchrun.
missing:   seconds until a node that does not come is named.

Machines are noisy, so contenders take turns and a figure is the median over rounds.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from entrypoint.local import Nodes
from entrypoint.namespaces import Namespaces

ROOT = Path(__file__).resolve().parent.parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
# Few tokens: the time of a step is the network's, as on a GPU.
SHAPE = ["--seq-length", "32", "--global-batch", "2", "--log-every", "1", "--eval-every", "1000000"]
PLAIN_SECONDS = 300.0  # a plain run that has made no step by then hangs for our purposes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["interface", "overhead", "missing"])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    for what in chosen.what:
        for line in {"interface": interface, "overhead": overhead, "missing": missing}[what](chosen.rounds):
            print(json.dumps({"bench": what, **line}), flush=True)


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---- interface ----


def interface(rounds: int) -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tell("making a model of 22 MB")
        options = [*make_model(work), *SHAPE]
        speeds: dict[str, list[float]] = {"roundhouse": [], "torchrun by hand": []}
        for number in range(rounds):
            speeds["roundhouse"].append(ours(work / f"ours-{number}", options))
            speeds["torchrun by hand"].append(plain(work / f"hand-{number}", options, GLOO_SOCKET_IFNAME="ens1"))
            tell(f"round {number + 1} of {rounds}: {speeds}")
        defaults = plain(work / "defaults", options, steps=4)
        tell(f"torchrun with its defaults: {defaults} tokens/s")
    ratios = [a / b for a, b in zip(speeds["roundhouse"], speeds["torchrun by hand"], strict=True)]
    speed = statistics.median(speeds["roundhouse"])
    yield {
        "against": "torchrun, its defaults",
        "tokens_per_second": round(speed, 1),
        "theirs": round(defaults, 2),
        "ratio": round(speed / defaults, 1) if defaults else f"it made no step in {PLAIN_SECONDS:.0f} s",
        "goal": 20,
    }
    yield {
        "against": "torchrun, GLOO_SOCKET_IFNAME=ens1 by hand",
        "tokens_per_second": round(speed, 1),
        "theirs": round(statistics.median(speeds["torchrun by hand"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "goal": 0.95,
    }


def make_model(folder: Path) -> list[str]:
    """Options for a random Llama of 5.5 million parameters, and for text to train it on."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_only = Tokenizer(models.BPE(vocab={**letters, "<|eos|>": len(letters)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 7, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(letters) + 1, eos_token_id=len(letters), bos_token_id=None, **shape)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<|eos|>").save_pretrained(folder / "model")
    (folder / "text.txt").write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(20000)))
    return ["--model", str(folder / "model"), "--data", str(folder / "text.txt")]


def ours(volume: Path, options: list[str], steps: int = 40) -> float:
    """Through `train`, which is told the slow interface's address, as a cloud's variables often have it."""
    words = ["ddp", *options, "--steps", str(steps)]
    with Namespaces(2) as networks, Nodes(2, 1, words, variables(volume), namespaces=networks) as nodes:
        nodes.start()
        wait_for(lambda: all(node.code is not None for node in nodes.nodes), 600)
        if codes := [node.code for node in nodes.nodes if node.code]:
            sys.exit(f"train ended with {codes}")
    return speed_in(volume / "runs" / "ddp")


def plain(folder: Path, options: list[str], steps: int = 40, **settings: str) -> float:
    """Through torchrun as its manual says, on the same nodes; by hand, the primary's address is the fast one."""
    folder.mkdir()
    link = 1 if settings else 0
    with Namespaces(2) as networks, contextlib.ExitStack() as stack:
        started = []
        for node in range(2):
            launcher = [*TORCHRUN, "--nnodes=2", f"--node-rank={node}", f"--master-addr={networks.address(0, link)}"]
            script = [str(ROOT / "train" / "ddp.py"), *options, "--steps", str(steps)]
            command = [*networks.command(node), *launcher, "--nproc-per-node=1", *script]
            given = variables(folder, TRAIN_RUN_DIR=str(folder), OMP_NUM_THREADS="1", **settings)
            started.append(stack.enter_context(running(command, given)))
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: all(process.poll() is not None for process in started), PLAIN_SECONDS)
    return speed_in(folder)


def speed_in(run: Path) -> float:
    """Tokens/s that the recipe logged, the median without its first steps; 0: none."""
    with contextlib.suppress(FileNotFoundError):
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        speeds = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
        return statistics.median(speeds[min(5, len(speeds) // 2) :]) if speeds else 0.0
    return 0.0


# ---- overhead ----


def overhead(rounds: int) -> Iterator[dict[str, object]]:
    options = ["--steps", "1", "--seq-length", "32", "--log-every", "1", "--eval-every", "1000000"]
    script = str(ROOT / "train" / "ddp.py")
    ways = {
        "train": [sys.executable, "-m", "entrypoint", "train", "ddp", *options],
        "torchrun": [*TORCHRUN, "--standalone", "--nproc-per-node=2", script, *options],
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, command in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds[way].append(to_first_step(command, Path(folder)))
        tell(f"round {number + 1} of {rounds}: {seconds}")
    more = [a - b for a, b in zip(seconds["train"], seconds["torchrun"], strict=True)]
    yield {
        "seconds_to_first_step": round(statistics.median(seconds["train"]), 2),
        "torchrun": round(statistics.median(seconds["torchrun"]), 2),
        "more": round(statistics.median(more), 2),
        "spread": [round(min(more), 2), round(max(more), 2)],
        "least_against_least": round(min(seconds["train"]) - min(seconds["torchrun"]), 2),  # what noise leaves over
        "goal": 1.0,
    }


def to_first_step(command: list[str], folder: Path) -> float:
    """Seconds from the command to the step file; both write one, of which only ours makes use."""
    step = folder / "runs" / "ddp" / "step"
    step.parent.mkdir(parents=True)
    given = variables(folder, TRAIN_RUN_DIR=str(step.parent), TRAIN_STEP_FILE=str(step), OMP_NUM_THREADS="1")
    began = time.monotonic()
    with running(command, given) as process:
        wait_for(lambda: step.exists() or process.poll() is not None, 300, every=0.01)
        return time.monotonic() - began


# ---- missing ----


def missing(rounds: int) -> Iterator[dict[str, object]]:
    """Of three nodes the last does not come."""
    seconds = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            seconds.append(to_the_name_of_a_missing_node(Path(folder)))
        tell(f"round {number + 1} of {rounds}: {seconds}")
    yield {"named_after_seconds": round(statistics.median(seconds), 1), "goal": 10, "torchrun": "names no node"}


def to_the_name_of_a_missing_node(volume: Path) -> float:
    named: list[float] = []

    def listen(number: int, line: str) -> None:
        if number == 0 and "missing" in line and "node 2" in line:
            named.append(time.monotonic())

    words = ["ddp", "--steps", "1"]
    with Namespaces(3) as networks, Nodes(3, 1, words, variables(volume), namespaces=networks, say=listen) as nodes:
        began = time.monotonic()
        for node in nodes.nodes[:2]:
            node.start()
        wait_for(lambda: bool(named), 120)
    return named[0] - began


# ---- what all use ----


def variables(volume: Path, **settings: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HF_HOME") if name in os.environ}
    return {**kept, "HOME": str(volume), "TRAIN_VOLUME": str(volume), "HF_HUB_OFFLINE": "1", **settings}


@contextlib.contextmanager
def running(command: list[str], given: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(["setpriv", "--pdeathsig", "SIGKILL", "--", *command], env=given, cwd=ROOT, **quiet)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], seconds: float, every: float = 0.1) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(every)


if __name__ == "__main__":
    main()
