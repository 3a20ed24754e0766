import pytest

from entrypoint.errors import NodesError
from entrypoint.names import resolve


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def resolve_late(known_at, wait_seconds):
    clock, said = Clock(), []

    def lookup(host):
        if clock.now < known_at:
            raise OSError(-2, "Name or service not known")
        return "10.0.0.9"

    address = resolve(
        "node-0.test", wait_seconds=wait_seconds, say=said.append, lookup=lookup, clock=clock, sleep=clock.sleep
    )
    return address, clock.now, said


@pytest.mark.parametrize("host", ["10.65.0.2", "2001:db8::10", "::1"])
def test_an_address_is_its_own_answer(host):
    assert resolve(host, wait_seconds=0, say=pytest.fail) == host


def test_a_name_that_comes_late_is_waited_for_with_a_line_every_ten_seconds():
    address, now, said = resolve_late(known_at=35, wait_seconds=600)
    assert (address, now) == ("10.0.0.9", 36)
    assert len(said) == 4
    assert all("'node-0.test'" in line and "Name or service not known" in line for line in said)


def test_a_name_that_never_comes_ends_with_its_name_the_time_and_the_last_error():
    with pytest.raises(NodesError, match=r"'node-0\.test'") as caught:
        resolve_late(known_at=10**9, wait_seconds=60)
    assert "60 s" in caught.value.problem
    assert "Name or service not known" in caught.value.problem
    assert caught.value.exit_code == 68


@pytest.mark.parametrize("host", ["bad..name", "x" * 300, "no-such-host.invalid", "a b", "\x00"])
def test_a_name_that_is_none_is_quoted_and_not_a_traceback(host):
    with pytest.raises(NodesError) as caught:
        resolve(host, wait_seconds=0, say=pytest.fail)
    assert repr(host) in caught.value.problem


def test_a_name_of_this_machine_has_an_address():
    assert resolve("localhost", wait_seconds=0, say=pytest.fail) in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (["fd00::1", "10.0.0.1"], "10.0.0.1"),
        (["127.0.1.1", "fd00::1"], "fd00::1"),
        (["127.0.1.1", "fd00::1", "10.0.0.1"], "10.0.0.1"),
        (["fe80::1%lo"], "fe80::1"),
        (["127.0.1.1"], "127.0.1.1"),
    ],
)
def test_of_several_addresses_ipv4_is_taken_and_loopback_last(found, address, monkeypatch):
    answers = [(2, 1, 6, "", (one, 0)) for one in found]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_named: answers)
    assert resolve("node-0", wait_seconds=0, say=pytest.fail) == address
