"""The agent as a child process in a session of its own: its first words, its signals, and how it ended."""

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from entrypoint.errors import OWN_BUG, STOPPED, Problem

_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
Body = Callable[[Callable[[str | None], None]], int]


class Refused(Problem):
    """What the agent refused, told again where it was started."""

    def __init__(self, problem: str, *, fix: str, exit_code: int) -> None:
        super().__init__(problem, fix=fix)
        self.exit_code = exit_code  # type: ignore[misc]


class Agent:
    """A child that has begun. `finished`: there was nothing to do, and why; `asked`: a signal was passed on."""

    def __init__(self, pid: int) -> None:
        self.finished: str | None = None
        self.asked = False
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)  # a pid may be another process's by the time a signal is passed on

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: the agent is in another session than we are, so no signal to our group reaches it."""
        self.asked = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def wait(self, other: Callable[[int], None] = lambda pid: None) -> int:
        """Its exit code; 128 + n where a signal ended it. `other` is called with any other child that has ended.

        Where we are process 1, the orphans of others come to us.
        """
        while True:
            pid, status = os.wait()
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
            other(pid)


def start(body: Body, log: Path | None, *, kept: bool) -> Agent:
    """Fork `body` into a session of its own; returns when it has called what it is given: it trains, or has a text.

    `log`: where its output goes from then on; None: where ours goes. `kept`: it belongs to this process, which passes
    its signals on and must `wait`; else it goes on by itself. Refused where a Problem came first.
    """
    read, write = os.pipe()
    with _signals_held():
        pid = os.fork()
        if not pid:
            os.close(read)
            _be(body, write, log, kept=kept)
        agent = Agent(pid)
        if kept:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # `docker run` hands on its own, when its terminal is closed
            for number in _PASSED_ON:
                signal.signal(number, agent.pass_on)
    os.close(write)
    with open(read) as told:
        document = json.loads(told.read() or "null")
    if document is None:
        raise _ended_early(agent.wait())
    if "problem" in document:
        raise Refused(document["problem"], fix=document["fix"], exit_code=document["exit_code"])
    agent.finished = document["ready"]
    return agent


def _ended_early(code: int) -> Refused:
    if code == STOPPED:
        return Refused("stopped before the training began", fix="start it again", exit_code=code)
    return Refused(f"the launcher ended with {code} before it began", fix="look at the lines above", exit_code=code)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """None is lost between the fork and the handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


def _be(body: Body, write: int, log: Path | None, *, kept: bool) -> None:
    """The child; it never returns, for the rest of this stack belongs to the parent."""
    code = OWN_BUG
    try:
        os.setsid()
        if kept:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        code = _run(body, write, log)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # nobody reads, or the volume is full
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(body: Body, write: int, log: Path | None) -> int:
    def ready(text: str | None) -> None:
        if log is not None:
            null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(null, 0)
            os.dup2(file, 1)
            os.dup2(file, 2)
        _tell(write, {"ready": text})

    try:
        return body(ready)
    except Problem as problem:
        _tell(write, {"problem": problem.problem, "fix": problem.fix, "exit_code": problem.exit_code})
        return problem.exit_code


def _tell(write: int, document: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        os.write(write, json.dumps(document).encode())
        os.close(write)
