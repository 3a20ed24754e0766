import pytest

from entrypoint.host_ids import Host, host_ids


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([Host("a", "1"), Host("b", "2")], {}),
        ([Host("a", "1"), Host("a", "2")], {}),  # clones of one image: the boot ids differ
        ([Host("a", "1"), Host("b", "1")], {}),  # two containers of one machine
        ([Host("a", "1"), Host("a", "1")], {0: "a-node0", 1: "a-node1"}),
        ([Host("a", None), Host("b", "1"), Host("a", None)], {0: "a-node0", 2: "a-node2"}),  # a sandbox without /proc
        ([Host("a", "1", "same"), Host("b", "2", "same")], {0: "a-node0", 1: "b-node1"}),
        ([Host("a", "1", "x"), Host("a", "1", "y")], {}),
    ],
)
def test_nodes_that_nccl_would_take_for_one_machine_get_ids(hosts, expected):
    settings = host_ids(dict(enumerate(hosts)))
    assert {rank: one.value for rank, one in settings.items()} == expected
    assert all(one.name == "NCCL_HOSTID" and "one machine" in one.reason for one in settings.values())
