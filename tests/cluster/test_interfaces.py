"""Which interface carries the training is measured between real nodes, not guessed."""

import pytest
import trial

from entrypoint.namespaces import LINKS, Link

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow]
SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(100_000))
print("interface", os.environ["GLOO_SOCKET_IFNAME"], flush=True)
dist.destroy_process_group()
"""
# An MTU that the interface promises and the network between does not keep; nobody says so (no ICMP).
BLACK_HOLE = "iptables -A INPUT -i {} -m length --length 1501:65535 -j DROP"
WIDE = (Link("eth0", "10.64.0.0/24"), Link("ens1", "10.65.0.0/24", mtu=9000))


def taken(tmp_path, nodes, links, *, primary_link=0, spoil=lambda run: None):
    """The interface that each node's training used, and the whole trial."""
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    with trial.Trial(tmp_path, nodes, script, links=links, primary_link=primary_link) as run:
        spoil(run)
        run.start()
        assert run.finish() == [0] * nodes, run.text()
    said = {node: line for _, node, line in run.lines if "] interface " in line}
    return [said[node].split()[-1] for node in range(nodes)], run


@pytest.mark.parametrize("primary_link", [0, 1], ids=["primary on the slow one", "primary on the fast one"])
def test_the_fast_interface_is_taken(tmp_path, primary_link):
    interfaces, run = taken(tmp_path, 2, LINKS, primary_link=primary_link)
    assert interfaces == ["ens1", "ens1"], run.text()


def test_an_interface_that_loses_long_packets_is_not_taken_and_that_is_said(tmp_path):
    def spoil(run):
        for node in range(2):
            run.networks.on(node, BLACK_HOLE.format("ens1"))

    interfaces, run = taken(tmp_path, 2, WIDE, spoil=spoil)
    assert interfaces == ["eth0", "eth0"], run.text()
    for node in range(2):
        said = [line for _, number, line in run.lines if number == node and "ens1" in line]
        assert any("large packets do not arrive" in line for line in said), run.text()


def test_where_every_way_loses_long_packets_the_run_stops_and_says_so(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    with trial.Trial(tmp_path, 2, script, links=[Link("ens1", "10.65.0.0/24", mtu=9000)], primary_link=0) as run:
        for node in range(2):
            run.networks.on(node, BLACK_HOLE.format("ens1"))
        run.start()
        assert run.finish() == [68, 68], run.text()
    assert "larger packets do not arrive" in run.text()
    assert "mtu" in run.text()


def test_nodes_without_ipv4_train(tmp_path):
    interfaces, run = taken(tmp_path, 2, [Link("ens1", "fd65::/64")])
    assert interfaces == ["ens1", "ens1"], run.text()


def test_names_may_differ_from_node_to_node(tmp_path):
    links = [Link("eth0", "10.64.0.0/24", mbit=20), Link("ens1", "10.65.0.0/24", other_names=("enp5s0", "ens1np0"))]
    interfaces, run = taken(tmp_path, 3, links)
    assert interfaces == ["ens1", "enp5s0", "ens1np0"], run.text()
