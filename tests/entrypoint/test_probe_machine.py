"""The live calls: bounded, and silent where the machine is."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from entrypoint import probe_machine
from entrypoint.probe_machine import THIS_MACHINE, Directory, Files


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event for calls to wait on; set at the end, so that no thread is left behind."""
    monkeypatch.setattr(probe_machine, "RESOLVE_SECONDS", 0.01)
    monkeypatch.setattr(probe_machine, "DIRECTORY_SECONDS", 0.01)
    event = threading.Event()
    yield event
    event.set()


def test_a_slow_name_server_is_not_waited_for(stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: stuck.wait() and [])
    assert THIS_MACHINE.resolve("node") is None


def test_a_silent_file_server_is_not_waited_for(stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "realpath", lambda path: stuck.wait() and path)
    assert THIS_MACHINE.directory("/workspace") == Directory(exists=None, real_path="/workspace")


@pytest.mark.parametrize("name", ["", "a" * 70, "name.invalid.", "\0"])
def test_a_name_that_does_not_resolve_is_no_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise UnicodeError if len(name) > 63 else socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert THIS_MACHINE.resolve(name) == ()


def test_a_missing_directory_is_known_to_be_missing(tmp_path: Path) -> None:
    assert THIS_MACHINE.directory(str(tmp_path / "none")).exists is False


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [THIS_MACHINE.directory(str(tmp_path / name)).exists for name in ("file", "file/below")] == [False, False]


def test_a_stale_handle_is_not_a_missing_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(_path: str) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "statvfs", stale)
    assert THIS_MACHINE.directory("/").exists is None


@pytest.mark.parametrize(("device", "opens"), [("/dev/null", True), ("/dev/infiniband/uverbs999", False), ("/", False)])
def test_a_device_counts_when_it_opens(device: str, opens: bool) -> None:
    assert THIS_MACHINE.opens(device) is opens


def test_one_failing_call_leaves_the_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_if_stats", fail)
    lo = next(link for link in THIS_MACHINE.links() if link.name == "lo")
    assert ("127.0.0.1/8" in lo.addresses, lo.mtu) == (True, None)


def test_an_address_with_a_label_is_its_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(text: str) -> SimpleNamespace:
        return SimpleNamespace(family=socket.AF_INET, address=text, netmask="255.255.255.0")

    found = {"eth0": [address("10.0.0.1")], "eth0:1": [address("10.0.0.9")], "eth01": [address("10.9.0.1")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(2, "eth0")])
    assert THIS_MACHINE.links()[0].addresses == ("10.0.0.1/24", "10.0.0.9/24")


@pytest.mark.parametrize("content", [b"", b" \n\t", None])
def test_a_file_without_text_says_nothing(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    assert Files(tmp_path).read("/file") is None


def test_what_the_kernel_refuses_to_read_says_nothing() -> None:
    assert Files(Path("/")).read("/sys/class/net/lo/speed") is None  # EINVAL, for root as well


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (2 << 20))
    assert len(Files(tmp_path).read("/file") or "") == 1 << 20
