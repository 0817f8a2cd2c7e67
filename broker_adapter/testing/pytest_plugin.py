"""The pytest plugin: fixtures with a broker, with a cluster of brokers, and with a log.

pytest loads this module in each project with this package, so it imports nothing else at first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broker_adapter.testing.dev_process import DevCluster, DevProcess
    from dledger import Client

#: Position in the broker's log file at the start of a test.
_LOG_BEGIN = pytest.StashKey[int]()
_FIXTURES = ("rocketmq_broker", "rocketmq_cluster", "dledger_cluster")
#: Maximum number of characters of the log shown for a failed test.
_SHOWN = 10_000


@pytest.fixture(scope="session")
def rocketmq_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    """A RocketMQ broker in a process of its own, for the whole session (one for each worker of
    pytest-xdist)."""
    from broker_adapter.testing.dev_process import DevProcess

    with DevProcess(tmp_path_factory.mktemp("rocketmq-broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def rocketmq_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Three nodes with brokers and a NameServer, for the whole session. A test that kills a node starts it
    again."""
    from broker_adapter.testing.dev_process import DevCluster

    with DevCluster(tmp_path_factory.mktemp("rocketmq-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def dledger_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Three nodes with a log, for the whole session. A test that kills a node starts it again."""
    from broker_adapter.testing.dev_process import DevCluster

    with DevCluster(tmp_path_factory.mktemp("dledger-cluster"), ["--log"]) as cluster:
        yield cluster


@pytest.fixture
def dledger_log(dledger_cluster: DevCluster) -> Iterator[Client]:
    """A client of the cluster's log."""
    from dledger import Client

    with Client(dledger_cluster.endpoints) as client:
        yield client


def _process_of(item: pytest.Item) -> DevProcess | None:
    used: dict[str, Any] = getattr(item, "funcargs", {})
    processes: list[DevProcess] = [used[name] for name in _FIXTURES if name in used]
    return next((process for process in processes if process.log.exists()), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    if (process := _process_of(item)) is not None:
        item.stash[_LOG_BEGIN] = process.log.stat().st_size
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's log lines of a failed test to its report."""
    report = yield
    if report.failed and (process := _process_of(item)) is not None:
        with process.log.open(errors="replace") as log:
            log.seek(item.stash.get(_LOG_BEGIN, 0))
            report.sections.append(("log of the RocketMQ broker", log.read()[-_SHOWN:] or "(no lines)"))
    return report
