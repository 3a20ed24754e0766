import pytest

from entrypoint.devices import visible_gpus
from entrypoint.errors import SettingError
from entrypoint.facts import Gpu

PLAIN = tuple(Gpu(index, f"GPU-{index}aaa-bbb", "H100", 80 << 30) for index in range(4))
SLICED = (
    Gpu(0, "GPU-0aaa-bbb", "A100", 40 << 30, mig=("MIG-1", "MIG-2"), mig_enabled=True),
    Gpu(1, "GPU-1aaa-bbb", "A100", 40 << 30, mig=(), mig_enabled=True),
    Gpu(2, "GPU-2aaa-bbb", "A100", 40 << 30),
)


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, 4),
        ("0,1", 2),
        (" 0 , 1 ", 2),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("0,1,-1,2", 2),
        ("0,9,1", 1),
        ("99999999999999999999", 0),
        ("GPU-0aaa-bbb,GPU-3aaa-bbb", 2),
        ("GPU-0,GPU-1", 2),
        ("GPU-", 0),
        ("GPU-nope", 0),
        ("１", 0),
        ("all", 0),
        ("void", 0),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(wanted, seen):
    assert len(visible_gpus(wanted, PLAIN)) == seen


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, ("MIG-1", "GPU-2aaa-bbb")),
        ("0", ("MIG-1",)),
        ("MIG-2", ("MIG-2",)),
        ("MIG-2,MIG-1", ("MIG-2",)),
        ("2", ("GPU-2aaa-bbb",)),
    ],
)
def test_a_device_in_mig_mode_is_seen_as_an_instance(wanted, seen):
    assert visible_gpus(wanted, SLICED) == seen


def test_a_device_named_twice_is_refused():
    with pytest.raises(SettingError, match="0,0"):
        visible_gpus("0,0", PLAIN)


def test_without_gpus_nothing_is_visible_whatever_is_said():
    assert visible_gpus("0,1", ()) == ()
