"""The interface of each machine in tests/machines, and what becomes of a value that came from outside."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.capture import replay_facts
from entrypoint.cluster import Cluster
from entrypoint.errors import MachineError, SettingError
from entrypoint.network import Network, choose_network, matched

MACHINES = Path(__file__).resolve().parents[1] / "machines"
TWO_NODES = Cluster("none", 2, 1, 8, 16, None, 29500, None, (), {})


def chosen(machine: str, own: dict[str, str] | None = None, hint: str | None = None, **cluster: object) -> Network:
    insisted, known = bool(cluster.pop("insisted", False)), bool(cluster.pop("must_be_known", True))
    facts = replay_facts(MACHINES / machine)
    told = replace(TWO_NODES, **cluster)  # type: ignore[arg-type]
    return choose_network(
        told, facts, own or {}, gpus=len(facts.gpus or ()), hint=hint, insisted=insisted, must_be_known=known
    )


def settings(network: Network) -> dict[str, str]:
    return {setting.name: setting.value for setting in network.settings}


@pytest.mark.parametrize(
    ("machine", "told", "interface"),
    [
        ("runpod-cluster", {"node_address": "10.65.0.2", "primary_address": "10.65.0.3"}, "ens1"),
        ("runpod-cluster", {"primary_address": "10.65.0.3"}, "ens1"),
        ("runpod-cluster", {"primary_address": "10.65.0.2", "node_rank": 0}, "ens1"),
        ("vast-overlay", {"primary_address": "10.0.3.5"}, "eth0"),
        ("coreweave-pod", {"primary_address": "10.240.7.20"}, "eth0"),
        ("h100-infiniband", {"primary_address": "10.1.0.12"}, "eth0"),
        ("bond-and-vlan", {"primary_address": "10.3.0.8"}, "bond0"),
        ("bond-and-vlan", {"primary_address": "10.3.100.8"}, "bond0.100"),
        ("prefix-names", {"primary_address": "10.65.0.3"}, "ens1"),
        ("veth-link-local", {"primary_address": "10.5.0.4"}, "ens1"),
        ("tunnels", {"primary_address": "192.168.7.3"}, "enp5s0"),
        ("laptop", {"primary_address": "192.168.1.40"}, "wlan0"),
        ("cloud-vm-virtio", {"primary_address": "10.128.0.6"}, "ens3"),
        ("ipv6-only", {"primary_address": "fdaa:0:1::4"}, "eth0"),
        ("slurm-step", {"primary_address": "gpu003"}, "eno1"),
    ],
)
def test_the_interface_is_the_one_that_leads_to_the_primary(machine, told, interface):
    network = chosen(machine, **told)
    assert network.interfaces == (interface,)
    assert settings(network)["NCCL_SOCKET_IFNAME"] == f"={interface}"
    assert settings(network)["GLOO_SOCKET_IFNAME"] == interface
    assert network.reason
    names = {i.name for i in replay_facts(MACHINES / machine).interfaces}
    assert {name for name, why in network.rejected if why} == names - {interface}


def test_nccl_is_told_of_ipv6_where_there_is_nothing_else():
    assert settings(chosen("ipv6-only", primary_address="fdaa:0:1::4"))["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert "NCCL_SOCKET_FAMILY" not in settings(chosen("laptop", primary_address="192.168.1.40"))


@pytest.mark.parametrize(
    ("machine", "primary"),
    [("tunnels", "100.101.102.104"), ("prefix-names", "203.0.113.9"), ("runpod-cluster", "not-resolved-yet")],
)
def test_several_nodes_without_a_way_to_the_primary_are_refused(machine, primary):
    with pytest.raises(MachineError, match="2 nodes") as caught:
        chosen(machine, primary_address=primary)
    assert primary in caught.value.problem
    assert "TRAIN_INTERFACE" in caught.value.fix


def test_rdma_that_cannot_be_opened_is_switched_off_unless_the_person_decided():
    two = {"primary_address": "172.17.0.9", "node_address": "172.17.0.2"}
    assert settings(chosen("rdma-without-device", **two))["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_DISABLE" not in settings(chosen("rdma-without-device", {"NCCL_IB_DISABLE": "0"}, **two))
    assert "NCCL_IB_DISABLE" not in settings(chosen("h100-infiniband", primary_address="10.1.0.12"))


def test_a_process_that_runs_already_may_have_no_known_interface():
    network = chosen("runpod-cluster", primary_address="not-resolved-yet", must_be_known=False)
    assert (network.interfaces, network.settings) == ((), ())
    assert "not-resolved-yet" in network.reason


@pytest.mark.parametrize(("backend", "machine"), [("gloo", "laptop"), ("nccl", "runpod-cluster")])
def test_one_node_needs_loopback_for_gloo_and_nothing_for_nccl(backend, machine):
    network = chosen(machine, nodes=1, node_rank=0, primary_address="127.0.0.1")
    assert network.backend == backend
    assert settings(network) == {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize("primary", ["127.0.0.1", "::1", "localhost"])
def test_nodes_that_meet_on_loopback_are_one_machine(primary):
    assert settings(chosen("runpod-cluster", primary_address=primary)) == {"GLOO_SOCKET_IFNAME": "lo"}


def test_a_person_may_insist_on_one_node_too():
    network = chosen("runpod-cluster", nodes=1, node_rank=0, primary_address="127.0.0.1", hint="ens1", insisted=True)
    assert settings(network) == {"NCCL_SOCKET_IFNAME": "=ens1", "GLOO_SOCKET_IFNAME": "ens1"}
    with pytest.raises(SettingError, match="TRAIN_INTERFACE='ens99'"):
        chosen("runpod-cluster", nodes=1, node_rank=0, primary_address="127.0.0.1", hint="ens99", insisted=True)


@pytest.mark.parametrize(("machine", "name"), [("runpod-cluster", "lo"), ("veth-link-local", "veth8a1f0c2")])
def test_insisting_does_not_make_an_interface_reach_other_nodes(machine, name):
    with pytest.raises(SettingError, match=f"TRAIN_INTERFACE: {name} cannot reach other nodes"):
        chosen(machine, primary_address="10.65.0.3", hint=name, insisted=True)


def test_a_person_may_insist_and_is_stopped_when_wrong():
    network = chosen("tunnels", primary_address="100.101.102.104", hint="wg0", insisted=True)
    assert settings(network)["NCCL_SOCKET_IFNAME"] == "=wg0"
    assert settings(chosen("runpod-cluster", hint="ens1, ens2", insisted=True))["GLOO_SOCKET_IFNAME"] == "ens1,ens2"
    with pytest.raises(SettingError, match="TRAIN_INTERFACE='eth9'") as caught:
        chosen("tunnels", primary_address="192.168.7.3", hint="eth9", insisted=True)
    assert "enp5s0 192.168.7.2/24" in caught.value.problem


def test_a_platforms_hint_decides_only_where_nothing_better_is_known():
    assert chosen("vast-overlay", hint="eth1", primary_address="algo-1").interfaces == ("eth1",)
    assert chosen("vast-overlay", hint="eth1", primary_address="10.0.3.5").interfaces == ("eth0",)


RUNPOD = {"node_address": "10.65.0.2", "primary_address": "10.65.0.3"}


@pytest.mark.parametrize(
    ("name", "given", "taken", "said"),
    [
        ("NCCL_SOCKET_IFNAME", "=ens1", None, None),
        ("NCCL_SOCKET_IFNAME", "ens1", None, None),
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
    ],
)
def test_a_value_from_outside_wins_unless_it_cannot_work_here(name, given, taken, said):
    network = chosen("runpod-cluster", {name: given}, **RUNPOD)
    assert settings(network).get(name) == taken
    texts = [finding.text for finding in network.findings]
    assert len(texts) == (said is not None)
    assert all(said in text and given in text for text in texts)


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
