"""Our brokers with a NameServer of RocketMQ's own, which Java clients and mqadmin find them through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from broker_adapter.client import Admin, TopicRoute
from broker_adapter.errors import TopicRefused
from dledger.cli.local.local_cluster import LocalCluster
from tests.process.cluster import free_ports

from . import faults, genuine, ours

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    genuine.require()
    (port,) = free_ports(1)
    with genuine.name_server(tmp_path_factory.mktemp("namesrv"), port):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def cluster(name_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ours.cluster(tmp_path_factory.mktemp("cluster"), name_server) as running:
        yield running


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> genuine.Client:
    genuine.require()
    return genuine.java_client("5.5", tmp_path_factory.mktemp("java"))


def route(name_server: str, topic: str, wanted: Callable[[TopicRoute], bool]) -> TopicRoute:
    """The topic's route, as soon as it is as wanted."""

    found: list[TopicRoute] = []

    async def look() -> None:
        async with Admin(name_server) as admin:

            async def is_there() -> bool:
                with suppress(TopicRefused):
                    found.append(await admin.route(topic))
                return bool(found) and wanted(found[-1])

            await genuine.eventually(is_there)

    asyncio.run(look())
    return found[-1]


def names(found: TopicRoute) -> set[str]:
    return {name for name, broker in found.brokers.items() if broker.addresses}


def test_java_clients_find_our_brokers(
    cluster: LocalCluster, name_server: str, java: genuine.Client, tmp_path: Path
) -> None:
    nodes = {node.node_id: node.remoting_address for node in cluster.plan.nodes}
    each = {"broker-a", *(f"broker-a-{node}" for node in nodes)}
    route(name_server, "TBW102", lambda found: names(found) == each)
    # A client sends where the routes said when it began.
    said = java.run("send", name_server, "found", "8", "1")
    assert sum(line.startswith("sent") for line in said) == 8
    found = route(name_server, "found", lambda found: names(found) == each)
    assert set(found.brokers["broker-a"].addresses.values()) == set(nodes.values())
    assert found.master("broker-a") == ours.master(cluster).remoting_address
    said = java.run("push", name_server, "found", "g", "*", "8")
    assert {line.split()[1] for line in said if line.startswith("got")} == {str(one) for one in range(8)}
    printed = genuine.mqadmin(tmp_path, name_server, "clusterList")
    assert all(address in printed for address in nodes.values())


def test_a_node_that_stops_leaves_the_routes_and_comes_back(cluster: LocalCluster, name_server: str) -> None:
    """SIGTERM un-registers it, and the end of a killed process' connection; it returns as what it is then."""
    for stop in (cluster.stop_node, cluster.kill):
        old = ours.master(cluster)
        stop(old.node_id)
        new = ours.master(cluster, other_than=old.node_id)

        def is_over(found: TopicRoute, old: str = old.node_id, new: str = new.remoting_address) -> bool:
            return f"broker-a-{old}" not in names(found) and found.master("broker-a") == new

        found = route(name_server, "TBW102", is_over)
        assert old.remoting_address not in found.brokers["broker-a"].addresses.values()
        cluster.start_node(old.node_id)

        def is_back(found: TopicRoute, address: str = old.remoting_address) -> bool:
            addresses = found.brokers["broker-a"].addresses
            return len(names(found)) == 4 and address in addresses.values() and addresses[0] != address

        route(name_server, "TBW102", is_back)


def test_no_send_fails_when_the_master_dies(
    cluster: LocalCluster, name_server: str, java: genuine.Client
) -> None:
    fault = "SIGKILL of the master"
    result = faults.suffered(cluster, java, name_server, fault, "fault")
    print(result.row("Java 5.5, genuine NameServer", fault))
    assert (result.failed, result.lost, result.reordered) == ([], 0, 0)
