"""A run is trained by one launcher at a time: a lock on the volume that survives neither the process nor its node.

Two things together. `flock`, which the kernel (or an NFS server) drops with the process that holds it; and, for
volumes where flock is missing or counts on one machine only, a heartbeat in the same file. Whoever finds the name of
another machine in it watches the heartbeat for a while: no clock is compared with another machine's.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import psutil

from entrypoint.errors import MachineError, SettingError

BEAT_SECONDS = 5.0
WATCH_SECONDS = 3 * BEAT_SECONDS
_NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who trains the run: a process of a machine, told apart from a later one with the same numbers."""

    pid: int
    host: str
    boot: str  # differs after a reboot
    pids: str  # the pid namespace: in another container the same pid is another process
    started: float
    token: str
    beat: int = 0
    endpoint: str = ""  # where it holds the roll call of several nodes

    @property
    def is_here(self) -> bool:
        return (self.boot, self.pids) == (_boot(), _pid_namespace())

    @property
    def is_alive_here(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.started and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class RunLock:
    """Held from `take` to `release`, or to the end of the process; `beat` belongs into the holder's loop."""

    def __init__(self, descriptor: int, holder: Holder, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor, self._holder, self._clock = descriptor, holder, clock
        self._beaten_at = clock()

    def beat(self) -> bool:
        """Say "still here" where it is due; False: somebody else has taken the lock, because this process slept."""
        if self._clock() - self._beaten_at < BEAT_SECONDS:
            return True
        self._beaten_at = self._clock()
        try:
            found = _read(self._descriptor)
            if found is not None and found.token != self._holder.token:
                return False
            self._holder = Holder(**{**asdict(self._holder), "beat": self._holder.beat + 1})
            _write(self._descriptor, self._holder)
        except OSError:  # the volume is away; whether it was lost is seen when it is back
            pass
        return True

    def release(self) -> None:
        try:
            os.ftruncate(self._descriptor, 0)
        finally:
            os.close(self._descriptor)


def take(
    path: Path, *, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep, endpoint: str = ""
) -> RunLock:
    """The lock; SettingError that names the other where a launcher holds it.

    `endpoint`: an address and port that this process could listen on just now. A holder that listened there is gone
    (two machines cannot have one address), so a node 0 that comes back need not wait for its own earlier heartbeat.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise MachineError(
            f"{error.filename}: {error.strerror}", fix="TRAIN_VOLUME must name a folder that this user may write"
        ) from None
    try:
        flocked = _flock(descriptor)
        found = _read(descriptor)
        is_gone = flocked is True and found is not None and endpoint != "" and found.endpoint == endpoint
        if flocked is False or (found is not None and not is_gone and _lives(found, descriptor, flocked, say, sleep)):
            _refuse(path, found)
        mine = _myself(endpoint)
        _write(descriptor, mine)
        if flocked is None:  # two may have come this far at once
            sleep(1.0)
            found = _read(descriptor)
            if found is None or found.token != mine.token:
                _refuse(path, found)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise MachineError(
                f"{path}: {error.strerror}", fix="make room on the volume, or name another with TRAIN_VOLUME"
            ) from None
        raise
    return RunLock(descriptor, mine)


def hold(path: Path) -> RunLock | None:
    """Mark that a node of several works here, for who looks at the run; whether it may is decided at the roll call.

    None: another process has it, or this volume has no locks.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return None
    mine = _myself()
    try:
        if _flock(descriptor):
            _write(descriptor, mine)
            return RunLock(descriptor, mine)
    except OSError:
        pass
    os.close(descriptor)
    return None


def holder_of(path: Path) -> Holder | None:
    """Who holds the lock by what is written in it; None: released, or nobody ever did."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def living_holder(path: Path) -> Holder | None:
    """The holder if it is alive, without taking anything; another machine's is judged by the age of its heartbeat."""
    holder = holder_of(path)
    if holder is None:
        return None
    if holder.is_here:
        return holder if holder.is_alive_here else None
    try:
        return holder if time.time() - path.stat().st_mtime < 2 * WATCH_SECONDS else None
    except OSError:
        return None


def _flock(descriptor: int) -> bool | None:
    """True: it is ours; False: another process holds it; None: this volume knows no flock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return None
        raise


def _lives(
    found: Holder,
    descriptor: int,
    flocked: bool | None,
    say: Callable[[str], None],
    sleep: Callable[[float], None],
) -> bool:
    if found.is_here:
        return flocked is None and found.is_alive_here  # with flock it would not be ours
    say(
        f"this run was last trained by pid {found.pid} of {found.host}; waiting {WATCH_SECONDS:.0f} s for its heartbeat"
    )
    sleep(WATCH_SECONDS)
    now = _read(descriptor)
    return now is not None and (now.token, now.beat) != (found.token, found.beat)


def _refuse(path: Path, found: Holder | None) -> None:
    who = f"pid {found.pid} of {found.host}" if found else "another process"
    raise SettingError(
        f"{path.name[1:-5]} is trained already, by {who}",
        fix="`attach` shows it; stop it first, or give this run another name (TRAIN_RUN)",
    )


def _myself(endpoint: str = "") -> Holder:
    return Holder(
        pid=os.getpid(),
        host=socket.gethostname(),
        boot=_boot(),
        pids=_pid_namespace(),
        started=psutil.Process().create_time(),
        token=uuid4().hex,
        endpoint=endpoint,
    )


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None


def _write(descriptor: int, holder: Holder) -> None:
    data = json.dumps(asdict(holder)).encode()
    os.pwrite(descriptor, data.ljust(1024), 0)  # one length: a reader never sees the end of an older text
