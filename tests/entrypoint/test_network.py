"""Machines and clusters → interfaces, settings and reasons; then what becomes of values that came from outside."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.capture import replay_facts
from entrypoint.cluster import Cluster
from entrypoint.errors import MachineError, NodesError, SettingError
from entrypoint.facts import Facts, FileSetting, Interface, RdmaPort
from entrypoint.inherited import matched
from entrypoint.interfaces import candidates
from entrypoint.measured import Measured, Measurements, Rail
from entrypoint.network import Network, choose_network

MACHINES = Path(__file__).resolve().parents[1] / "machines"
TWO_NODES = Cluster("none", 2, 1, 8, 16, None, 29500, None, (), {})
LO = Interface("lo", ("127.0.0.1/8", "::1/128"), True, 65536, None, "loopback")


def link(name: str, *addresses: str, speed: int | None = None, kind: str = "physical", **told: Any) -> Interface:
    fields = {"up": True, "mtu": 1500} | told
    return Interface(name, addresses, mbit_per_second=speed, kind=kind, **fields)


def hca(device: str, rate: float = 400, layer: str = "InfiniBand", **told: Any) -> RdmaPort:
    fields = {"port": 1, "active": True, "interface": None, "usable": True} | told
    return RdmaPort(device, gbit_per_second=rate, link_layer=layer, **fields)


def machine(*links: Interface, **told: Any) -> Facts:
    facts = replay_facts(MACHINES / "laptop")
    return replace(facts, interfaces=(LO, *links), routes=told.pop("routes", ()), **told)


def chosen(facts: str | Facts, own: dict[str, str] | None = None, hint: str | None = None, **cluster: Any) -> Network:
    seen = replay_facts(MACHINES / facts) if isinstance(facts, str) else facts
    ours = {name: cluster.pop(name) for name in ("insisted", "must_be_known", "measured") if name in cluster}
    gpus = cluster.pop("gpus", len(seen.gpus or ()))
    return choose_network(replace(TWO_NODES, **cluster), seen, own or {}, gpus=gpus, hint=hint, **ours)


def settings(network: Network) -> dict[str, str]:
    return {setting.name: setting.value for setting in network.settings}


def on(*names: str) -> dict[str, str]:
    """The settings that name these interfaces for NCCL, gloo and tensorpipe."""
    listed = ",".join(names)
    return {"NCCL_SOCKET_IFNAME": f"={listed}", "GLOO_SOCKET_IFNAME": listed, "TP_SOCKET_IFNAME": names[0]}


FOUR_SOCKETS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
DUAL = {"NCCL_SOCKET_FAMILY": "AF_INET"}
SIX = {"NCCL_SOCKET_FAMILY": "AF_INET6"}


@dataclass(frozen=True)
class Row:
    """`rejected`: part of the reason of each other interface, all of which must be named, but lo."""

    about: str
    facts: str | Facts
    expected: dict[str, str]
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)
    primary: str | None = "10.0.0.1"
    told: dict[str, Any] = field(default_factory=dict)


INTERNET = link("eth0", "172.18.0.2/16", kind="veth")
DOCKER0 = link("docker0", "172.17.0.1/16", kind="bridge")
ENS1 = link("ens1", "10.0.0.2/24", speed=25000)
TO_PRIMARY = (("10.0.0.1", "10.0.0.2"),)
RAILS = {f"ens{n}": "not the way to the primary" for n in range(2, 9)}
NOT_THE_WAY = "not the way to the primary"
SEVENTEEN = tuple(link(f"ens{n}", f"10.0.{n}.2/24", speed=10000) for n in range(17))


def measured(*rows: tuple[str, str, int | None], rails: bool = True, **failed: Measured) -> Measurements:
    """Interface, network and Mbit/s of what reaches the peer; the same on every node if `rails`."""
    good = [Measured(name, network, (0,), (), True, speed) for name, network, speed in rows]
    common = sorted(good, key=lambda one: -(one.mbit_per_second or 0)) if rails else []
    shared = tuple(Rail(one.network, one.mbit_per_second) for one in common)
    return Measurements((*good, *failed.values()), shared)


def dead(name: str, network: str, **told: Any) -> Measured:
    fields: dict[str, Any] = {"reached": (), "missed": (0,), "large_passes": None, "mbit_per_second": None} | told
    return Measured(name, network, **fields)


ROWS = [
    Row(
        "the interface that owns the node's address",
        "runpod-cluster",
        on("ens1") | FOUR_SOCKETS,
        "owns this node's address 10.65.0.2",
        {"eth0": NOT_THE_WAY} | RAILS,
        "10.65.0.3",
        {"node_address": "10.65.0.2"},
    ),
    Row(
        "the route to the primary, where no address is told",
        "runpod-cluster",
        on("ens1") | FOUR_SOCKETS,
        "the route to the primary 10.65.0.3 leaves from 10.65.0.2",
        {"eth0": NOT_THE_WAY} | RAILS,
        "10.65.0.3",
    ),
    Row(
        "the primary knows itself by its address",
        "runpod-cluster",
        on("ens1") | FOUR_SOCKETS,
        "owns the primary's address 10.65.0.2",
        {"eth0": NOT_THE_WAY} | RAILS,
        "10.65.0.2",
        {"node_rank": 0},
    ),
    Row(
        "eth0 is the fast one on this cloud: no name is bad by itself",
        "vast-overlay",
        on("eth0"),
        "the route to the primary",
        {"eth1": NOT_THE_WAY},
        "10.0.3.5",
    ),
    Row(
        "InfiniBand carries data, eth0 the meeting",
        "coreweave-pod",
        on("eth0"),
        "the route to the primary",
        primary="10.240.7.20",
    ),
    Row(
        "InfiniBand beside Ethernet HCAs: NCCL is told the fast group, each by its whole name",
        "h100-infiniband",
        on("eth0") | {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_{n}" for n in (0, 3, 4, 5, 6, 9, 10, 11))},
        "the route to the primary",
        {f"ibs{n}": NOT_THE_WAY for n in (0, 3, 4, 5, 6, 9, 10, 11)},
        "10.1.0.12",
    ),
    Row(
        "RDMA that is listed and cannot be opened",
        "rdma-without-device",
        on("eth0") | {"NCCL_IB_DISABLE": "1"},
        "owns this node's address",
        {},
        "172.17.0.9",
        {"node_address": "172.17.0.2", "gpus": 8},
    ),
    Row(
        "RDMA without a GPU is nobody's business: gloo knows none",
        "rdma-without-device",
        on("eth0"),
        "owns this node's address",
        {},
        "172.17.0.9",
        {"node_address": "172.17.0.2"},
    ),
    Row(
        "RDMA that no cable is plugged into",
        machine(ENS1, rdma=(hca("mlx5_0", active=False),), routes=TO_PRIMARY),
        on("ens1") | {"NCCL_IB_DISABLE": "1"},
        "the route to the primary",
        told={"gpus": 8},
    ),
    Row(
        "two ports of one HCA, of which one is a slower Ethernet",
        machine(ENS1, rdma=(hca("mlx5_0"), hca("mlx5_0", 100, "Ethernet", port=2)), routes=TO_PRIMARY),
        on("ens1") | {"NCCL_IB_HCA": "=mlx5_0:1"},
        "the route to the primary",
        told={"gpus": 8},
    ),
    Row(
        "one fast HCA for storage beside eight for training: the group that carries more",
        machine(
            ENS1,
            rdma=(hca("mlx5_8", 200), *(hca(f"mlx5_{n}", 100) for n in range(8))),
            routes=TO_PRIMARY,
        ),
        on("ens1") | {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_{n}" for n in range(8))},
        "the route to the primary",
        told={"gpus": 8},
    ),
    Row(
        "a bond: its slaves are not taken, the VLAN whose prefix it is neither",
        "bond-and-vlan",
        on("bond0"),
        "the route to the primary",
        {"eno1": "part of bond0", "eno2": "part of bond0", "bond0.100": NOT_THE_WAY},
        "10.3.0.8",
    ),
    Row(
        "a VLAN on a bond",
        "bond-and-vlan",
        on("bond0.100"),
        "the route to the primary",
        {"eno1": "part of bond0", "eno2": "part of bond0", "bond0": NOT_THE_WAY},
        "10.3.100.8",
    ),
    Row(
        "ens1 beside ens10 and ens1f0, and docker0 with an address of its own",
        "prefix-names",
        on("ens1"),
        "the route to the primary",
        {
            "ens10": NOT_THE_WAY,
            "ens1f0": NOT_THE_WAY,
            "docker0": "a bridge without a real port",
            "br-5d0c8e1f2a3b": "down",
            "veth1b2c3d4": "part of docker0",
        },
        "10.65.0.3",
    ),
    Row(
        "a veth with nothing but fe80, and a port without carrier",
        "veth-link-local",
        on("ens1"),
        "the route to the primary",
        {"ens2": "down, or without a carrier", "veth8a1f0c2": "no address but a link-local one"},
        "10.5.0.4",
    ),
    Row(
        "Tailscale and WireGuard beside Ethernet",
        "tunnels",
        on("enp5s0"),
        "the route to the primary",
        {"tailscale0": "a tunnel", "wg0": "a tunnel"},
        "192.168.7.3",
    ),
    Row(
        "a laptop whose docker0 is idle",
        "laptop",
        on("wlan0"),
        "the route to the primary",
        {"docker0": "down"},
        "192.168.1.40",
    ),
    Row(
        "virtio names no speed, and its address has no network beside it",
        "cloud-vm-virtio",
        on("ens3"),
        "the route to the primary",
        primary="10.128.0.6",
    ),
    Row("IPv6 alone", "ipv6-only", on("eth0") | SIX, "the route to the primary", primary="fdaa:0:1::4"),
    Row(
        "both families, and the primary has an IPv4 address",
        machine(link("eth0", "10.0.0.2/24", "fd00::2/64"), routes=TO_PRIMARY),
        on("eth0") | DUAL,
        "the route to the primary",
    ),
    Row(
        "both families, and the primary has an IPv6 address",
        machine(link("eth0", "10.0.0.2/24", "fd00::2/64"), routes=(("fd00::1", "fd00::2"),)),
        on("eth0") | SIX,
        "the route to the primary",
        primary="fd00::1",
    ),
    Row(
        "a name with A and AAAA: the route that was asked for decides, IPv4 is spoken",
        machine(link("ens1", "10.0.0.2/24", "fd00::2/64"), INTERNET, routes=(("node-0", "10.0.0.2"),)),
        on("ens1") | DUAL,
        "the route to the primary node-0",
        {"eth0": NOT_THE_WAY},
        primary="node-0",
    ),
    Row(
        "a name that nothing is known of, on a machine with one way out",
        "slurm-step",
        on("eno1"),
        "the only interface that can reach other nodes",
        primary="gpu003",
    ),
    Row(
        "the primary's own name is 127.0.1.1, as Debian has it",
        machine(ENS1, DOCKER0, routes=(("node-0", "127.0.0.1"),)),
        on("ens1"),
        "the only interface",
        {"docker0": "a bridge"},
        "node-0",
        {"node_rank": 0},
    ),
    Row(
        "two interfaces in one network: the kernel sends through one of them",
        machine(link("ens2", "10.0.0.3/24", speed=100000), ENS1, routes=TO_PRIMARY),
        on("ens1"),
        "the route to the primary",
        {"ens2": "in one network with ens1"},
    ),
    Row(
        "169.254 on a BMC's USB link, and a cloud's metadata address",
        machine(ENS1, link("usb0", "169.254.3.1/24"), link("nodelocaldns", "169.254.20.10/32", kind="virtual")),
        on("ens1"),
        "the only interface",
        {"usb0": "link-local", "nodelocaldns": "link-local"},
    ),
    Row(
        "a host that bridges its own port has its address on the bridge",
        machine(
            link("eno1", master="br0", speed=10000),
            link("br0", "10.0.0.2/24", kind="bridge"),
            link("virbr0", "192.168.122.1/24", kind="bridge"),
            routes=TO_PRIMARY,
        ),
        on("br0"),
        "the route to the primary",
        {"eno1": "part of br0", "virbr0": "a bridge without a real port"},
    ),
    Row(
        "a platform's word, where nothing better is known",
        "vast-overlay",
        on("eth1"),
        "named by the platform",
        {"eth0": NOT_THE_WAY},
        "algo-1",
        {"hint": "eth1"},
    ),
    Row(
        "a platform's word against the route",
        "vast-overlay",
        on("eth0"),
        "the route to the primary",
        {"eth1": NOT_THE_WAY},
        "10.0.3.5",
        {"hint": "eth1"},
    ),
    Row(
        "names differ on the other node: each looks at its own machine only",
        machine(link("enp1s0", "10.0.0.7/24"), INTERNET, routes=(("10.0.0.1", "10.0.0.7"),)),
        on("enp1s0"),
        "the route to the primary",
        {"eth0": NOT_THE_WAY},
    ),
    Row(
        "100 Gbit/s at Amazon: NCCL has numbers of its own for that NIC",
        machine(link("ens5", "10.0.0.2/24", speed=100000, vendor="0x1d0f"), routes=TO_PRIMARY),
        on("ens5"),
        "the route to the primary",
        told={"gpus": 8},
    ),
    Row(
        "measured: the internet side is slow and is left out, the rails are used together",
        machine(INTERNET, ENS1, link("ens2", "10.0.1.2/24")),
        on("ens2", "ens1"),
        "2 rails that all nodes have, measured: 11000 Mbit/s each",
        {"eth0": "reaches its peer, 18 Mbit/s"},
        told={
            "measured": measured(
                ("ens1", "10.0.0.0/24", 11000), ("ens2", "10.0.1.0/24", 12000), ("eth0", "172.18.0.0/16", 18)
            )
        },
    ),
    Row(
        "measured: a rail of less than half the speed would slow the others down",
        machine(ENS1, link("ens2", "10.0.1.2/24")),
        on("ens1"),
        "fastest of what reaches all nodes, measured: 11000 Mbit/s",
        {"ens2": "4000 Mbit/s"},
        told={"measured": measured(("ens1", "10.0.0.0/24", 11000), ("ens2", "10.0.1.0/24", 4000))},
    ),
    Row(
        "measured: the route is right for UDP, and TCP is filtered there",
        machine(ENS1, INTERNET, routes=TO_PRIMARY),
        on("eth0"),
        "fastest of what reaches all nodes",
        {"ens1": "does not reach node 0 (timed out after 2 s)"},
        told={
            "measured": measured(
                ("eth0", "172.18.0.0/16", 900), ens1=dead("ens1", "10.0.0.0/24", detail="timed out after 2 s")
            )
        },
    ),
    Row(
        "measured: MTU 9000 here and 1450 on the way, so that only small payloads arrive",
        machine(link("ens1", "10.0.0.2/24", mtu=9000), link("ens2", "10.0.1.2/24", mtu=1450), routes=TO_PRIMARY),
        on("ens2"),
        "fastest of what reaches all nodes",
        {"ens1": "large packets do not arrive"},
        told={
            "measured": measured(
                ("ens2", "10.0.1.0/24", 900),
                ens1=dead("ens1", "10.0.0.0/24", reached=(0,), missed=(), large_passes=False),
            )
        },
    ),
    Row(
        "measured: up here, missing on the other node, so it is no rail",
        machine(ENS1, link("ens2", "10.0.1.2/24")),
        on("ens1"),
        "fastest of what reaches all nodes",
        {"ens2": "does not reach node 0"},
        told={"measured": measured(("ens1", "10.0.0.0/24", 900), ens2=dead("ens2", "10.0.1.0/24"))},
    ),
    Row(
        "measured: nodes routed from networks of their own share no rail, each takes its fastest one",
        machine(ENS1, link("ens2", "10.0.1.2/24")),
        on("ens2"),
        "fastest of what reaches all nodes",
        {"ens1": "900 Mbit/s"},
        told={"measured": measured(("ens1", "10.0.0.0/24", 900), ("ens2", "10.0.1.0/24", 950), rails=False)},
    ),
    Row(
        "measured: with RDMA for the data one interface is enough to meet",
        machine(ENS1, link("ens2", "10.0.1.2/24"), rdma=(hca("mlx5_0"),)),
        on("ens2"),
        "fastest of what reaches all nodes",
        {"ens1": "11000 Mbit/s"},
        told={
            "measured": measured(("ens1", "10.0.0.0/24", 11000), ("ens2", "10.0.1.0/24", 12000)),
            "gpus": 8,
        },
    ),
    Row(
        "measured: seventeen rails, of which NCCL takes sixteen",
        machine(*SEVENTEEN),
        on(*(f"ens{n}" for n in range(16))) | FOUR_SOCKETS,
        "16 rails that all nodes have",
        {"ens16": "9000 Mbit/s"},
        told={"measured": measured(*((f"ens{n}", f"10.0.{n}.0/24", 9000) for n in range(17))), "gpus": 8},
    ),
    Row(
        "measured without a sample of speed: the first that reaches all, and no guess at several",
        machine(ENS1, link("ens2", "10.0.1.2/24")),
        on("ens1"),
        "fastest of what reaches all nodes",
        {"ens2": "reaches its peer"},
        told={"measured": measured(("ens1", "10.0.0.0/24", None), ("ens2", "10.0.1.0/24", None))},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.about)
def test_a_machine_gets_its_interfaces_settings_and_reasons(row):
    told = dict(row.told)
    network = chosen(row.facts, hint=told.pop("hint", None), primary_address=row.primary, **told)
    assert settings(network) == row.expected
    assert row.reason in network.reason
    assert all(setting.reason for setting in network.settings)
    rejected = dict(network.rejected)
    assert {name for name in rejected if name != "lo"} == set(row.rejected)
    assert [name for name, why in row.rejected.items() if why not in rejected[name]] == []
    seen = replay_facts(MACHINES / row.facts) if isinstance(row.facts, str) else row.facts
    assert {one.name for one in seen.interfaces} == {*network.interfaces, *rejected}
    assert network.findings == ()


@pytest.mark.parametrize(
    ("facts", "primary"),
    [
        ("tunnels", "100.101.102.104"),
        ("prefix-names", "203.0.113.9"),
        ("runpod-cluster", "not-resolved-yet"),
        (machine(), "10.0.0.1"),
        (
            machine(DOCKER0, link("wg0", "10.9.0.2/24", kind="tunnel")),
            "10.9.0.1",
        ),
        (machine(link("veth1", "fe80::1/64", kind="veth")), "10.0.0.1"),
        (machine(ENS1, routes=(("node-0", "127.0.0.1"),)), "node-0"),  # of another node that is a mistake
    ],
)
def test_several_nodes_without_a_way_to_the_primary_are_refused(facts, primary):
    with pytest.raises(MachineError, match="2 nodes") as caught:
        chosen(facts, primary_address=primary)
    assert primary in caught.value.problem
    assert "TRAIN_INTERFACE" in caught.value.fix


def test_where_nothing_was_measured_to_reach_all_each_interface_is_named_with_its_peers():
    found = Measurements((dead("ens1", "10.0.0.0/24"), dead("eth0", "172.18.0.0/16", missed=(0, 3), detail="refused")))
    with pytest.raises(
        NodesError, match="ens1 does not reach node 0; eth0 does not reach node 0, node 3 \\(refused\\)"
    ):
        chosen(machine(ENS1, INTERNET), primary_address="10.0.0.1", measured=found)
    with pytest.raises(NodesError, match="no interface could be tried"):
        chosen(machine(ENS1), primary_address="10.0.0.1", measured=Measurements(()))


def test_what_leads_to_the_primary_is_tried_first_then_what_is_fast():
    facts = machine(
        INTERNET,
        link("ens3", "10.0.3.2/24"),
        link("ens2", "10.0.2.2/24", speed=100000),
        link("ens4", "10.0.4.2/24", mtu=9000),
        ENS1,
        routes=TO_PRIMARY,
    )
    found = candidates(facts, replace(TWO_NODES, primary_address="10.0.0.1"), hint="ens3")
    assert [(one.name, one.leads) for one in found.usable] == [
        ("ens1", True),
        ("ens3", True),
        ("ens2", False),
        ("ens4", False),
        ("eth0", False),
    ]
    assert (found.usable[0].address, found.usable[0].network) == ("10.0.0.2", "10.0.0.0/24")
    assert dict(found.rejected) == {"lo": "leads to no other node"}


def test_an_address_to_be_reached_at_is_of_the_primarys_family_and_the_one_that_was_told():
    facts = machine(link("ens1", "10.0.0.2/24", "10.0.9.2/24", "fd00::2/64", "fe80::2/64"))

    def address(**told: Any) -> tuple[str, str]:
        (one,) = candidates(facts, replace(TWO_NODES, **told)).usable
        return one.address, one.network

    assert address(primary_address="fd00::1") == ("fd00::2", "fd00::/64")
    assert address(primary_address="node-0") == ("10.0.0.2", "10.0.0.0/24")
    assert address(primary_address="10.0.9.1", node_address="10.0.9.2") == ("10.0.9.2", "10.0.9.0/24")


def test_a_process_that_runs_already_may_have_no_known_interface():
    network = chosen("runpod-cluster", primary_address="not-resolved-yet", must_be_known=False)
    assert (network.interfaces, network.settings) == ((), ())
    assert "not-resolved-yet" in network.reason


@pytest.mark.parametrize(("backend", "facts"), [("gloo", "laptop"), ("nccl", "runpod-cluster")])
def test_one_node_needs_loopback_for_gloo_and_nothing_for_nccl(backend, facts):
    network = chosen(facts, nodes=1, node_rank=0, primary_address="127.0.0.1")
    assert network.backend == backend
    assert settings(network) == {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize("primary", ["127.0.0.1", "::1", "localhost"])
def test_nodes_that_meet_on_loopback_are_one_machine(primary):
    assert settings(chosen("runpod-cluster", primary_address=primary)) == {"GLOO_SOCKET_IFNAME": "lo"}


ONE_NODE = {"nodes": 1, "node_rank": 0, "primary_address": "127.0.0.1"}


def test_a_person_may_insist_on_one_node_too():
    network = chosen("runpod-cluster", hint="ens1", insisted=True, **ONE_NODE)
    assert settings(network) == on("ens1") | FOUR_SOCKETS
    with pytest.raises(SettingError, match="TRAIN_INTERFACE='ens99'"):
        chosen("runpod-cluster", hint="ens99", insisted=True, **ONE_NODE)


@pytest.mark.parametrize(
    ("facts", "name"), [("runpod-cluster", "lo"), ("veth-link-local", "veth8a1f0c2"), ("veth-link-local", "ens2")]
)
def test_insisting_does_not_make_an_interface_reach_other_nodes(facts, name):
    with pytest.raises(SettingError, match=f"TRAIN_INTERFACE: {name} cannot reach other nodes"):
        chosen(facts, primary_address="10.65.0.3", hint=name, insisted=True)


def test_a_person_may_insist_and_is_stopped_when_wrong():
    network = chosen("tunnels", primary_address="100.101.102.104", hint="wg0", insisted=True)
    assert settings(network)["NCCL_SOCKET_IFNAME"] == "=wg0"
    assert settings(chosen("runpod-cluster", hint="ens1, ens2", insisted=True))["GLOO_SOCKET_IFNAME"] == "ens1,ens2"
    with pytest.raises(SettingError, match="TRAIN_INTERFACE='eth9'") as caught:
        chosen("tunnels", primary_address="192.168.7.3", hint="eth9", insisted=True)
    assert "enp5s0 192.168.7.2/24" in caught.value.problem


def test_insisting_wins_over_what_was_measured_unless_that_cannot_work():
    found = measured(("ens1", "10.0.0.0/24", 20), ("ens2", "10.0.1.0/24", 9000))
    facts, told = machine(ENS1, link("ens2", "10.0.1.2/24")), {"hint": "ens1", "insisted": True}
    assert chosen(facts, measured=found, primary_address="10.0.0.1", **told).interfaces == ("ens1",)
    dead_end = Measurements((dead("ens1", "10.0.0.0/24"),))
    with pytest.raises(SettingError, match="TRAIN_INTERFACE='ens1': ens1 does not reach node 0"):
        chosen(facts, measured=dead_end, primary_address="10.0.0.1", **told)


def test_insisting_wins_over_a_platforms_variable():
    own = {"NCCL_SOCKET_IFNAME": "eth0"}
    network = chosen("runpod-cluster", own, hint="ens1", insisted=True, primary_address="10.65.0.3")
    assert settings(network)["NCCL_SOCKET_IFNAME"] == "=ens1"
    assert [f.text for f in network.findings] == [
        "NCCL_SOCKET_IFNAME=eth0 is not what TRAIN_INTERFACE says; replaced by =ens1"
    ]


RUNPOD = {"node_address": "10.65.0.2", "primary_address": "10.65.0.3"}


@pytest.mark.parametrize(
    ("name", "given", "taken", "said"),
    [
        ("NCCL_SOCKET_IFNAME", "=ens1", None, None),
        ("NCCL_SOCKET_IFNAME", "ens1", None, None),
        ("NCCL_SOCKET_IFNAME", " ens1 ", None, None),
        ("NCCL_SOCKET_IFNAME", "", "=ens1", None),
        ("NCCL_SOCKET_IFNAME", "eth0", None, "the plan would take =ens1"),
        ("NCCL_SOCKET_IFNAME", "ens", None, "it selects ens1, ens2"),
        ("NCCL_SOCKET_IFNAME", "ens1,ens2", None, "it selects ens1, ens2;"),
        ("NCCL_SOCKET_IFNAME", "ens1,ens99", None, "names ens99, which is not here"),
        ("NCCL_SOCKET_IFNAME", "=ens1,en", None, "names en, which is not here"),
        ("NCCL_SOCKET_IFNAME", "enp1s0", "=ens1", "NCCL_SOCKET_IFNAME=enp1s0 matches no interface here"),
        ("NCCL_SOCKET_IFNAME", "^docker0", "=ens1", "lets lo be taken"),
        ("GLOO_SOCKET_IFNAME", "ens1", None, None),
        ("GLOO_SOCKET_IFNAME", "ens2", None, "the plan would take ens1"),
        ("GLOO_SOCKET_IFNAME", "=ens1", "ens1", "matches no interface here"),
        ("GLOO_SOCKET_IFNAME", "ens", "ens1", "matches no interface here"),
        ("GLOO_SOCKET_IFNAME", "ens1,ens99", "ens1", "names ens99"),
        ("GLOO_SOCKET_IFNAME", "lo", "ens1", "lets lo be taken"),
        ("TP_SOCKET_IFNAME", "ens1", None, None),
        ("TP_SOCKET_IFNAME", "ens1,ens2", "ens1", "tensorpipe takes one name"),
        ("NCCL_SOCKET_FAMILY", "AF_INET", None, None),
        ("NCCL_SOCKET_FAMILY", "AF_INET6", "AF_INET", "finds no address on ens1"),
        ("NCCL_SOCKET_NTHREADS", "2", None, None),
        ("NCCL_P2P_DISABLE", "1", None, "NCCL_P2P_DISABLE=1 is for finding a fault"),
        ("NCCL_P2P_DISABLE", "0", None, None),
        ("NCCL_SHM_DISABLE", "1", None, "NCCL_SHM_DISABLE=1 is for finding a fault"),
    ],
)
def test_a_value_from_outside_wins_unless_it_cannot_work_here(name, given, taken, said):
    network = chosen("runpod-cluster", {name: given}, **RUNPOD)
    assert settings(network).get(name) == taken
    texts = [finding.text for finding in network.findings]
    assert len(texts) == (said is not None)
    assert all(said in text and given in text for text in texts)


def test_a_list_is_read_name_by_name_and_keeps_what_is_here():
    """nic-12: the value itself stays, since NCCL passes over a name that is not here; gloo would stop at it."""
    given = "ens2,ens1,ens99"
    network = chosen("runpod-cluster", {"NCCL_SOCKET_IFNAME": given, "GLOO_SOCKET_IFNAME": given}, **RUNPOD)
    assert "NCCL_SOCKET_IFNAME" not in settings(network)
    assert settings(network)["GLOO_SOCKET_IFNAME"] == "ens1"
    assert [finding.text for finding in network.findings] == [
        f"NCCL_SOCKET_IFNAME={given} names ens99, which is not here",
        f"NCCL_SOCKET_IFNAME={given} is yours and wins: it selects ens1, ens2; the plan would take =ens1",
        f"GLOO_SOCKET_IFNAME={given} names ens99, which is not here; replaced by ens1",
    ]


def test_a_platforms_name_gives_way_to_who_owns_the_nodes_address_for_gloo_too():
    """nic-02: another image calls the same card another name."""
    facts = machine(INTERNET, link("enp1s0", "10.65.0.2/24"))
    network = chosen(facts, {"NCCL_SOCKET_IFNAME": "ens1", "GLOO_SOCKET_IFNAME": "ens1"}, **RUNPOD)
    assert settings(network).items() >= on("enp1s0").items()
    assert [finding.text.partition(" matches")[0] for finding in network.findings] == [
        "NCCL_SOCKET_IFNAME=ens1",
        "GLOO_SOCKET_IFNAME=ens1",
    ]
    assert all(f"replaced by {value}" in network.findings[at].text for at, value in enumerate(("=enp1s0", "enp1s0")))


@pytest.mark.parametrize(
    ("given", "taken", "said"),
    [
        ("ens2", "=ens1", "selects ens2 (down, or without a carrier)"),
        ("veth", "=ens1", "no address but a link-local one"),
        ("ens", None, "it selects ens1, ens2 (down, or without a carrier)"),
    ],
)
def test_a_value_that_selects_dead_links_only_is_replaced(given, taken, said):
    network = chosen("veth-link-local", {"NCCL_SOCKET_IFNAME": given}, primary_address="10.5.0.4")
    assert settings(network).get("NCCL_SOCKET_IFNAME") == taken
    (finding,) = network.findings
    assert said in finding.text


def test_a_value_that_was_measured_to_miss_a_node_is_replaced():
    found = measured(("ens1", "10.0.0.0/24", 900), eth0=dead("eth0", "172.18.0.0/16"))
    own = {"NCCL_SOCKET_IFNAME": "eth0"}
    network = chosen(machine(ENS1, INTERNET), own, primary_address="10.0.0.1", measured=found)
    assert settings(network)["NCCL_SOCKET_IFNAME"] == "=ens1"
    assert "NCCL_SOCKET_IFNAME=eth0 selects eth0, which does not reach node 0; replaced by =ens1" in (
        network.findings[0].text
    )


def conf(**values: str) -> Facts:
    lines = tuple(FileSetting(name, value, "/etc/nccl.conf") for name, value in values.items())
    return replace(replay_facts(MACHINES / "runpod-cluster"), nccl_conf=lines)


def test_nccls_own_file_is_from_outside_too_and_is_named():
    network = chosen(conf(NCCL_SOCKET_IFNAME="=ens1"), **RUNPOD)
    assert "NCCL_SOCKET_IFNAME" not in settings(network)
    network = chosen(conf(NCCL_SOCKET_IFNAME="eth9"), **RUNPOD)
    assert settings(network)["NCCL_SOCKET_IFNAME"] == "=ens1"
    assert "NCCL_SOCKET_IFNAME=eth9 (/etc/nccl.conf) matches no interface here" in network.findings[0].text
    assert "GLOO_SOCKET_IFNAME" in settings(chosen(conf(GLOO_SOCKET_IFNAME="eth9"), **RUNPOD))  # gloo reads no file


def test_the_environment_goes_before_nccls_files():
    network = chosen(conf(NCCL_SOCKET_IFNAME="eth9"), {"NCCL_SOCKET_IFNAME": "ens1"}, **RUNPOD)
    assert network.findings == ()
    assert "NCCL_SOCKET_IFNAME" not in settings(network)


NAMES = ("lo", "ens1", "ens10", "ens1f0", "bond0", "bond0.29", "docker0")


@pytest.mark.parametrize(
    ("value", "selected"),
    [
        ("ens1", ["ens1", "ens10", "ens1f0"]),
        ("=ens1", ["ens1"]),
        ("=ens1,bond0", ["ens1", "bond0"]),
        ("bond0", ["bond0", "bond0.29"]),
        ("^docker,lo", ["ens1", "ens10", "ens1f0", "bond0", "bond0.29"]),
        ("^=ens1", ["lo", "ens10", "ens1f0", "bond0", "bond0.29", "docker0"]),
        ("ens1,=ens10", ["ens1", "ens10", "ens1f0"]),
        ("", []),
        ("=", []),
        ("^", []),
        (",", []),
    ],
)
def test_names_are_matched_as_nccl_matches_them(value, selected):
    assert matched(value, NAMES) == selected
