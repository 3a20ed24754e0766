"""Single values: what is understood, and what is not a number, an address, a port or a list."""

import pytest

from entrypoint import values
from entrypoint.errors import SettingError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  29500\r\n", "29500"),
        ("'10.65.0.2'", "10.65.0.2"),
        ("\" '8' \"", "8"),
        ('""', ""),
        ('"', ""),
        ('"a', '"a'),
    ],
)
def test_blanks_line_ends_and_quotes_fall_off(text: str, expected: str) -> None:
    assert values.clean(text) == expected


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node-0.svc.cluster.local.", "node-0.svc.cluster.local.", None),
        ("job_1-0:29500", "job_1-0", 29500),
        ("10.65.0.2/24", "10.65.0.2", None),
        ("10.65.0.2/24:29500", "10.65.0.2", 29500),
        ("2001:db8::10", "2001:db8::10", None),
        ("2001:db8::10/64", "2001:db8::10", None),
        ("[2001:db8::10]", "2001:db8::10", None),
        ("[2001:db8::10]:29500", "2001:db8::10", 29500),
        ("fe80::1%eth0", "fe80::1%eth0", None),
        ("fe80::2950", "fe80::2950", None),  # bare v6: the last group is no port
        ("localhost:0", "localhost", None),  # torchrun's "any free port"
    ],
)
def test_endpoint_forms(text: str, host: str, port: int | None) -> None:
    assert values.parse_endpoint("MASTER_ADDR", text) == values.Endpoint(host, port)


@pytest.mark.parametrize(
    "text", ["10.65.2", "256.0.0.1", "7", "0x7f000001", "a b", "http://a", "[a", "::g", "a/b", "host:x", "a,b", "é"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(SettingError, match="MASTER_ADDR="):
        values.parse_address("MASTER_ADDR", text)


@pytest.mark.parametrize("address", ["127.1.2.3", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "LOCALHOST."])
def test_loopback_reaches_every_node_itself(address: str) -> None:
    assert values.is_loopback(address)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu003", "gpu003"),
        ("gpu[003,007-009],login1", "gpu003 gpu007 gpu008 gpu009 login1"),
        ("a[1-2]b[01-03]", "a1b01 a1b02 a1b03 a2b01 a2b02 a2b03"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]-ib.site", "n08-ib.site n09-ib.site n10-ib.site n11-ib.site"),
    ],
)
def test_node_list_is_expanded_in_slurms_order(text: str, hosts: str) -> None:
    assert values.parse_node_list("SLURM_JOB_NODELIST", text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text", ["gpu[9-1]", "gpu[1-", "gpu[]", "a,,b", "a[1,]", "n[0-999999999]", "n[0-9999][0-9999]"]
)
def test_no_node_list(text: str) -> None:
    with pytest.raises(SettingError, match="SLURM_JOB_NODELIST="):
        values.parse_node_list("SLURM_JOB_NODELIST", text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("8", ((8, 1),)), ("2(x3),1", ((2, 3), (1, 1))), ("1,2", ((1, 1), (2, 1)))],
)
def test_task_counts_are_runs(text: str, counts: tuple[tuple[int, int], ...]) -> None:
    assert values.parse_task_counts("SLURM_TASKS_PER_NODE", text) == counts


@pytest.mark.parametrize("text", ["0", "1(x0)", "x4", "8(x)", "8(4)"])
def test_no_task_counts(text: str) -> None:
    with pytest.raises(SettingError, match="SLURM_TASKS_PER_NODE="):
        values.parse_task_counts("SLURM_TASKS_PER_NODE", text)


def test_a_long_value_is_shortened_and_stays_on_one_line() -> None:
    assert values.quoted("X", "a\nb") == "X=a\\nb"
    assert len(values.quoted("X", "9" * 5000)) < 120
