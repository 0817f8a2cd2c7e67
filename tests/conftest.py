"""For all tests: what a run says that left some out, how hypothesis runs on a busy machine, that
groups of tests are kept together, and the tiers (`--tier`)."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
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

# A shell starts background jobs with SIGINT ignored, and so would be the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that is busy is no bug.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Simulated clusters make many objects that live on, and hardly any cycles: looking for some took a tenth
# of their time.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def _log_lines_are_records_of_logging() -> Iterator[None]:
    """Undo what an earlier test configured, for example a simulation, which silences logs."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _no_simulation_lives_on() -> Iterator[None]:
    """What is left of one would end in the middle of another test's."""
    yield
    close_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("quick", "rest", "all", "long"),
        default="quick",
        help="quick: `make test`; rest: what `make test-all` adds; all: both; long: `make test-long`",
    )


def is_long(config: pytest.Config) -> bool:
    """Whether tests that judge a part of their cases by Spark judge all of them."""
    return config.getoption("--tier") == "long"


def tiers_of(item: pytest.Item) -> set[str]:
    """The values of `--tier` with which the test runs. A test that starts processes or a browser is slow
    unless it is marked as the one of its kind that everybody runs."""
    marks = {mark.name for mark in item.iter_markers()}
    if "long" in marks:
        return {"long"}
    if marks & {"process", "browser", "slow"} and "smoke" not in marks:
        return {"rest", "all", "long"}
    return {"quick", "all", "long"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other tiers. To call them skipped would hide those that were. If all arguments
    name files, as one does at work, the slow tests in them run as well."""
    tiers = {config.getoption("--tier")}
    if all(Path(argument.split("::")[0]).is_file() for argument in config.args):
        tiers.add("all")
    others = [item for item in items if not tiers & tiers_of(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        kept = set(items) - set(others)
        items[:] = [item for item in items if item in kept]


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
