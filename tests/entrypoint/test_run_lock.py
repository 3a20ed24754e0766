"""The lock on the volume, where flock works, where it does not, and where the holder is another machine."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from entrypoint import run_lock
from entrypoint.errors import MachineError, SettingError


def take(path, sleep=lambda seconds: None):
    return run_lock.take(path, say=lambda line: None, sleep=sleep)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / ".ddp.lock"


@pytest.fixture
def no_flock(monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOSYS, "not on this volume")

    monkeypatch.setattr(run_lock.fcntl, "flock", refuse)


def write(path, holder):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(holder)))


def elsewhere(**changes):
    return replace(run_lock._myself(), host="node-b", boot="another", **changes)


def test_a_second_one_is_refused_by_name_until_the_first_lets_go(path):
    first = take(path)
    with pytest.raises(SettingError, match=f"ddp is trained already, by pid {os.getpid()} of ") as caught:
        take(path)
    assert caught.value.exit_code == 78
    assert run_lock.living_holder(path).pid == os.getpid()
    first.release()
    assert run_lock.living_holder(path) is None
    take(path).release()


@pytest.mark.parametrize("flock", ["flock", "no flock"])
def test_it_does_not_survive_the_process(path, flock, request):
    if flock == "no flock":
        request.getfixturevalue("no_flock")
    program = (
        f"from entrypoint import run_lock; from pathlib import Path; run_lock.take(Path({str(path)!r}), say=print)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert run_lock.holder_of(path) is not None
    assert run_lock.living_holder(path) is None
    take(path).release()


def test_without_flock_a_living_process_of_this_machine_is_seen(path, no_flock):
    first = take(path)
    with pytest.raises(SettingError, match="trained already"):
        take(path)
    first.release()


def test_a_pid_that_was_given_to_another_process_is_no_holder(path, no_flock):
    write(path, replace(run_lock._myself(), started=1.0))
    take(path).release()


@pytest.mark.parametrize("flock", ["flock", "no flock"])
def test_another_machine_holds_it_as_long_as_its_heart_beats(path, flock, request):
    """Where flock counts on one machine only, the heartbeat tells."""
    if flock == "no flock":
        request.getfixturevalue("no_flock")
    write(path, elsewhere())
    with pytest.raises(SettingError, match="of node-b"):
        take(path, sleep=lambda seconds: write(path, elsewhere(beat=1)))
    take(path).release()  # no beat meanwhile: that node is gone


def test_two_that_come_at_once_without_flock_do_not_both_get_it(path, no_flock):
    with pytest.raises(SettingError, match="of node-b"):
        take(path, sleep=lambda seconds: write(path, elsewhere()))


def test_the_holder_notices_when_it_lost_the_lock_in_its_sleep(path):
    now = [0.0]
    lock = take(path)
    lock._clock, lock._beaten_at = (lambda: now[0]), 0.0
    assert lock.beat()
    now[0] = 6.0
    assert lock.beat()
    assert run_lock.holder_of(path).beat == 1
    write(path, elsewhere())
    assert lock.beat()  # not due
    now[0] = 12.0
    assert not lock.beat()
    os.close(lock._descriptor)


def test_half_a_file_is_no_holder(path):
    path.parent.mkdir()
    path.write_text('{"pid": 1')
    take(path).release()


def test_a_volume_that_cannot_be_written_is_the_machines_fault(tmp_path):
    with pytest.raises(MachineError, match="nowhere"):
        take(tmp_path.joinpath("/proc/nowhere/runs/.ddp.lock"))
