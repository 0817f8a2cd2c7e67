"""For all tests: what a run says that left some out, and how hypothesis runs on a busy machine."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from hypothesis import settings

#: Is in the reason of every skip that leaves something unproven: no browser, no permission to mount, ...
DID_NOT_RUN = "DID NOT RUN"

# A machine that is busy is no bug.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Simulated clusters make many objects that live on, and hardly any cycles: looking for some took a tenth
# of their time.
gc.set_threshold(50_000, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.getreports("skipped") if DID_NOT_RUN in str(r.longrepr)]
    if skipped:
        terminalreporter.section(DID_NOT_RUN, sep="!", red=True, bold=True)
        for reason, count in Counter(str(r.longrepr[2]) for r in skipped).items():
            terminalreporter.write_line(f"{reason} ({count} tests)", red=True, bold=True)
