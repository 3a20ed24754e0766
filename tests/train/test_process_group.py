import pytest

pytestmark = pytest.mark.torch
process_group = pytest.importorskip("process_group")

LAUNCHED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (LAUNCHED, (3, 1, 4)),
        ({}, (0, 0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 0, 1)),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, (0, 0, 1)),
    ],
)
def test_ranks_come_from_the_launcher_alone(variables, expected):
    assert process_group.read_ranks(variables) == expected


@pytest.mark.parametrize("missing", ["LOCAL_RANK", "RANK", "MASTER_ADDR"])
def test_a_pods_world_size_without_a_launcher_does_not_wait_for_peers(missing):
    variables = {name: value for name, value in LAUNCHED.items() if name != missing}
    with pytest.raises(process_group.Problem, match="WORLD_SIZE=4") as caught:
        process_group.read_ranks(variables)
    assert missing in caught.value.problem
    assert "torchrun" in caught.value.fix


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_rank_that_is_no_number_is_quoted(name):
    with pytest.raises(process_group.Problem, match=f"{name}='one' is not a number"):
        process_group.read_ranks({**LAUNCHED, name: "one"})
