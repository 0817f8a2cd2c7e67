"""Says loudly when the page was not looked at in a browser."""

from __future__ import annotations

import pytest

from tests.status.browser import DID_NOT_RUN


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.getreports("skipped") if DID_NOT_RUN in str(r.longrepr)]
    if skipped:
        terminalreporter.section(DID_NOT_RUN, sep="!", red=True, bold=True)
        _, _, reason = skipped[0].longrepr
        terminalreporter.write_line(f"{reason} ({len(skipped)} tests)", red=True, bold=True)
