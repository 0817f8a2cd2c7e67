"""Finding the leader, and what the client says of the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger import AsyncClient, Client, Code, DLedgerError, InvalidRequest, NodeStatus, NotLeader
from dledger.client import directory
from tests.client.fake_cluster import FakeCluster, FakeServer
from tests.client.helpers import cluster_and_client, until


async def test_the_leader_is_found_wherever_it_is() -> None:
    async with cluster_and_client(5) as (cluster, client):
        cluster.lead(cluster.servers[4])
        assert (await client.leader()).node_id == "n4"


async def test_one_server_is_enough_to_find_the_others() -> None:
    async with FakeCluster(3) as cluster:
        cluster.lead(cluster.servers[2])
        async with AsyncClient(cluster.servers[0].address) as client:
            await client.append(b"a")
            assert (await client.leader()).node_id == "n2"


async def test_a_name_that_does_not_resolve_does_not_break_the_others() -> None:
    async with FakeCluster(2) as cluster:
        servers = ["no-such-host.invalid:1", *cluster.addresses]
        async with AsyncClient(servers) as client:
            await client.append(b"a")
            status = await client.status()
            assert isinstance(status["no-such-host.invalid:1"], DLedgerError)
            assert isinstance(status[cluster.addresses[0]], NodeStatus)


async def test_a_dead_server_does_not_break_the_others() -> None:
    async with cluster_and_client(3) as (cluster, client):
        await cluster.servers[0].kill()
        cluster.lead(cluster.servers[1])
        await client.append(b"a")


async def test_a_paused_server_does_not_hold_up_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "PROBE_TIMEOUT", 60.0)  # whoever waited for it would wait too long
    async with cluster_and_client(3) as (cluster, client):
        cluster.servers[0].gate.clear()
        cluster.lead(cluster.servers[1])
        await client.append(b"a")


async def test_a_deposed_leader_is_not_believed_against_a_later_term() -> None:
    async with cluster_and_client(3) as (cluster, client):
        deposed, leader, _ = cluster.servers
        deposed.said_term = 1
        cluster.lead(leader)
        await client.append(b"a")
        assert not deposed.requests


async def test_a_leader_that_appears_later_is_found() -> None:
    async with cluster_and_client(3) as (cluster, client):
        cluster.lead(None)
        waiting = asyncio.create_task(client.append(b"a"))
        await asyncio.sleep(0)
        cluster.lead(cluster.servers[1])
        assert (await waiting).term == cluster.term


async def test_no_leader_in_time_is_not_leader() -> None:
    async with cluster_and_client(3) as (cluster, client):
        cluster.lead(None)
        with pytest.raises(NotLeader):
            await client.leader(timeout=1.0)


async def test_an_append_without_a_leader_fails_with_the_reason_of_each_server() -> None:
    async with AsyncClient(["127.0.0.1:1", "host.invalid:2"], timeout=2.0) as client:
        with pytest.raises(NotLeader, match=r"127\.0\.0\.1:1: connection refused") as caught:
            await client.append(b"a")
    assert "host.invalid:2: the host name is unknown" in caught.value.message
    assert caught.value.code is Code.NETWORK_ERROR


async def test_a_server_that_knows_no_leader_is_not_unreachable() -> None:
    async with FakeCluster(1) as cluster, AsyncClient([*cluster.addresses, "127.0.0.1:1"]) as client:
        cluster.lead(None)
        with pytest.raises(NotLeader, match="connection refused") as caught:
            await client.leader(timeout=1.0)
    assert caught.value.code is Code.NOT_LEADER


async def test_a_client_explains_a_search_that_still_runs() -> None:
    async with AsyncClient(["127.0.0.1:1"]) as client:
        assert client.search_problem is None
        waiting = asyncio.create_task(client.append(b"a", timeout=60.0))
        await until(lambda: "connection refused" in str(client.search_problem))
        waiting.cancel()


async def test_leadership_is_handed_over_and_followed() -> None:
    async with cluster_and_client(3) as (cluster, client):
        await client.append(b"a")
        assert await client.transfer_leadership("n2") == (2, "n2")
        await client.append(b"b")
        assert cluster.log.bodies == [b"a", b"b"]
        with pytest.raises(InvalidRequest):
            await client.transfer_leadership("n9")


@pytest.mark.parametrize("redirects", [False, True])
async def test_a_server_that_names_others_without_end_is_no_end_of_connections(
    monkeypatch: pytest.MonkeyPatch, redirects: bool
) -> None:
    """Each was asked in its turn, and might have named more."""
    monkeypatch.setattr(directory, "MAX_LEARNED", 12)
    named = 0

    def another() -> str:
        nonlocal named
        named += 1
        return f"127.0.0.1:{named}"

    said = FakeServer.GetStatus

    async def names_another(self: FakeServer, request: Any, context: Any) -> Any:
        answer = await said(self, request, context)
        if answer.node.role != "LEADER":
            answer.node.leader_address = another()
        return answer

    monkeypatch.setattr(FakeServer, "GetStatus", names_another)
    async with cluster_and_client(1, timeout=60.0) as (cluster, client):
        (server,) = cluster.servers
        own = client._directory
        if redirects:
            for _ in range(200):
                own.redirected(server.address, another())
                if own.leader_address is not None:
                    await own.leader()
                    own.lost(own.leader_address)
        else:
            cluster.lead(None)
            waiting = asyncio.create_task(client.append(b"a"))
            await until(lambda: named > 20)
            cluster.lead(server)
            await waiting
        assert len(own._learned) <= 12 and len(own._clients) <= 13
        cluster.lead(server)
        own.lost(own.leader_address or "")
        await own.leader()
        assert len(own._learned) <= 8 and len(own._clients) <= 9


async def test_servers_may_be_given_as_one_string() -> None:
    async with FakeCluster(3) as cluster, AsyncClient(" , ".join(cluster.addresses)) as client:
        assert list(await client.status()) == cluster.addresses


@pytest.mark.parametrize("session", [True, False])
async def test_a_timeout_of_a_year_is_one(session: bool) -> None:
    year = 366 * 24 * 3600.0
    async with cluster_and_client(1, session=session, timeout=year, stall_timeout=year) as (cluster, client):
        async with asyncio.timeout(10):
            await client.append(b"a")
        assert cluster.log.bodies == [b"a"]


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["timeout", "stall_timeout"])
def test_a_timeout_that_is_none_is_a_mistake(name: str, wrong: float) -> None:
    options: dict[str, Any] = {name: wrong}
    with pytest.raises(ValueError, match=name):
        AsyncClient("127.0.0.1:1", **options)


@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_no_server_at_all_is_a_mistake(kind: type[AsyncClient | Client]) -> None:
    with pytest.raises(ValueError, match="server"):
        kind([])


async def test_a_closed_client_says_so() -> None:
    async with cluster_and_client(1) as (_, client):
        await client.append(b"a")
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.append(b"b")
        with pytest.raises(RuntimeError, match="closed"):
            await client.status()


@pytest.mark.parametrize(("seconds", "shown"), [(0.2, "0.2"), (0.3141592, "0.3"), (0.01, "0.01")])
async def test_a_time_limit_is_shown_with_the_digits_that_people_give(seconds: float, shown: str) -> None:
    """Commands of several steps pass what is left of their limit."""
    async with FakeCluster(1) as cluster, AsyncClient(cluster.servers[0].address) as client:
        await cluster.servers[0].kill()
        with pytest.raises(DLedgerError, match=rf"no leader was found within {shown} s"):
            await client.leader(timeout=seconds)
