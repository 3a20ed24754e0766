"""These tests make nodes out of namespaces, which takes root on Linux; elsewhere they are left out, with the reason."""

import pytest
import trial
from leave_out import leave_out

from entrypoint.errors import MachineError
from entrypoint.namespaces import Namespaces


@pytest.fixture(scope="session", autouse=True)
def namespaces_can_be_made():
    try:
        with Namespaces(1):
            pass
    except MachineError as problem:
        leave_out(problem.problem)


@pytest.fixture(scope="session")
def undisturbed():
    """step → loss of steps.py when nothing happens."""
    return trial.undisturbed(steps=trial.STEPS)
