"""What the nodes of a cluster have in common, and what is said of one interface."""

import pytest

from entrypoint.measured import Measured, Rail, common_rails


def one(network: str, speed: int | None = None, **told: object) -> Measured:
    fields: dict[str, object] = {"reached": (0, 1), "missed": (), "large_passes": True}
    return Measured("ens1", network, mbit_per_second=speed, **(fields | told))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "rails"),
    [
        ([[one("a", 900), one("b", 90)], [one("b", 80), one("a", 1000)]], [Rail("a", 900), Rail("b", 80)]),
        ([[one("a", 900), one("b", 90)], [one("a", 1000)]], [Rail("a", 900)]),
        ([[one("a", 900)], [one("b", 900)]], []),  # each routed from a network of its own
        ([[one("a", 900)], [one("a", missed=(2,))]], []),  # up on one node only
        ([[one("a", 900)], [one("a", large_passes=False)]], []),
        ([[one("a", 900)], [one("a", None)]], [Rail("a", 900)]),
        ([[one("a", None), one("b", 20)], [one("a", 900), one("b", 20)]], [Rail("a", 900), Rail("b", 20)]),
        ([[one("b"), one("a")], [one("a"), one("b")]], [Rail("a", None), Rail("b", None)]),  # one order for all
        ([[]], []),
        ([], []),
    ],
)
def test_rails_are_the_networks_over_which_every_node_reaches_its_peers(nodes, rails):
    assert common_rails(dict(enumerate(nodes))) == tuple(rails)


@pytest.mark.parametrize(
    ("measured", "carries", "text"),
    [
        (one("a", 940), True, "reaches all 2 peers that were tried, 940 Mbit/s"),
        (one("a"), True, "reaches all 2 peers that were tried"),
        (one("a", missed=(3, 5), detail="refused"), False, "does not reach node 3, node 5 (refused)"),
        (one("a", missed=tuple(range(20))), False, "node 7 and 12 more"),
        (one("a", large_passes=False), False, "large packets do not arrive"),
        (one("a", large_passes=None), True, "reaches all 2"),
        (one("a", reached=()), False, "was not tried"),
    ],
)
def test_an_interface_carries_what_reaches_all_with_payloads_of_any_size(measured, carries, text):
    assert measured.carries is carries
    assert text in measured.text
