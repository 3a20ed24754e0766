"""The order of every test run, and what it says at its end: what was left out, and why, in one line."""

import pytest

LAST = ("torch", "slow", "cluster", "image")  # the later, the longer


@pytest.hookimpl(trylast=True)  # the folders' own hooks have given their markers by then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What fails fast fails first."""
    items.sort(
        key=lambda item: max((LAST.index(mark) + 1 for mark in LAST if item.get_closest_marker(mark)), default=0)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons: dict[str, int] = {}
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    if deselected := len(terminalreporter.stats.get("deselected", [])):
        option = terminalreporter.config.option
        reasons[f"not chosen: {option.markexpr or option.keyword or 'by name'}"] = deselected
    left_out = "; ".join(f"{count} tests ({reason})" for reason, count in sorted(reasons.items()))
    terminalreporter.write_line(f"left out: {left_out or 'nothing'}")
