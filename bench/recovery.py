"""Seconds from a fault to the next step, for each fault and several numbers of nodes: one JSON line each.

    sudo .venv/bin/python bench/recovery.py [FAULT…] [--nodes 2 3 4] [--rounds 1]

Nodes are network namespaces, steps take 50 ms, and none is to be redone. The time has in it what the fault
takes by itself: a node that is unplugged, and a partition, last until the other nodes have noticed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "cluster"))
import trial
from faults import CLOSES_CONNECTIONS, FAULTS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", nargs="*", help=f"of {', '.join(FAULTS)}; default: each")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    if wrong := set(chosen.fault) - FAULTS.keys():
        parser.error(f"no fault of ours: {', '.join(sorted(wrong))}; there are {', '.join(FAULTS)}")
    undisturbed = trial.undisturbed(trial.STEPS)
    for fault in chosen.fault or FAULTS:
        for nodes in chosen.nodes:
            seconds = [recover(fault, nodes, undisturbed) for _ in range(chosen.rounds)]
            goal = 15 if fault in CLOSES_CONNECTIONS else 30
            line = {"bench": "recovery", "fault": fault, "nodes": nodes, "goal": goal}
            print(json.dumps(line | {"seconds": round(statistics.median(seconds), 1)}), flush=True)


def recover(fault: str, nodes: int, undisturbed: dict[int, float]) -> float:
    with tempfile.TemporaryDirectory() as volume, trial.Trial(volume, nodes, program=trial.program_for(fault)) as run:
        run.start()
        run.wait_for_hold()
        print(f"{time.strftime('%H:%M:%S')} {fault}, {nodes} nodes", file=sys.stderr, flush=True)
        at = FAULTS[fault](run)
        seconds = run.wait_for_recovery(at)
        codes = run.finish()
        losses = {record["step"]: record["loss"] for record in run.records()}
        if any(codes) or any(abs(losses.get(step, 0.0) - loss) > 1e-4 for step, loss in undisturbed.items()):
            sys.exit(f"{fault} with {nodes} nodes: it ended with {codes}, or with other losses\n{run.text()}")
        return seconds


if __name__ == "__main__":
    main()
