"""Which HCAs carry the training, what a value from outside selects, and whether nodes may start together."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.capture import replay_facts
from entrypoint.facts import Facts, RdmaPort
from entrypoint.rdma import Rdma, choose_rdma, matched_hcas, rdma_settings, rdma_verdict

MACHINES = Path(__file__).resolve().parents[1] / "machines"


def facts(*ports: RdmaPort) -> Facts:
    return replace(replay_facts(MACHINES / "laptop"), rdma=ports)


def hca(device: str, port: int = 1, rate: float = 400, layer: str = "InfiniBand", **told: bool) -> RdmaPort:
    return RdmaPort(device, port, told.get("active", True), rate, layer, None, told.get("usable", True))


DGX = replay_facts(MACHINES / "h100-infiniband")
FAST = "=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11"


def applied(seen: Facts, **given: str) -> tuple[dict[str, str], list[str]]:
    settings, findings = rdma_settings(choose_rdma(seen, given), given, seen)
    return {one.name: one.value for one in settings}, [finding.text for finding in findings]


@pytest.mark.parametrize(
    ("seen", "given", "settings", "said"),
    [
        (facts(), {}, {}, None),
        (facts(hca("ibp0"), hca("ibp1")), {}, {}, None),  # all alike: NCCL finds them itself
        (DGX, {}, {"NCCL_IB_HCA": FAST}, None),
        (DGX, {"NCCL_IB_HCA": FAST}, {}, None),
        (DGX, {"NCCL_IB_HCA": "mlx5"}, {}, "NCCL_IB_HCA=mlx5 is yours and wins: it selects mlx5_0:1, mlx5_1:1"),
        (DGX, {"NCCL_IB_HCA": "ibp"}, {"NCCL_IB_HCA": FAST}, "NCCL_IB_HCA=ibp matches no HCA here (there are mlx5_0"),
        (DGX, {"NCCL_IB_DISABLE": "1"}, {}, "NCCL_IB_DISABLE=1 is yours and wins: 9 RDMA ports"),
        (DGX, {"NCCL_NET": "Socket"}, {"NCCL_IB_DISABLE": "1"}, "NCCL_NET=Socket is yours and wins"),
        (DGX, {"NCCL_IB_DISABLE": "0"}, {"NCCL_IB_HCA": FAST}, None),
        (facts(hca("mlx5_0", usable=False)), {}, {"NCCL_IB_DISABLE": "1"}, None),
        (facts(hca("mlx5_0", usable=False)), {"NCCL_IB_DISABLE": "0"}, {}, None),
        (facts(hca("rdmap0s6", layer="Unspecified")), {}, {}, "rdmap0s6 needs its vendor's"),
        (facts(hca("rdmap0s6", layer="Unspecified")), {"NCCL_NET_PLUGIN": "ofi"}, {}, None),
    ],
)
def test_nccl_is_told_what_it_would_not_find_out_itself(seen, given, settings, said):
    taken, texts = applied(seen, **given)
    assert taken == settings
    assert len(texts) == (said is not None)
    assert all(said in text for text in texts)


def test_where_a_device_is_shut_the_reason_has_the_flags_that_open_it():
    shut = facts(hca("mlx5_0", usable=False))
    settings, _ = rdma_settings(choose_rdma(shut, {}), {}, shut)
    assert "--device /dev/infiniband --cap-add IPC_LOCK" in settings[0].reason


PORTS = tuple(hca(f"mlx5_{n}", port) for n in (0, 1, 10) for port in (1, 2))


@pytest.mark.parametrize(
    ("value", "selected"),
    [
        ("mlx5_1", ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1", "mlx5_10:2"]),
        ("=mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("=mlx5_1:2", ["mlx5_1:2"]),
        ("=mlx5_0:1,mlx5_10:2", ["mlx5_0:1", "mlx5_10:2"]),
        ("^mlx5_1", ["mlx5_0:1", "mlx5_0:2"]),
        ("^=mlx5_1:1", ["mlx5_0:1", "mlx5_0:2", "mlx5_1:2", "mlx5_10:1", "mlx5_10:2"]),
        ("=mlx5", []),
        ("=mlx5_1:2:0:1", ["mlx5_1:2"]),  # rail and plane, since NCCL 2.30
    ],
)
def test_hcas_are_matched_as_nccl_matches_them(value, selected):
    assert [f"{device}:{port}" for device, port in matched_hcas(value, PORTS)] == selected


IB = Rdma(("mlx5_0",), "InfiniBand", 400, "1 x InfiniBand at 400 Gbit/s")
ROCE = Rdma(("mlx5_0",), "Ethernet", 100, "1 x RoCE at 100 Gbit/s")
NONE = Rdma((), None, 0, "this node has no HCA")


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([IB, IB], None),
        ([NONE, NONE], None),
        ([], None),
        ([IB], None),
        ([IB, NONE, IB], ("node 0, node 2 has RDMA", "node 1: this node has no HCA")),
        ([NONE, ROCE], ("node 1 has RDMA", "node 0: this node has no HCA")),
        ([IB, ROCE], ("node 0: 1 x InfiniBand", "node 1: 1 x RoCE")),
        ([IB] + [NONE] * 20, ("node 8: this node has no HCA and 12 more",)),
        ([replace(IB, gbit_per_second=200), IB], None),  # slower, and works
    ],
)
def test_nodes_that_would_hang_together_are_refused_by_name(nodes, said):
    verdict = rdma_verdict(dict(enumerate(nodes)))
    if said is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.level == "stop"
        assert all(part in verdict.text for part in said)
        assert "NCCL_IB_DISABLE=1 on all nodes" in verdict.fix
