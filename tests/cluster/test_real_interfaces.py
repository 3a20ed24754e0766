"""Real links in a network namespace → probe and plan take the right one, and gloo runs over it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

# A node in namespaces of its own, and a second one at the other ends of its links: `join ens1 10.65.0` makes a link.
NODE = """
set -e
mount -t sysfs none /sys
ip link set lo up
setpriv --pdeathsig KILL unshare --net sleep 300 & peer=$!
trap 'kill $peer' EXIT
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
on_peer() { nsenter --target $peer --net -- "$@"; }
plug() {
  ip link add $1 type veth peer name p-$1
  ip link set p-$1 netns $peer
  ip link set $1 up
  on_peer ip link set p-$1 up
}
join() {
  plug $1
  ip address add $2.2/24 dev $1
  on_peer ip address add $2.1/24 dev p-$1
}
on_peer ip link set lo up
"""


def in_namespace(links: str, command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        ["unshare", "--net", "--mount", "--propagation=private", "sh", "-c", f"{NODE}{links}\n{command}"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=keep | {"PYTHON": sys.executable} | variables,
    )


def plan(links: str, primary: str, volume: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    told = {"TRAIN_NODES": "2", "TRAIN_NODE_RANK": "1", "TRAIN_PRIMARY": primary, "TRAIN_VOLUME": str(volume)}
    return in_namespace(links, "$PYTHON -P -m entrypoint plan ddp --json", PYTHONPATH=str(ROOT), **told, **variables)


def planned(links: str, primary: str, volume: Path, **variables: str) -> dict[str, Any]:
    done = plan(links, primary, volume, **variables)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


ETH0 = "join eth0 172.18.0\n"
ENS1 = "join ens1 10.65.0\n"
TUN = """
ip tuntap add tailscale0 mode tun
ip address add 100.64.0.2/32 dev tailscale0
ip link set tailscale0 up
ip route add default dev tailscale0
"""
DOCKER0 = """
ip link add docker0 type bridge
ip address add 172.17.0.1/16 dev docker0
ip link set docker0 up
ip link add veth7 type veth peer name c7
ip link set c7 netns $peer
ip link set veth7 up master docker0
on_peer ip link set c7 up
"""
PREFIXES = "join ens10 10.66.0\njoin ens1f0 10.67.0\n"
TWINS = "plug ens2\nip address add 10.65.0.3/24 dev ens2\n"
VXLAN = """
ip link add overlay0 type vxlan id 42 dev ens1 dstport 4789 remote 10.65.0.1
ip link set overlay0 up
ip address add 10.70.0.2/24 dev overlay0
on_peer ip link add overlay0 type vxlan id 42 dev p-ens1 dstport 4789 remote 10.65.0.2
on_peer ip link set overlay0 up
on_peer ip address add 10.70.0.1/24 dev overlay0
"""
MACVLAN = """
plug parent
ip link add net1 link parent type macvlan mode bridge
ip link set net1 up
ip address add 10.80.0.2/24 dev net1
on_peer ip address add 10.80.0.1/24 dev p-parent
"""
SIX = """
plug ens1
ip address add fd00::2/64 dev ens1 nodad
on_peer ip address add fd00::1/64 dev p-ens1 nodad
"""
LINK_LOCAL = "plug veth9\n"
DOWN = "join ens9 10.69.0\non_peer ip link set p-ens9 down\n"
DUAL = ENS1 + "ip address add fd00::2/64 dev ens1 nodad\non_peer ip address add fd00::1/64 dev p-ens1 nodad\n"

ROWS = [
    ("a dead-end eth0 beside the cluster's link", ETH0 + ENS1, "10.65.0.1", "ens1", {"eth0": "not the way"}),
    (
        "eth1 and eth2, as a cloud called them before ens1 and ens2",
        ETH0 + "join eth1 10.65.0\njoin eth2 10.66.0\n",
        "10.65.0.1",
        "eth1",
        {"eth0": "not the way", "eth2": "not the way"},
    ),
    (
        "a tunnel that is the way to everywhere",
        TUN + ETH0 + ENS1,
        "10.65.0.1",
        "ens1",
        {"tailscale0": "a tunnel", "eth0": "not the way"},
    ),
    (
        "docker0 with a container behind it",
        DOCKER0 + ENS1,
        "10.65.0.1",
        "ens1",
        {"docker0": "a bridge without a real port", "veth7": "part of docker0"},
    ),
    (
        "names that begin alike",
        PREFIXES + ENS1,
        "10.65.0.1",
        "ens1",
        {"ens10": "not the way", "ens1f0": "not the way"},
    ),
    ("an overlay over the link", ENS1 + VXLAN, "10.70.0.1", "overlay0", {"ens1": "not the way"}),
    ("the link below an overlay", ENS1 + VXLAN, "10.65.0.1", "ens1", {"overlay0": "not the way"}),
    ("a macvlan on a port without address", MACVLAN, "10.80.0.1", "net1", {"parent": "no address but a link-local"}),
    ("IPv6 alone", SIX, "[fd00::1]:29500", "ens1", {}),
    ("both families", DUAL, "[fd00::1]:29500", "ens1", {}),
    ("nothing but fe80", LINK_LOCAL + ENS1, "10.65.0.1", "ens1", {"veth9": "no address but a link-local one"}),
    ("no carrier", DOWN + ENS1, "10.65.0.1", "ens1", {"ens9": "down, or without a carrier"}),
    ("two links in one network", ENS1 + TWINS, "10.65.0.1", "ens1", {"ens2": "in one network with ens1"}),
]


@pytest.mark.parametrize(
    ("links", "primary", "interface", "rejected"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_the_plan_on_real_links_takes_what_leads_to_the_primary(links, primary, interface, rejected, tmp_path):
    document = planned(links, primary, tmp_path)
    network, taken = document["network"], {one["name"]: one["value"] for one in document["settings"]}
    assert network["interfaces"] == [interface]
    assert taken["NCCL_SOCKET_IFNAME"] == f"={interface}"
    assert taken["GLOO_SOCKET_IFNAME"] == taken["TP_SOCKET_IFNAME"] == interface
    assert taken.get("NCCL_SOCKET_FAMILY") == ("AF_INET6" if primary.startswith("[") else None)
    why = dict(network["rejected"])
    assert {name for name in why if name not in ("lo", "ifb0", "ifb1", "sit0", "tunl0")} == set(rejected)
    assert [name for name, text in rejected.items() if text not in why[name]] == []


def test_a_primary_behind_a_tunnel_stops_the_plan_by_name(tmp_path):
    done = plan(TUN + ENS1, "100.64.0.1", tmp_path)
    assert done.returncode == 69
    assert "the route takes tailscale0 (a tunnel" in done.stderr
    assert "TRAIN_INTERFACE" in done.stderr


def test_a_platforms_interface_that_is_not_here_is_replaced(tmp_path):
    document = planned(ETH0 + ENS1, "10.65.0.1", tmp_path, NCCL_SOCKET_IFNAME="enp1s0")
    assert {"name": "NCCL_SOCKET_IFNAME", "value": "=ens1"}.items() <= document["settings"][0].items()
    assert any("NCCL_SOCKET_IFNAME=enp1s0 matches no interface here" in one["text"] for one in document["findings"])


SUM = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
ones = torch.ones(300_000)
dist.all_reduce(ones)
print(ones.sum().item())
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("links", "primary"),
    [(ETH0 + PREFIXES + ENS1, "10.65.0.1"), (ENS1 + VXLAN, "10.70.0.1"), (SIX, "[fd00::1]")],
    ids=["dead-end eth0", "vxlan", "IPv6 alone"],
)
def test_gloo_adds_up_over_the_interface_that_was_chosen(links, primary, tmp_path):
    document = planned(links, f"{primary}:29500", tmp_path)
    gloo = next(one["value"] for one in document["settings"] if one["name"] == "GLOO_SOCKET_IFNAME")
    on_the_peer = f"p-{gloo}" if gloo != "overlay0" else gloo
    (tmp_path / "sum.py").write_text(SUM)
    run = f"$PYTHON {tmp_path}/sum.py tcp://{primary}:29500"
    both = f"on_peer env GLOO_SOCKET_IFNAME={on_the_peer} {run} 0 & first=$!\n{run} 1\nwait $first"
    done = in_namespace(links, both, GLOO_SOCKET_IFNAME=gloo)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["600000.0", "600000.0"]
