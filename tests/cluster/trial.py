"""A run on nodes in namespaces, for the tests and bench/recovery.py: what was done to it, and how it went on."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for bench/recovery.py
from entrypoint.local import Nodes
from entrypoint.namespaces import LINKS, Namespaces

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300  # seconds: a busy machine must not fail a test
STEPS, HOLD = 40, 15  # of the script where nothing else is said: two seconds, and where it waits for `release`
SCRIPT = Path(__file__).with_name("steps.py")
PATIENT = (sys.executable, "-m", "entrypoint", "train")
# A hang is judged after 2 minutes; here after 10 s, so that nobody need wait for it.
IMPATIENT = (
    sys.executable,
    "-c",
    "from entrypoint import launch; launch.HANG_SECONDS = 10.0; from entrypoint.__main__ import main; main()",
    "train",
)


def program_for(fault):
    return IMPATIENT if fault == "stopped" else PATIENT


class Trial:
    """Nodes in namespaces that train `words` on a volume that they share; use with `with`."""

    def __init__(self, volume, nodes, *words, links=LINKS, program=PATIENT, primary_link=1, variables=None):
        self.run = Path(volume) / "runs" / Path(words[0] if words else SCRIPT).stem
        self.lines = []  # (seconds since the epoch, node, text)
        self._stack = contextlib.ExitStack()
        self._arguments = (nodes, 1, [str(word) for word in words] or [str(SCRIPT), str(STEPS)])
        self._links, self._program, self._primary_link = links, program, primary_link
        self._variables = variables_of(volume) | (variables or {})

    def __enter__(self):
        with self._stack as stack:
            self.networks = stack.enter_context(Namespaces(self._arguments[0], self._links))
            self.nodes = stack.enter_context(
                Nodes(
                    *self._arguments,
                    self._variables,
                    namespaces=self.networks,
                    say=lambda node, line: self.lines.append((time.time(), node, line)),
                    program=self._program,
                    primary_link=self._primary_link,
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def start(self, *numbers):
        for number in numbers or range(len(self.nodes.nodes)):
            self.nodes[number].start()
        return self

    def finish(self, seconds=PATIENCE):
        """The exit codes of all nodes."""
        until = time.monotonic() + seconds
        try:
            return [node.wait(max(0.1, until - time.monotonic())) for node in self.nodes.nodes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"nodes did not end in {seconds} s:\n{self.text()}") from None

    def text(self, node=None):
        return "\n".join(f"{at % 1000:7.2f} node {n} | {line}" for at, n, line in self.lines if node in (None, n))

    def records(self):
        return read_lines(self.run / "metrics.jsonl")

    def step(self):
        return max((record["step"] for record in self.records()), default=0)

    def wait_for_hold(self):
        saved = self.run / "checkpoints" / f"step-{HOLD}" / "manifest.json"
        self.wait_for(saved.exists, f"step {HOLD} was not reached")

    def release(self):
        (self.run / "go").touch()

    def wait_for_step(self, step, seconds=PATIENCE):
        self.wait_for(lambda: self.step() >= step, f"step {step} was not reached", seconds)

    def wait_for_line(self, part, seconds=PATIENCE, *, nodes=None):
        """Until each of these nodes has written a line with `part`; when the last of them did."""
        nodes = range(len(self.nodes.nodes)) if nodes is None else nodes

        def when():
            found = [next((at for at, n, line in self.lines if n == node and part in line), None) for node in nodes]
            return None if None in found else max(found)

        self.wait_for(when, f"{part!r} was not said", seconds)
        return when()

    def wait_for(self, condition, what, seconds=PATIENCE):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"{what} in {seconds} s:\n{self.text()}"
            time.sleep(0.05)

    def wait_for_recovery(self, fault_at, seconds=PATIENCE):
        """Seconds from a fault to the first step that a later attempt made."""
        before = max((record["attempt"] for record in self.records() if record["time"] <= fault_at), default=-1)

        def first():
            return next((record["time"] for record in self.records() if record["attempt"] > before), None)

        self.wait_for(first, "no step after the fault", seconds)
        return first() - fault_at

    def worker(self, node):
        """The training process of a node, which its keeper has started."""
        for process in reversed(self.nodes[node].processes()):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "RANK" in process.environ() and not any("worker.py" in word for word in words):
                    return process
        raise AssertionError(f"node {node} has no training process")


def variables_of(volume):
    kept = {name: os.environ[name] for name in ("PATH",)}
    return {**kept, "HOME": str(volume), "TRAIN_VOLUME": str(volume)}


def undisturbed(steps):
    """step → loss of the script when nothing happens."""
    done = subprocess.run([sys.executable, SCRIPT, str(steps)], capture_output=True, text=True, check=True)
    return {record["step"]: record["loss"] for record in map(json.loads, done.stdout.splitlines())}


def read_lines(path):
    """Whole JSON lines."""
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return []
