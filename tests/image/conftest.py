"""Real containers of the image that `make image` has built. Without it they are left out; in CI that is a failure."""

import os
from functools import cache
from pathlib import Path

import containers
import pytest

HERE = Path(__file__).parent
missing = cache(containers.missing)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if "engine" in getattr(item, "fixturenames", ())]
    for item in ours:
        item.add_marker(pytest.mark.image)
        if os.environ.get("CI") != "true" and (why := missing()):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def engine():
    if why := missing():
        pytest.fail(f"CI=true, and {why}")
    engine = containers.Engine()
    yield engine
    engine.clear()
