"""Keeps one training process: starts it, takes its output into a log of bounded size, and tells how it ended.

    python -P worker.py FOLDER COMMAND [ARGUMENT…]

Writes `n<node>r<local rank>` files into FOLDER: `.log` (with `.log.head` and `.log.prev`, see BoundedLog),
`.started.json`, `.ended.json`, and `.stacks` after a hang. Being the parent, it outlives whoever reads the log, sees
the very moment in which the process ended, and dies with its launcher. A file of its own, run by path, so that nothing
of ours is on the script's sys.path.

Signals: SIGTERM is a request; it is handed to the script once, which has all the time that the agent gives it. If
another process of this node has failed before, the script is killed 2 s later. SIGUSR1: dump all stacks and end.

Before a script is ended for a hang or another's fault, torch's flight recorder is asked for its trace through the pipe
that NCCL's process group makes where TORCH_NCCL_DEBUG_INFO_PIPE_FILE says (and our recipes beside it, for gloo).
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FAULT_SECONDS = 2.0  # from another process's failure to SIGKILL
TRACE_SECONDS = 2.5  # for the flight recorder's trace: NCCL's monitor looks at its pipe once a second
DUMP_SECONDS = 4.5  # from SIGABRT, which makes Python write its stacks, to SIGKILL
LOG_BYTES = 64 << 20
STOPPED = 143
_PR_SET_PDEATHSIG = 1
_PIPE_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None)


def main() -> None:
    folder, *command = sys.argv[1:]
    die_with_parent()
    name = f"n{os.environ.get('GROUP_RANK', '0')}r{os.environ['LOCAL_RANK']}"
    sys.exit(Keeper(Path(folder), name).keep(command))


def die_with_parent() -> None:
    """A launcher killed with SIGKILL cannot end its children; the kernel can (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class BoundedLog:
    """Output of any length in at most three times LOG_BYTES: the beginning, the newest, and what came before that."""

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        self._path, self._limit = path, limit
        self._file = self._open()
        self._size = 0

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full volume must not end the training by its own output
            if self._size >= self._limit:
                self._turn()
            self._size += os.write(self._file, data)

    def _turn(self) -> None:
        head = Path(f"{self._path}.head")
        os.replace(self._path, Path(f"{self._path}.prev") if head.exists() else head)
        os.close(self._file)
        self._file, self._size = self._open(), 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


class Keeper:
    """The script's parent. `_asked`: told to stop; `_deadline`: when the script is killed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._log = BoundedLog(folder / f"{name}.log")
        self._stacks: int | None = None
        self._script: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []
        self._asked = self._after_fault = self._hung = False
        self._abort_at: float | None = None
        self._deadline: float | None = None
        self._traceback_at: float | None = None
        self._environment = dict(os.environ)

    def keep(self, command: list[str]) -> int:
        """Run the command to its end; its exit code, but 0 for a stop that was agreed on.

        torch's agent takes any other code for a fault and would end the processes that still save.
        """
        wake, output, into = self._pipes()
        with _local_folder() as pipes:
            self._environment = recorder_environment(os.environ, self._folder, self._name, pipes)
            return self._run(command, wake, output, into)

    def _run(self, command: list[str], wake: int, output: int, into: int) -> int:
        try:
            self._script = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=into,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self._log.write(f"{command[0]}: {error.strerror}\n".encode())
            return self._told(126 if isinstance(error, PermissionError) else 127, by_itself=True)
        os.close(into)
        self._write("started", {"pid": os.getpid(), "script": self._script.pid, "rank": int(os.environ["RANK"])})
        code, by_itself = self._watch(self._script, wake, output)
        return self._told(code, by_itself=by_itself)

    def _pipes(self) -> tuple[int, int, int]:
        wake, waker = os.pipe()
        for end in (wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self._signals.append(number))
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        output, into = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(output, False)
        return wake, output, into

    def _watch(self, script: "subprocess.Popen[bytes]", wake: int, output: int) -> tuple[int, bool]:
        readable = select.poll()
        readable.register(wake, select.POLLIN)
        readable.register(output, select.POLLIN)
        while True:
            for descriptor, _ in readable.poll(100 if self._hung else 500):
                if descriptor == wake:
                    os.read(wake, 4096)
                elif not self._take(output):
                    readable.unregister(output)
            while self._signals:
                self._heed(self._signals.pop(0), script)
            if self._abort_at is not None and time.monotonic() >= self._abort_at:
                self._abort(script)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                _kill_group(script.pid)
            # WNOWAIT: the pid stays taken, so the group that is killed is the script's own
            ended = os.waitid(os.P_PID, script.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                _kill_group(script.pid)  # what it left: loader workers, background jobs
                script.wait()
                while self._take(output):
                    pass
                by_itself = ended.si_code == os.CLD_EXITED
                return (ended.si_status if by_itself else 128 + ended.si_status), by_itself

    def _take(self, output: int) -> bool:
        """Move what the script wrote into the log; False: there is nothing (more)."""
        try:
            data = os.read(output, _PIPE_BYTES)
        except BlockingIOError:
            return False
        if b"Traceback (most recent call last)" in data:
            self._traceback_at = time.time()
        self._log.write(data)
        if self._stacks is not None and data:
            os.write(self._stacks, data)
        return bool(data)

    def _heed(self, number: int, script: "subprocess.Popen[bytes]") -> None:
        if number == signal.SIGTERM:
            if self._a_peer_failed():  # not asked to save: what the others have is no common state any more
                self._ask_for_trace()
                self._after_fault = True
                self._deadline = self._deadline or time.monotonic() + FAULT_SECONDS
            elif not self._asked:
                self._asked = True
                script.send_signal(signal.SIGTERM)  # not to its group: loader workers must live to the last batch
        elif number == signal.SIGUSR1 and not self._hung:
            self._hung = True
            self._abort_at = time.monotonic() + (TRACE_SECONDS if self._ask_for_trace() else 0)

    def _ask_for_trace(self) -> bool:
        """Whether anything in the script listens: NCCL's process group, or a recipe of ours."""
        asked = False
        stem, rank = Path(self._environment.get(_PIPE_STEMS[-1], "/none/")), os.environ["RANK"]
        for pipe in stem.parent.glob(f"{stem.name}{rank}.*"):
            with contextlib.suppress(OSError):
                end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(end, b"dump\n")
                os.close(end)
                asked = True
        return asked

    def _abort(self, script: "subprocess.Popen[bytes]") -> None:
        self._abort_at = None
        self._deadline = time.monotonic() + DUMP_SECONDS
        self._stacks = os.open(self._folder / f"{self._name}.stacks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._stacks, _kernel_states(script.pid).encode())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGABRT)  # PYTHONFAULTHANDLER: every thread's stack goes to stderr

    def _a_peer_failed(self) -> bool:
        node = self._name.partition("r")[0]
        for path in self._folder.glob(f"{node}r*.ended.json"):
            if json.loads(path.read_text())["exit_code"] not in (0, STOPPED):
                return True
        return False

    def _told(self, code: int, *, by_itself: bool) -> int:
        now = time.time()
        recent = self._traceback_at is not None and now - self._traceback_at < 5
        ended = {
            "rank": int(os.environ["RANK"]),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "exit_code": code,
            "by_itself": by_itself,
            # a traceback comes before the teardown that makes the others fail too
            "failed_at": self._traceback_at if recent else now,
            "after_fault": self._after_fault,
            "hung": self._hung,
        }
        self._write("ended", ended)
        return 0 if code == STOPPED and (by_itself or self._asked) else code

    def _write(self, kind: str, document: dict[str, Any]) -> None:
        path = self._folder / f"{self._name}.{kind}.json"
        partial = Path(f"{path}.partial")
        try:
            partial.write_text(json.dumps(document))
            os.replace(partial, path)
        except OSError as error:  # the exit code tells the most of it
            self._log.write(f"{path}: {error.strerror}\n".encode())


_PIPE_STEMS = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")


def recorder_environment(variables: Mapping[str, str], folder: Path, name: str, pipes: str | None) -> dict[str, str]:
    """The script's environment: where torch leaves traces and listens for a wish for one, and NCCL's first words.

    torch appends the rank to both. What is set already stays. NCCL_DEBUG=INFO of the first process of each node, of the
    start alone, goes to a file: there NCCL says which interface it uses.
    """
    node = name.partition("r")[0]
    ours = {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/{node}.trace-"}
    ours |= dict.fromkeys(_PIPE_STEMS, f"{pipes}/trace-") if pipes else {}
    if variables.get("LOCAL_RANK") == "0" and not variables.get("NCCL_DEBUG"):
        ours |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,NET",
            "NCCL_DEBUG_FILE": f"{folder}/{node}.nccl",
        }
    return ours | {name: value for name, value in variables.items() if value or name not in ours}


@contextlib.contextmanager
def _local_folder() -> Iterator[str | None]:
    """For pipes, which a volume may not be able to hold: torch ends a training that cannot make its own.

    None: nothing here can be written to, and hangs are explained by stacks.
    """
    try:
        folder = tempfile.mkdtemp(prefix=f"roundhouse-{os.getpid()}-")
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _kernel_states(pid: int) -> str:
    """Where the kernel has each thread: all that can be told of one that is stuck in a device or a mount."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            state = re.search(r"^State:\s*(.*)$", (task / "status").read_text(), re.MULTILINE)
            waits = (task / "wchan").read_text()
            lines.append(f"thread {task.name}: {state[1] if state else '?'}, in the kernel at {waits}\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
