"""Interfaces, HCAs and routes: what the kernel says, and what /sys may add."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.capture import replay
from entrypoint.facts import FileSetting, Interface
from entrypoint.probe_machine import THIS_MACHINE, Files, Link
from entrypoint.probe_network import read_interfaces, read_nccl_conf, read_rdma, read_routes

MACHINES = Path(__file__).parents[1] / "machines"


def interface_of(machine: str, name: str) -> Interface:
    return next(one for one in read_interfaces(replay(MACHINES / machine)) if one.name == name)


@pytest.mark.parametrize(
    ("machine", "name", "kind", "speed"),
    [
        ("container-two-cores", "eth0", "veth", None),  # says 10000
        ("cloud-vm-virtio", "ens3", "physical", None),  # says -1
        ("veth-link-local", "ens2", "physical", None),  # says nothing without a carrier
        ("prefix-names", "docker0", "bridge", None),  # says the speed of its veths
        ("tunnels", "tailscale0", "tunnel", None),
        ("tunnels", "wg0", "tunnel", None),
        ("vm-cgroup-v1", "ifb0", "virtual", None),
        ("vm-cgroup-v1", "lo", "loopback", None),
        ("laptop", "wlan0", "physical", None),
        ("slurm-step", "eno1", "physical", 10000),
        ("bond-and-vlan", "bond0", "bond", 50000),
        ("bond-and-vlan", "bond0.100", "vlan", 50000),
        ("h100-infiniband", "ibs0", "infiniband", 400000),
        ("ipv6-only", "eth0", "unknown", None),  # neither a driver nor /sys
    ],
)
def test_only_links_that_know_their_speed_have_one(machine: str, name: str, kind: str, speed: int | None) -> None:
    interface = interface_of(machine, name)
    assert (interface.kind, interface.mbit_per_second) == (kind, speed)


@pytest.mark.parametrize(
    ("machine", "name", "up"),
    [("veth-link-local", "ens1", True), ("veth-link-local", "ens2", False), ("laptop", "docker0", False)],
)
def test_up_needs_a_carrier(machine: str, name: str, up: bool) -> None:
    assert interface_of(machine, name).up is up


def test_slaves_have_a_master() -> None:
    masters = {one.name: one.master for one in read_interfaces(replay(MACHINES / "bond-and-vlan"))}
    assert masters == {"lo": None, "eno1": "bond0", "eno2": "bond0", "bond0": None, "bond0.100": None}


def test_the_sysfs_of_another_namespace_is_not_believed() -> None:
    eth0 = interface_of("sysfs-of-the-host", "eth0")
    assert (eth0.kind, eth0.mbit_per_second, eth0.master) == ("veth", None, None)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"uevent": "DEVTYPE=vlan\nIFINDEX=7"}, "vlan"),
        ({"uevent": "DEVTYPE=bridge\nIFINDEX=7"}, "bridge"),
        ({"uevent": "DEVTYPE=wlan\nIFINDEX=7", "device": ""}, "physical"),
        ({"uevent": "IFINDEX=7", "type": "32", "device": ""}, "infiniband"),
        ({"uevent": "IFINDEX=7", "type": "65534"}, "tunnel"),
        ({"uevent": "IFINDEX=7", "type": "1"}, "virtual"),
        ({"uevent": "IFINDEX=8", "device": ""}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_sysfs_tells_the_kind_where_the_driver_is_silent(files: dict[str, str], kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/net/x0"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder.parent / "bonding_masters").write_text("")
    machine = replace(THIS_MACHINE, files=Files(tmp_path), links=lambda: (Link(index=7, name="x0"),))
    assert read_interfaces(machine)[0].kind == kind


def test_an_hca_without_its_device_is_listed_but_not_usable() -> None:
    (port,) = read_rdma(replay(MACHINES / "rdma-without-device"))
    assert (port.device, port.active, port.usable) == ("mlx5_0", True, False)


@pytest.mark.parametrize(
    ("devices", "usable"),
    [(None, False), ((), False), (("rdma_cm",), False), (("uverbs1",), False), (("rdma_cm", "uverbs0"), True)],
    ids=["no folder", "an empty folder", "the manager alone", "another HCA's", "its own"],
)
def test_an_hca_is_usable_where_its_own_device_opens(
    devices: tuple[str, ...] | None, usable: bool, tmp_path: Path
) -> None:
    shutil.copytree(MACHINES / "rdma-without-device/sys", tmp_path / "sys")
    if devices is not None:
        (tmp_path / "dev/infiniband").mkdir(parents=True)
        for name in devices:
            (tmp_path / "dev/infiniband" / name).touch()
    machine = replace(
        THIS_MACHINE, files=Files(tmp_path), opens=lambda device: THIS_MACHINE.opens(f"{tmp_path}{device}")
    )
    assert [port.usable for port in read_rdma(machine)] == [usable]


def test_hcas_come_in_the_order_of_their_numbers() -> None:
    devices = [port.device for port in read_rdma(replay(MACHINES / "h100-infiniband"))]
    assert devices[-3:] == ["mlx5_9", "mlx5_10", "mlx5_11"]


def test_an_hca_knows_its_interface_by_gid_or_by_pci_function() -> None:
    ports = {port.device: port for port in read_rdma(replay(MACHINES / "h100-infiniband"))}
    assert [(ports[name].link_layer, ports[name].interface) for name in ("mlx5_1", "mlx5_0", "mlx5_7")] == [
        ("Ethernet", "eth0"),
        ("InfiniBand", "ibs0"),
        ("Ethernet", None),
    ]


@pytest.mark.parametrize("target", ["localhost", "", "10.0.0", "[::1]", "127.0.0.1:80", "255.255.255.255", "\0"])
def test_only_numeric_addresses_with_a_route_have_a_source(target: str) -> None:
    assert read_routes(THIS_MACHINE, (target,)) == ()


def test_a_route_is_asked_for_once() -> None:
    assert read_routes(THIS_MACHINE, ("127.0.0.2", "127.0.0.2")) == (("127.0.0.2", "127.0.0.1"),)


def test_nccls_files_are_read_as_nccl_reads_them(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "home/ada").mkdir(parents=True)
    (tmp_path / "etc/nccl.conf").write_text(
        "# a comment\nNCCL_TOPO_FILE=/opt/topo.xml\n #NCCL_X=1\nno sign\nNCCL_Y = 2\n"
    )
    (tmp_path / "home/ada/.nccl.conf").write_text("NCCL_SOCKET_IFNAME==ens1,ens2\n")
    (tmp_path / "own.conf").write_text("NCCL_IB_HCA=mlx5_0\n")
    machine = replace(THIS_MACHINE, files=Files(tmp_path), home=lambda: "/home/ada")
    for_all = [
        FileSetting("NCCL_TOPO_FILE", "/opt/topo.xml", "/etc/nccl.conf"),
        FileSetting(" #NCCL_X", "1", "/etc/nccl.conf"),
        FileSetting("NCCL_Y ", " 2", "/etc/nccl.conf"),
    ]
    of_home = FileSetting("NCCL_SOCKET_IFNAME", "=ens1,ens2", "/home/ada/.nccl.conf")
    assert list(read_nccl_conf(machine, None)) == [of_home, *for_all]
    assert list(read_nccl_conf(machine, "/own.conf")) == [FileSetting("NCCL_IB_HCA", "mlx5_0", "/own.conf"), *for_all]
    assert list(read_nccl_conf(replace(machine, home=lambda: None), None)) == for_all


def test_this_machine_has_a_home_and_a_boot_id() -> None:
    assert THIS_MACHINE.home()
    assert THIS_MACHINE.files.read("/proc/sys/kernel/random/boot_id")
