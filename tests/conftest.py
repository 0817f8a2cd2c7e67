"""For all tests: what a run without a browser says, and how hypothesis runs on a busy machine."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.status.browser import DID_NOT_RUN

# A machine that is busy is no bug.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.getreports("skipped") if DID_NOT_RUN in str(r.longrepr)]
    if skipped:
        terminalreporter.section(DID_NOT_RUN, sep="!", red=True, bold=True)
        _, _, reason = skipped[0].longrepr
        terminalreporter.write_line(f"{reason} ({len(skipped)} tests)", red=True, bold=True)
