"""Nodes are killed, stopped and cut off while released clients work: what was acknowledged is delivered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig
from dledger.cli.local_cluster import LocalNode
from tests.clients.cluster import BROKER, client_cluster
from tests.clients.load import Load
from tests.clients.network import Network

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-faults")]

#: How long clients go without a stream of telemetry: 600 for what the slowest of them does.
_WITHOUT_TELEMETRY_S = float(os.environ.get("WITHOUT_TELEMETRY_S", "15"))
#: What is not renewed comes back, and who is not heard of is gone, well before that.
_IMPATIENT: dict[str, Any] = {**BROKER, "delivery": {"invisible_ms": 5_000, "heard_ms": 12_000}}
#: A producer in Node.js goes back to no node that it once failed to reach, unless it has failed to reach all
#: of them: with the last one it has no other to try, and gives up that send.
_GIVEN_UP = {"python": 0, "node": 1}


@pytest.fixture(params=["python", "node"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.mark.parametrize("killed", ["the master", "the node that the client came to"])
def test_no_send_fails_when_a_node_is_killed(client: str, killed: str, tmp_path: Path) -> None:
    """Sends at 50 a second; what was acknowledged is delivered."""
    with (
        client_cluster(tmp_path / "cluster") as cluster,
        Load(client, tmp_path / "home", cluster.address("n1"), "steady") as load,
    ):
        cluster.local.kill("n3" if killed == "the master" else "n1")
        cluster.master()
        seen = load.finish()
    assert seen["failed"] == [] and seen["lost"] == []


def test_no_send_fails_while_all_nodes_are_restarted_in_turn(client: str, tmp_path: Path) -> None:
    with (
        client_cluster(tmp_path / "cluster") as cluster,
        Load(client, tmp_path / "home", cluster.address("n1"), "steady") as load,
    ):
        for node in ("n3", "n1", "n2"):
            cluster.restart(node)
        seen = load.finish()
    assert seen["lost"] == [] and len(seen["failed"]) <= _GIVEN_UP[client], seen["failed"]


@pytest.mark.parametrize("cut_off", ["the master", "the node that the client came to"])
def test_nothing_is_lost_when_a_node_is_cut_off_from_the_others(
    client: str, cut_off: str, network: Network, tmp_path: Path
) -> None:
    """The client still reaches it."""
    with client_cluster(tmp_path / "cluster", prepare=network.lay) as cluster:
        node, local = ("n3" if cut_off == "the master" else "n1"), cluster.local

        def alone(nodes: object) -> LocalNode | None:
            assert isinstance(nodes, list)
            return next((n for n in nodes if n.node_id == node and not n.leader_id), None)

        with Load(client, tmp_path / "home", cluster.address("n1"), "steady") as load:
            with network.cut_off(node, local.node_ids):
                local.wait_until(alone, 60, "a node without a leader")
                cluster.master(other_than=node)
            local.wait_for_all(60)
            seen = load.finish()
    assert seen["lost"] == [] and seen["last"] == ""


def test_messages_of_a_group_stay_in_order_when_the_master_is_killed(client: str, tmp_path: Path) -> None:
    with client_cluster(tmp_path / "cluster") as cluster:
        name = {"python": "py", "node": "node"}[client]
        cluster.put(GroupConfig(f"{name}-ordered-g", consume_orderly=True))
        with Load(client, tmp_path / "home", cluster.address("n1"), "ordered") as load:
            cluster.local.kill("n3")
            cluster.master()
            seen = load.finish()
    for group, consumed in seen["consumed"].items():
        assert consumed == sorted(consumed), group
        assert set(seen["acknowledged"][group]) <= set(consumed), group


def test_an_orphaned_transaction_is_asked_about_by_the_next_master(client: str, tmp_path: Path) -> None:
    with (
        client_cluster(tmp_path / "cluster") as cluster,
        Load(client, tmp_path / "home", cluster.address("n1"), "orphan") as load,
    ):
        cluster.local.kill("n3")
        cluster.master()
        seen = load.finish()
    assert seen == {"bodies": ["orphan"], "answer": "commit"}


def test_a_client_without_telemetry_keeps_what_it_holds(client: str, tmp_path: Path) -> None:
    """Restarts cut the streams of all nodes, and one client takes minutes to open a new one. All of its other
    calls are answered meanwhile, and what it consumes is renewed."""
    with client_cluster(tmp_path / "cluster", _IMPATIENT) as cluster:
        options = {"seconds": _WITHOUT_TELEMETRY_S}
        with Load(client, tmp_path / "home", cluster.address("n1"), "held", **options) as load:
            for node in ("n1", "n2", "n3"):
                cluster.restart(node)
            seen = load.finish()
    assert seen == {"attempts": [1], "acks": [""], "refused": [], "other": 0}
