"""Our recipes against the shortest correct loops, side by side: JSON lines with ratios of tokens/s.

    python bench/train.py [--rounds 3] [--processes 2] [RECIPE-OPTION…]

Machines are noisy: the two take turns step by step in the same processes (`turns.py`), a run's ratio is the median over
steps, and what is told is the median over rounds.
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
    "150",
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
        for name, goal in others:
            tell(name, ours, goal, [take_turns(ours, name, processes, options) for _ in range(rounds)])


def tell(name: str, ours: str, goal: float, found: list[dict[str, float]]) -> None:
    ratios = [each["ratio"] for each in found]
    line = {
        "recipe": ours,
        "against": name,
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "goal": goal,
        "tokens_per_second": round(statistics.median(each["tokens_per_second"] for each in found), 1),
    }
    print(json.dumps(line), flush=True)


def take_turns(recipe: str, name: str, processes: int, options: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        output = run([str(ROOT / "bench" / "turns.py"), recipe, name, *options], processes, TRAIN_RUN_DIR=folder)
    return next(json.loads(line) for line in output.splitlines() if '"contender"' in line)


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
    rounds, processes, rest = 3, 2, []
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
