"""Helpers for tests of the broker's commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.cli.cluster_command import BROKER_KIND, is_writable_master
from broker_adapter.cli.connect.options import NAMESRV_VARIABLE
from broker_adapter.cli.main import cli
from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from tests.cli.conftest import Command

#: Small enough that starting a node writes little.
SMALL = {"units_per_file": 1000, "index_slots": 1000, "index_items": 10_000}


class BrokerCommand(Command):
    root = cli

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "broker_adapter.cli", *arguments]


def wait_for_master(cluster: LocalCluster, *, other_than: str = "") -> LocalNode:
    def found(nodes: object) -> LocalNode | None:
        assert isinstance(nodes, list)
        return next((n for n in nodes if is_writable_master(n.owner) and n.node_id != other_than), None)

    return cluster.wait_until(found, 60, "a writable master")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three running nodes with brokers and a NameServer, shared by the tests of a module."""
    additions = BROKER_KIND.prepare(0, {})
    settings = {key: dict(value) for key, value in additions.settings.items()}
    settings["program"]["settings"] = {**settings["program"]["settings"], **SMALL}
    directory: Path = tmp_path_factory.mktemp("cluster")
    with LocalCluster.create(
        directory,
        nodes=3,
        base_port=0,
        data_file_size=4 << 20,
        settings=settings,
        companions=additions.companions,
        remoting=additions.remoting,
    ) as running:
        running.start()
        wait_for_master(running)
        yield running


@pytest.fixture
def namesrv(cluster: LocalCluster) -> str:
    return cluster.plan.companions[0].address


@pytest.fixture
def on_broker(namesrv: str) -> BrokerCommand:
    return BrokerCommand({NAMESRV_VARIABLE: namesrv})


@pytest.fixture
def command() -> BrokerCommand:
    return BrokerCommand()
