"""What a person is told when something is wrong: the problem, a fix, and the exit code that `design` promises.

Problem
├── SettingError   78   a setting is wrong (a variable, an option, a file that the user wrote)
├── MachineError   69   this machine is not as required
├── NodesError     68   other nodes were not reached, or do not agree
└── StuckError     76   no progress over several attempts

Anything else that escapes is our own bug: exit code 70, with its traceback.
"""

from typing import ClassVar

STOPPED = 143  # 128 + SIGTERM: stopped on request, state saved; a platform must never take it for success
OWN_BUG = 70


class Problem(Exception):
    """One line that quotes what was given, and one that says what to do about it."""

    exit_code: ClassVar[int] = OWN_BUG

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


class SettingError(Problem):
    exit_code = 78


class MachineError(Problem):
    exit_code = 69


class NodesError(Problem):
    exit_code = 68


class StuckError(Problem):
    exit_code = 76
