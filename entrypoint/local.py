"""Several nodes of a cluster on one machine: each a real `train`, with an environment as a cluster gives it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

import psutil

from entrypoint.errors import STOPPED
from entrypoint.namespaces import DIES_WITH_ITS_MAKER, Namespaces
from entrypoint.stale import stale_variables

_ROOT = Path(__file__).resolve().parent.parent
_PLACE = ("TRAIN_NODES", "TRAIN_NODE_RANK", "TRAIN_NPROC", "TRAIN_PRIMARY", "TRAIN_INTERFACE")
_POLL_SECONDS = 0.1
_READ_SECONDS = 5.0  # for the last lines of a node that has ended
_OTHERS_SECONDS = 60.0  # for the other nodes to end by themselves when one has; they tell why

Say = Callable[[int, str], None]  # a node's number, and a line that it wrote


class Node:
    """One node: its `train` command, which may be started again after its end as a platform does."""

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str], say: Say) -> None:
        self.number, self.command, self.environment = number, list(command), dict(environment)
        self._say = say
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*DIES_WITH_ITS_MAKER, *self.command],
            cwd=_ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._say(self.number, line.rstrip("\n"))

    @property
    def code(self) -> int | None:
        """Its exit code as a shell tells it; None: it runs."""
        code = self._process.poll() if self._process else None
        return 128 - code if code is not None and code < 0 else code

    @property
    def was_killed(self) -> bool:
        """Its `train` itself, from outside, which a code of 137 alone does not say."""
        return self._process is not None and self._process.returncode == -signal.SIGKILL

    def wait(self, seconds: float) -> int:
        """Its exit code, all of its output told; TimeoutExpired."""
        assert self._process is not None
        assert self._reader is not None
        self._process.wait(seconds)
        self._reader.join(_READ_SECONDS)
        code = self.code
        assert code is not None
        return code

    def processes(self) -> list[psutil.Process]:
        """All processes of the node, `train` first."""
        if self._process is None or self._process.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            everything = [first, *first.children(recursive=True)]
            return everything[1:] if first.name() == "unshare" else everything
        return []

    def send(self, number: int) -> None:
        """A signal to its `train`."""
        for process in self.processes()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of everything at once, as a machine that is switched off."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process and self._reader:
            self._process.wait()
            self._reader.join(_READ_SECONDS)


class Nodes:
    """The nodes of a cluster, from `with` to its end; `namespaces`: each has a network of its own, else loopback."""

    def __init__(
        self,
        count: int,
        processes: int,
        words: Sequence[str],
        variables: Mapping[str, str],
        *,
        namespaces: Namespaces | None = None,
        gpus: Sequence[str] = (),
        say: Say | None = None,
        program: Sequence[str] = (sys.executable, "-m", "entrypoint", "train"),
        primary_link: int = 0,
    ) -> None:
        self.namespaces, self._link = namespaces, primary_link
        self._port = 29500 if namespaces else _free_port(self.address(0))
        command = [*program, *words]
        self.nodes = [
            Node(
                number,
                [*(namespaces.command(number) if namespaces else ()), *command],
                self._environment(number, count, processes, variables) | _share(gpus, number, count, processes),
                say or (lambda number, line: None),
            )
            for number in range(count)
        ]

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for node in self.nodes:
            node.kill()

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def address(self, number: int) -> str:
        return self.namespaces.address(number, self._link) if self.namespaces else f"127.0.0.{number + 2}"

    def _environment(self, number: int, count: int, processes: int, variables: Mapping[str, str]) -> dict[str, str]:
        """What a cluster sets on this node, and nothing that another launcher set for us."""
        stale = {*stale_variables(variables), *_PLACE}
        primary = self.address(0)
        threads = max(1, len(os.sched_getaffinity(0)) // (count * processes))  # a node would take all cores for its own
        return (
            {"OMP_NUM_THREADS": str(threads)}
            | {name: value for name, value in variables.items() if name not in stale}
            | {
                "TRAIN_NODES": str(count),
                "TRAIN_NODE_RANK": str(number),
                "TRAIN_NPROC": str(processes),
                "TRAIN_PRIMARY": f"[{primary}]:{self._port}" if ":" in primary else f"{primary}:{self._port}",
                "NODE_RANK": str(number),
                "NODE_ADDR": self.address(number),
            }
            | ({} if self.namespaces else {"TRAIN_LOCAL_CLUSTER": "1"})
        )


def _share(gpus: Sequence[str], number: int, count: int, processes: int) -> dict[str, str]:
    """A node's own GPUs where there are enough for all, else none: two nodes cannot have the same."""
    if not gpus:
        return {}
    mine = gpus[number * processes : (number + 1) * processes] if len(gpus) >= count * processes else ()
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine)}


def _free_port(address: str) -> int:
    """A free port for torch whose next is free too: the roll call's."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((address, 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind((address, port + 1))
                return port


def run(nodes: Nodes, tell: Callable[[str], None]) -> int:
    """Start all nodes and follow them to their end: the code of the first that failed.

    A node that was killed is started again, as a platform would; how often that helps is up to the run itself.
    """
    watch = _Watch(nodes, tell)
    nodes.start()
    while not watch.look():
        time.sleep(_POLL_SECONDS)
    return watch.code


class _Watch:
    def __init__(self, nodes: Nodes, tell: Callable[[str], None]) -> None:
        self._nodes, self._tell = nodes, tell
        self._ended: dict[int, int] = {}  # in the order of their ends
        self._signals: list[int] = []
        self._asked = False
        self._failed_at: float | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    @property
    def code(self) -> int:
        failures = [code for code in self._ended.values() if code]
        # One that was stopped because another failed is not what failed.
        return next((code for code in failures if code != STOPPED), failures[0] if failures else 0)

    def look(self) -> bool:
        """Whether all is over."""
        while self._signals:
            self._pass_on(self._signals.pop(0))
        for node in self._nodes.nodes:
            if node.number not in self._ended and node.code is not None:
                self._see_end(node)
        if self._failed_at is not None and time.monotonic() - self._failed_at > _OTHERS_SECONDS:
            self._tell(f"the other nodes did not end by themselves in {_OTHERS_SECONDS:.0f} s; stopping them")
            self._failed_at = None
            self._pass_on(signal.SIGTERM)
        return len(self._ended) == len(self._nodes.nodes)

    def _see_end(self, node: Node) -> None:
        code = node.wait(10)
        if node.was_killed and not self._asked:
            self._tell(f"node {node.number} was killed; starting it again, as a platform would")
            node.start()
            return
        self._ended[node.number] = code
        self._tell(f"node {node.number} ended with {code}")
        if code and self._failed_at is None:
            self._failed_at = time.monotonic()

    def _pass_on(self, number: int) -> None:
        self._asked = True
        for node in self._nodes.nodes:
            node.send(number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(signal.SIGTERM if number == signal.SIGHUP else number)
