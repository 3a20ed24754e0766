"""What a test wants and a machine may lack. CI leaves nothing out."""

import os
from typing import NoReturn

import pytest


def leave_out(why: str) -> NoReturn:
    """Skip; where CI=true says that everything is there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, and {why}")
    pytest.skip(why)
