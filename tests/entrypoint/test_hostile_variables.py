"""No text in any variable or file ends in a traceback: the answer is a sound Environment or one line with a fix."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoint.environment import Environment, read_environment
from entrypoint.errors import SettingError
from entrypoint.values import is_loopback

HERE = Path(__file__).parent
FIXTURES = json.loads((HERE / "providers.json").read_text(encoding="utf-8"))
NAME = re.compile(r'"((?:TRAIN|[A-Z][A-Z0-9]*)(?:_[A-Z0-9]+)*)"')
SOURCES = [HERE.parents[1] / "entrypoint" / "readers.py", *(HERE.parents[1] / "entrypoint").glob("provider*.py")]
NAMES = sorted(
    {name for source in SOURCES for name in NAME.findall(source.read_text(encoding="utf-8"))}
    | {name for fixture in FIXTURES for name in fixture["env"]}
    | {"TRAIN_LOCAL_CLUSTER"}
)
FILES = ("opt/ml/input/config/resourceconfig.json", "run/determined/info/rendezvous.json", "lsf/rankfile")

TEXTS = (
    *json.loads((HERE / "hostile.json").read_text(encoding="utf-8")),
    *("9" * 5000, "a" * 10_000, "[" * 100_000, '{"a":' * 5000),
    f'{{"container_addrs": ["a"], "container_rank": {"9" * 5000}}}',
)

hostile = st.sampled_from(TEXTS) | st.text(max_size=12)
captured = st.sampled_from([fixture["env"] for fixture in FIXTURES])
underneath = st.just({}) | captured  # one platform inside another
changes = st.dictionaries(st.sampled_from(NAMES), hostile, max_size=5)


def assert_sound(told: Environment) -> None:
    addresses = (told.primary_address, told.node_address, told.interface_hint, *told.peers)
    assert all(address is None or address.strip() for address in addresses)
    assert told.primary_port is None or 1 <= told.primary_port <= 65535
    assert told.nodes is None or told.nodes >= 1
    assert told.processes_per_node is None or told.processes_per_node >= 1
    assert told.node_rank is None or 0 <= told.node_rank < (told.nodes or told.world_size or 0)
    assert (told.rank is None) == (told.local_rank is None)
    assert told.rank is None or 0 <= told.rank < (told.world_size or 0)
    assert len(told.peers) in (0, told.nodes)
    if told.nodes != 1:
        assert told.nodes is not None or told.world_size is not None
        assert told.node_rank == 0 if told.primary_address is None else not is_loopback(told.primary_address)
    assert set(told.sources) <= set(Environment.__dataclass_fields__)


def assert_one_line(error: SettingError) -> None:
    assert error.problem.isprintable()
    assert error.problem
    assert error.fix.isprintable()
    assert error.fix


def read_hostile(variables: dict[str, str], root: Path) -> None:
    try:
        told = read_environment(variables, root)
    except SettingError as error:
        return assert_one_line(error)
    if variables.get("TRAIN_LOCAL_CLUSTER") != "1":
        assert_sound(told)


@settings(max_examples=1500, deadline=None, derandomize=True, database=None)
@given(under=underneath, base=captured, changed=changes)
def test_any_text_in_any_variable_is_read_or_refused(
    under: dict[str, str], base: dict[str, str], changed: dict[str, str]
) -> None:
    read_hostile(under | base | changed, Path("/nonexistent"))


@pytest.mark.parametrize("path", FILES)
def test_any_text_in_a_platforms_file_is_read_or_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    jsrun = {"LSB_DJOB_RANKFILE": "/lsf/rankfile", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "0"}
    variables = jsrun | {"JSM_NAMESPACE_LOCAL_RANK": "0"} if "rankfile" in path else {}
    for text in TEXTS:
        (tmp_path / path).write_text(text, encoding="utf-8", errors="surrogatepass")
        read_hostile(variables, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_alone_with_every_hostile_text(name: str, tmp_path: Path) -> None:
    for text in TEXTS:
        read_hostile({name: text}, tmp_path)
