"""What NCCL reports in its first lines, and when that is not what was planned."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.attempt import audit
from entrypoint.nccl_log import Used, compare, parse_nccl_log
from entrypoint.network import Network
from entrypoint.reasons import Setting

LOGS = Path(__file__).resolve().parents[1] / "nccl"


def used(name: str) -> Used:
    return parse_nccl_log((LOGS / f"{name}.log").read_text())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sockets-2.4", Used(None, ("ens3",), (), None, no_verbs=False)),
        ("roce-2.19", Used("enp220s0np0", (), ("mlx5_10:1", "mlx5_11:1"), "IB", no_verbs=False)),
        ("infiniband-2.18", Used("ib0", (), tuple(f"mlx5_{n}:1" for n in range(4)), "IB", no_verbs=False)),
        ("no-verbs-2.25", Used("ens49f1np1", ("ens49f1np1",), (), "Socket", no_verbs=True)),
        (
            "many-sockets-2.27",
            Used("enp6s0", ("enp6s0", "tailscale0", "br-2b7f015e8963"), (), "Socket", no_verbs=False),
        ),
        ("fastsocket", Used("ibs108", ("ibs108", "ibs109"), (), "FastSocket", no_verbs=False)),
    ],
)
def test_every_release_says_it_in_its_own_way(name, expected):
    assert used(name) == expected


@pytest.mark.parametrize(
    "text", ["", "step 3 loss 2.1\n", "NCCL INFO Bootstrap : Using\n", "NCCL INFO Using network\n"]
)
def test_a_text_without_the_lines_says_nothing(text):
    assert parse_nccl_log(text) == Used(None, (), (), None, no_verbs=False)
    assert list(compare(parse_nccl_log(text), ("ens1",), ("mlx5_0",))) == []


@pytest.mark.parametrize(
    ("name", "interfaces", "hcas", "said"),
    [
        ("sockets-2.4", ("ens3",), (), []),
        ("sockets-2.4", ("ens1",), (), ["NCCL sends data over ens3, the plan meant ens1"]),
        ("roce-2.19", ("enp220s0np0",), ("mlx5_10", "mlx5_11"), []),
        ("roce-2.19", ("enp220s0np0",), ("mlx5_10:1", "mlx5_11:1"), []),
        ("roce-2.19", ("enp220s0np0",), ("mlx5_10",), ["NCCL sends data through mlx5_11, the plan meant mlx5_10"]),
        ("roce-2.19", ("eth0",), ("mlx5_10", "mlx5_11"), ["NCCL meets the other ranks over enp220s0np0"]),
        ("infiniband-2.18", ("ib0",), (), ["through mlx5_0,mlx5_1,mlx5_2,mlx5_3, the plan meant no RDMA"]),
        ("no-verbs-2.25", ("ens49f1np1",), ("mlx5_0",), ["through sockets, the plan meant mlx5_0"]),
        (
            "many-sockets-2.27",
            ("enp6s0",),
            (),
            ["data over tailscale0,br-2b7f015e8963, the plan meant enp6s0"],
        ),
        ("many-sockets-2.27", (), (), []),  # no interface was planned: one node
        ("fastsocket", ("ibs108",), (), []),  # a plugin's own rails
    ],
)
def test_what_was_not_meant_is_told(name, interfaces, hcas, said):
    findings = list(compare(used(name), interfaces, hcas))
    assert len(findings) == len(said)
    assert all(part in finding.text for part, finding in zip(said, findings, strict=True))
    assert all(finding.level == "warn" for finding in findings)


def test_a_missing_library_is_named_with_the_packages_that_hold_it():
    (finding,) = compare(used("no-verbs-2.25"), ("ens49f1np1",), ("mlx5_0",))
    assert "libibverbs is missing" in finding.text
    assert "libibverbs1" in finding.fix


def test_only_names_that_we_set_are_compared():
    ours = (Setting("NCCL_SOCKET_IFNAME", "=ens1", ""),)
    network = Network("nccl", "", ("ens1",), "", None, (), ours, ())
    assert [finding.text for finding in audit(LOGS / "sockets-2.4.log", network)] == [
        "NCCL sends data over ens3, the plan meant ens1"
    ]
    assert audit(LOGS / "sockets-2.4.log", replace(network, settings=())) == []
    assert audit(LOGS / "none.log", network) == []
