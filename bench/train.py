"""Our recipes against the shortest correct loops, side by side: JSON lines with ratios of tokens/s.

    python bench/train.py [--rounds 5] [--processes 2] [RECIPE-OPTION…]

Machines are noisy, so contenders take turns and a ratio is the median over rounds of neighbours in time.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# ours → what it is measured against, and the ratio that we want
PAIRS = {
    "ddp": (("ddp", 0.99), ("accelerate", 0.99), ("trainer", 1.05)),
    "fsdp": (("fsdp", 0.99),),
    "zero": (("zero", 0.99),),
}
DEFAULTS = [
    "--steps",
    "45",
    "--seq-length",
    "256",
    "--global-batch",
    "8",
    "--log-every",
    "10",
    "--eval-every",
    "1000000",
]


def main() -> None:
    rounds, processes, options = read_arguments(sys.argv[1:])
    for ours, others in PAIRS.items():
        if not (ROOT / "train" / f"{ours}.py").exists():
            continue
        speeds: dict[str, list[float]] = {ours: [], **{f"bare {name}": [] for name, _ in others}}
        for _ in range(rounds):
            speeds[ours].append(speed_of_recipe(ours, processes, options))
            for name, _ in others:
                speeds[f"bare {name}"].append(speed_of_bare(name, processes, options))
        for name, goal in others:
            ratios = [a / b for a, b in zip(speeds[ours], speeds[f"bare {name}"], strict=True)]
            tell(ours, name, goal, ratios, speeds)


def tell(ours: str, name: str, goal: float, ratios: list[float], speeds: dict[str, list[float]]) -> None:
    line = {
        "recipe": ours,
        "against": name,
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "goal": goal,
        "tokens_per_second": round(statistics.median(speeds[ours]), 1),
    }
    print(json.dumps(line), flush=True)


def speed_of_recipe(recipe: str, processes: int, options: list[str]) -> float:
    """Tokens/s that the recipe itself logged, without its first ten steps."""
    with tempfile.TemporaryDirectory() as folder:
        run([str(ROOT / "train" / f"{recipe}.py"), *options], processes, TRAIN_RUN_DIR=folder)
        records = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()][1:]
    seconds = [1 / record["tokens_per_second"] for record in records]
    return len(seconds) / sum(seconds)


def speed_of_bare(name: str, processes: int, options: list[str]) -> float:
    output = run([str(ROOT / "bench" / "bare.py"), name, *options], processes)
    return next(json.loads(line)["tokens_per_second"] for line in output.splitlines() if '"contender"' in line)


def run(command: list[str], processes: int, **variables: str) -> str:
    threads = str(max(1, len(os.sched_getaffinity(0)) // processes))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, **variables}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*launcher, *command], env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def read_arguments(arguments: list[str]) -> tuple[int, int, list[str]]:
    """--rounds and --processes are ours, the rest goes to all contenders."""
    rounds, processes, rest = 5, 2, []
    words = iter(arguments)
    for word in words:
        if word == "--rounds":
            rounds = int(next(words))
        elif word == "--processes":
            processes = int(next(words))
        else:
            rest.append(word)
    return rounds, processes, [*DEFAULTS, *rest]


if __name__ == "__main__":
    main()
