"""What the trials stand on: nodes that have networks of their own, and vanish."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
import runs

from entrypoint.namespaces import Link, Namespaces

pytestmark = pytest.mark.cluster

LISTEN = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], 7000)); server.listen(); print("ready", flush=True)
peer, _ = server.accept()
began = None
total = 0
while data := peer.recv(1 << 20):
    began = began or time.monotonic()
    total += len(data)
print(total * 8 / 1e6 / (time.monotonic() - began))
"""
SEND = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 7000), 5); peer.sendall(bytes(int(sys.argv[2])))
"""


def python(networks, node, code, *words):
    command = [*networks.command(node), sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def mbit_per_second(networks, link, size):
    """Counted where it arrives: a sender is done as soon as the queue has it."""
    address = networks.address(0, link)
    with python(networks, 0, LISTEN, address) as listener:
        assert listener.stdout.readline() == "ready\n"
        with python(networks, 1, SEND, address, size) as sender:
            assert sender.wait(30) == 0, sender.stderr.read()
        return float(listener.stdout.read())


def test_one_interface_is_slow_and_the_other_fast():
    with Namespaces(2) as networks:
        assert mbit_per_second(networks, 0, 2 << 20) < 25
        assert mbit_per_second(networks, 1, 64 << 20) > 100


@pytest.mark.parametrize("subnet", ["10.65.0.0/24", "fd65::/64"])
def test_a_cut_is_silent_and_heals(subnet):
    with (
        Namespaces(2, [Link("ens1", subnet)]) as networks,
        python(networks, 0, LISTEN, networks.address(0)) as listener,
    ):
        assert listener.stdout.readline() == "ready\n"
        networks.cut(1)
        with python(networks, 1, SEND, networks.address(0), 5000) as sender:
            time.sleep(1.0)
            assert sender.poll() is None  # it waits: nobody refused it
            networks.heal(1)
            assert sender.wait(10) == 0, sender.stderr.read()
        assert listener.wait(10) == 0


def test_a_node_has_a_host_name_that_only_it_knows():
    code = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
    with Namespaces(2) as networks:
        for node in range(2):
            output, _ = python(networks, node, code).communicate(timeout=10)
            assert output.split() == [f"node{node}", networks.address(node)]
        networks.move(1)
        assert networks.address(1) == "10.64.0.103"
        assert f"inet {networks.address(1, 1)}/24" in networks.on(1, "ip addr show ens1")


def test_names_of_interfaces_may_differ():
    with Namespaces(3, [Link("ens1", "10.65.0.0/24", other_names=("enp5s0",))]) as networks:
        assert [networks.on(node, "ls /sys/class/net").split() for node in range(3)] == [
            ["ens1", "lo"],
            ["enp5s0", "lo"],
            ["ens1", "lo"],
        ]


MAKER = """
import sys, time
from entrypoint.namespaces import Namespaces
networks = Namespaces(2).__enter__()
print(*(holder.pid for holder in networks._holders), networks._bridges.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_maker_is_killed(number):
    before = {name for _, name in socket.if_nameindex()}
    with subprocess.Popen([sys.executable, "-c", MAKER], cwd=runs.ROOT, stdout=subprocess.PIPE, text=True) as maker:
        pids = [int(pid) for pid in maker.stdout.readline().split()]
        assert len(pids) == 3
        own = os.readlink("/proc/self/ns/net")
        assert all(os.readlink(f"/proc/{pid}/ns/net") != own for pid in pids)
        maker.send_signal(number)
    runs.wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), f"left: {pids}", seconds=5)
    assert {name for _, name in socket.if_nameindex()} == before
