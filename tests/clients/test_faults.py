"""Nodes are killed, stopped and cut off while released clients work: what was acknowledged is delivered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig
from dledger.cli.local.local_cluster import LocalNode
from tests.clients import installed
from tests.clients.cluster import BROKER, client_cluster
from tests.clients.load import Loads
from tests.clients.network import Network

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-faults")]

#: What is not renewed comes back, and who is not heard of is gone, well before that.
_IMPATIENT: dict[str, Any] = {**BROKER, "delivery": {"invisible_ms": 5_000, "heard_ms": 12_000}}
#: A producer in Node.js goes back to no node that it once failed to reach, unless it has failed to reach all
#: of them: with the last one it has no other to try, and gives up that send.
_GIVEN_UP = {"python": 0, "node": 1, "java": 0, "go": 0}


@pytest.fixture
def clients() -> Iterator[list[str]]:
    """Those that are here, at the same time; the test is skipped for the others."""
    yield [client for client in installed.CLIENTS if not installed.why_not(client)]
    for client in installed.CLIENTS:
        installed.require(client)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.mark.parametrize("killed", ["the master", "the node that the clients came to"])
def test_no_send_fails_when_a_node_is_killed(clients: list[str], killed: str, tmp_path: Path) -> None:
    """Sends at 50 a second of each; what was acknowledged is delivered."""
    with (
        client_cluster(tmp_path / "cluster") as cluster,
        Loads(clients, tmp_path, cluster.address(cluster.first), "steady") as loads,
    ):
        cluster.local.kill(cluster.last if killed == "the master" else cluster.first)
        cluster.master()
        for seen in loads.finish().values():
            assert seen["failed"] == [] and seen["lost"] == []


def test_no_send_fails_while_all_nodes_are_restarted_in_turn(clients: list[str], tmp_path: Path) -> None:
    with (
        client_cluster(tmp_path / "cluster") as cluster,
        Loads(clients, tmp_path, cluster.address(cluster.first), "steady") as loads,
    ):
        for node in sorted(cluster.local.node_ids, key=cluster.address, reverse=True):
            cluster.restart(node)
        for client, seen in loads.finish().items():
            assert seen["lost"] == [] and len(seen["failed"]) <= _GIVEN_UP[client], seen["failed"]


@pytest.mark.parametrize("cut_off", ["the master", "the node that the clients came to"])
def test_nothing_is_lost_when_a_node_is_cut_off_from_the_others(
    clients: list[str], cut_off: str, network: Network, tmp_path: Path
) -> None:
    """The clients still reach it."""
    with client_cluster(tmp_path / "cluster", prepare=network.lay) as cluster:
        node, local = (cluster.last if cut_off == "the master" else cluster.first), cluster.local

        def alone(nodes: object) -> LocalNode | None:
            assert isinstance(nodes, list)
            return next((n for n in nodes if n.node_id == node and not n.leader_id), None)

        with Loads(clients, tmp_path, cluster.address(cluster.first), "steady") as loads:
            with network.cut_off(node, local.node_ids):
                local.wait_until(alone, 60, "a node without a leader")
                cluster.master(other_than=node)
            local.wait_for_all(60)
            for seen in loads.finish().values():
                assert seen["lost"] == [] and seen["last"] == ""


def test_messages_of_a_group_stay_in_order_when_the_master_is_killed(
    clients: list[str], tmp_path: Path
) -> None:
    """The node comes back in the end: a client in Node.js acknowledges a message where it got it from. A
    message whose response was lost with the master holds up its group until its invisible time is over."""
    with client_cluster(tmp_path / "cluster", _IMPATIENT) as cluster:
        cluster.put(
            *(GroupConfig(f"{name}-ordered-g", consume_orderly=True) for name in installed.NAMES.values())
        )
        with Loads(clients, tmp_path, cluster.address(cluster.first), "ordered") as loads:
            cluster.local.kill(cluster.last)
            cluster.master()
            cluster.local.start_node(cluster.last)
            cluster.local.wait_for_all(60)
            found = loads.finish()
    for client, seen in found.items():
        for group, consumed in seen["consumed"].items():
            assert consumed == sorted(consumed), (client, group)
            assert set(seen["acknowledged"][group]) <= set(consumed), (client, group)
        if client == "python":
            assert seen["failed"] == 0, "its channel goes on to another node, of whichever queue"


def test_an_orphaned_transaction_is_asked_about_by_the_next_master(
    clients: list[str], tmp_path: Path
) -> None:
    """Over streams at the other nodes: whose stream ends with the master is asked once it has a new one. The
    Go client picks the node of its stream at random, and opens a new one minutes later only."""
    asked = [client for client in clients if client != "go"]
    with (
        client_cluster(tmp_path / "cluster") as cluster,
        Loads(asked, tmp_path, cluster.address(cluster.first), "orphan") as loads,
    ):
        cluster.local.kill(cluster.last)
        cluster.master()
        for seen in loads.finish().values():
            assert seen == {"bodies": ["orphan"], "answer": "commit"}


@pytest.mark.timeout(300 + installed.WITHOUT_TELEMETRY_S)
def test_clients_without_telemetry_keep_what_they_hold(clients: list[str], tmp_path: Path) -> None:
    """Restarts cut the streams of all nodes, and one client takes minutes to open a new one. All of its other
    calls are answered meanwhile, and what it consumes is renewed."""
    with client_cluster(tmp_path / "cluster", _IMPATIENT) as cluster:
        options = {"seconds": installed.WITHOUT_TELEMETRY_S}
        with Loads(clients, tmp_path, cluster.address(cluster.first), "held", **options) as loads:
            for node in sorted(cluster.local.node_ids, key=cluster.address):
                cluster.restart(node)
            for seen in loads.finish().values():
                assert seen == {"attempts": [1], "acks": [""], "refused": [], "other": 0}
