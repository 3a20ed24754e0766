"""What every test run says at its end: what was left out, and why, in one line."""

import pytest


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
