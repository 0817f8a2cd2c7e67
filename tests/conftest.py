"""For all tests: what a run says that left some out, how hypothesis runs on a busy machine, that
groups of tests are kept together, and which of them run only when somebody has the time."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from dledger.testing.virtual.event_loop import close_all

#: Is in the reason of every skip that leaves something unproven: no browser, no permission to mount, ...
DID_NOT_RUN = "DID NOT RUN"

#: Where to begin: every sixth byte, operation, ... of all; together, every one.
SIXTHS = (0, *(pytest.param(first, marks=pytest.mark.long) for first in range(1, 6)))

# aiohttp reads the certificates of the machine whenever a process imports it, for a tenth of a second, and
# hundreds do. Tests that use TLS bring their own.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)

# Where an environment forbids bytecode, each of the hundreds of processes that tests start compiles the whole
# product first: 0.3 s of CPU time. It is kept apart from the sources then.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build" / "pycache")
    )

# A machine that is busy is no bug.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Simulated clusters make many objects that live on, and hardly any cycles: looking for some took a tenth
# of their time.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def _no_simulation_lives_on() -> Iterator[None]:
    """What is left of one would end in the middle of another test's."""
    yield
    close_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the tests marked long as well (make test-long)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They are deselected and counted as such: to say that they were skipped would hide those that were."""
    if config.getoption("--long"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_configure(config: pytest.Config) -> None:
    """Groups keep clusters and JVMs from running beside each other. Where their marks have no effect, as with
    pytest 9.2 and pytest-xdist 3.8, everything takes half as long again, and some of it times out."""
    # pytest-xdist notes the group of a test there, and newer versions of pytest do not look there.
    if config.getoption("dist", "no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
        raise pytest.UsageError(f"groups of tests need pytest < 9.2, not {pytest.__version__}: run make test")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [r for r in terminalreporter.getreports("skipped") if DID_NOT_RUN in str(r.longrepr)]
    if skipped:
        terminalreporter.section(DID_NOT_RUN, sep="!", red=True, bold=True)
        for reason, count in Counter(str(r.longrepr[2]) for r in skipped).items():
            terminalreporter.write_line(f"{reason} ({count} tests)", red=True, bold=True)
