"""Reading and following: no gap, no repeat, only the users' entries, whichever server they come from."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from dledger import AsyncClient, Code, Entry, InvalidRequest, ReadFailed, StorageError
from tests.client.fake_cluster import FakeCluster
from tests.client.helpers import cluster_and_client, until


def fill(cluster: FakeCluster, count: int) -> list[bytes]:
    """Users' entries with an internal one before each third."""
    for i in range(count):
        if i % 3 == 0:
            cluster.log.add(cluster.term, b"internal", magic=2)
        cluster.log.add(cluster.term, b"%05d" % i)
    return cluster.log.bodies


async def collect(client: AsyncClient, *args: int, **options: str) -> list[Entry]:
    return [entry async for entry in client.read(*args, **options)]  # type: ignore[arg-type]


async def test_read_gives_all_users_entries_with_their_places() -> None:
    async with cluster_and_client(1) as (cluster, client):
        bodies = fill(cluster, 1000)
        entries = await collect(client)
        assert [e.body for e in entries] == bodies
        for entry in entries:
            stored = cluster.log.entries[entry.index]
            assert (entry.term, entry.pos, entry.body) == (stored.term, stored.pos, stored.body)


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 250])
async def test_count_counts_users_entries_only(count: int) -> None:
    async with cluster_and_client(1) as (cluster, client):
        bodies = fill(cluster, 250)
        assert [e.body for e in await collect(client, 0, count)] == bodies[:count]


async def test_read_starts_where_it_was_told_and_ends_at_the_end() -> None:
    async with cluster_and_client(1) as (cluster, client):
        fill(cluster, 30)
        entries = await collect(client, 20)
        assert entries[0].index == 21 - (cluster.log.entries[20].magic == 1)
        assert entries[-1].index == len(cluster.log.entries) - 1
        assert await collect(client, len(cluster.log.entries)) == []


async def test_a_read_goes_on_at_another_server_when_a_stream_breaks() -> None:
    async with cluster_and_client(3) as (cluster, client):
        bodies = fill(cluster, 1000)
        for server in cluster.servers:
            server.break_read_after = 3
        assert [e.body for e in await collect(client)] == bodies
        assert len({s.node_id for s in cluster.servers if s.reads}) > 1


async def test_the_rest_of_a_count_is_read_elsewhere() -> None:
    async with cluster_and_client(3) as (cluster, client):
        bodies = fill(cluster, 1000)
        cluster.servers[0].break_read_after = 2
        assert [e.body for e in await collect(client, 0, 400)] == bodies[:400]


async def test_the_mode_and_the_server_are_passed_on() -> None:
    async with cluster_and_client(3) as (cluster, client):
        fill(cluster, 5)
        await collect(client, mode="local", server=cluster.servers[2].address)
        await collect(client)
        assert [r.mode for r in cluster.servers[2].reads] == [1]
        assert [r.mode for r in cluster.servers[0].reads] == [0], "the leader is asked by default"


async def test_an_unconfirmed_read_is_tried_elsewhere() -> None:
    async with cluster_and_client(3) as (cluster, client):
        bodies = fill(cluster, 5)
        cluster.servers[0].read_error = Code.READ_NOT_CONFIRMED
        assert [e.body for e in await collect(client)] == bodies


async def test_a_read_that_no_server_can_confirm_fails_in_time() -> None:
    async with cluster_and_client(3) as (cluster, client):
        for server in cluster.servers:
            server.read_error = Code.READ_NOT_CONFIRMED
        with pytest.raises(ReadFailed) as failed:
            async with aclosing(client.read(timeout=1.0)) as entries:
                await anext(entries)
        assert failed.value.code == Code.READ_NOT_CONFIRMED


@pytest.mark.parametrize("code", [Code.INDEX_LESS_THAN_LOCAL_BEGIN, Code.INDEX_OUT_OF_RANGE])
async def test_an_index_out_of_range_is_an_error_at_once(code: Code) -> None:
    async with cluster_and_client(3) as (cluster, client):
        for server in cluster.servers:
            server.read_error = code
        with pytest.raises(ReadFailed) as failed:
            await collect(client, 5)
        assert failed.value.code == code
        assert sum(len(s.reads) for s in cluster.servers) == 1


async def test_a_purged_index_ends_a_follow() -> None:
    async with cluster_and_client(1) as (cluster, client):
        cluster.servers[0].read_error = Code.INDEX_LESS_THAN_LOCAL_BEGIN
        with pytest.raises(ReadFailed):
            async with aclosing(client.follow(0)) as entries:
                await anext(entries)


async def test_a_server_that_sends_damage_is_left_for_another() -> None:
    async with cluster_and_client(3) as (cluster, client):
        bodies = fill(cluster, 10)
        cluster.servers[0].corrupt_reads = True
        assert [e.body for e in await collect(client)] == bodies


async def test_damage_on_every_server_is_an_error() -> None:
    async with cluster_and_client(1) as (cluster, client):
        fill(cluster, 10)
        cluster.servers[0].corrupt_reads = True
        with pytest.raises(StorageError):
            async with aclosing(client.read(timeout=1.0)) as entries:
                await anext(entries)


async def test_follow_delivers_what_is_appended_later() -> None:
    async with cluster_and_client(1) as (cluster, client):
        fill(cluster, 3)
        async with aclosing(client.follow(0)) as entries:
            got = [(await anext(entries)).body for _ in range(3)]
            cluster.log.add(1, b"internal", magic=2)
            cluster.log.add(1, b"new")
            got.append((await anext(entries)).body)
        assert got == cluster.log.bodies


async def test_follow_survives_the_death_of_nodes_without_gap_or_repeat() -> None:
    async with cluster_and_client(3) as (cluster, client):
        fill(cluster, 50)
        got: list[bytes] = []
        async with aclosing(client.follow(0)) as entries:
            for victim in (cluster.servers[0], cluster.servers[1]):
                for _ in range(40):
                    got.append((await anext(entries)).body)
                cluster.lead(cluster.servers[2])
                await victim.kill()
                fill(cluster, 50)
            for _ in range(len(cluster.log.bodies) - len(got)):
                got.append((await anext(entries)).body)
        assert got == cluster.log.bodies


async def test_follow_leaves_a_paused_server() -> None:
    async with cluster_and_client(3, stall_timeout=1.0) as (cluster, client):
        fill(cluster, 3)
        async with aclosing(client.follow(0)) as entries:
            got = [(await anext(entries)).body for _ in range(3)]
            cluster.servers[0].gate.clear()
            cluster.lead(cluster.servers[1])
            fill(cluster, 3)
            got += [(await anext(entries)).body for _ in range(3)]
        assert got == cluster.log.bodies


async def test_follow_stays_with_a_healthy_server_that_has_nothing_new() -> None:
    async with cluster_and_client(3, stall_timeout=0.01) as (cluster, client):
        fill(cluster, 1)
        async with aclosing(client.follow(0)) as entries:
            await anext(entries)
            coming = asyncio.ensure_future(anext(entries))
            done, _ = await asyncio.wait([coming], timeout=1.0)
            assert not done
            cluster.log.add(1, b"x")
            assert (await coming).body == b"x"
        assert sum(len(s.reads) for s in cluster.servers) == 1


async def test_closing_the_client_ends_a_follow() -> None:
    async with cluster_and_client(1) as (cluster, client):
        fill(cluster, 1)

        got: list[bytes] = []

        async def follow() -> None:
            async for entry in client.follow(0):
                got.append(entry.body)

        following = asyncio.create_task(follow())
        await until(lambda: bool(got))
        await client.close()
        await following
        assert got == cluster.log.bodies


async def test_leaving_a_read_early_ends_its_stream() -> None:
    async with cluster_and_client(1) as (cluster, client):
        fill(cluster, 500)
        async with aclosing(client.read(0)) as entries:
            await anext(entries)
        assert (await collect(client, 0, 1))[0].body == b"00000"


@pytest.mark.parametrize(
    "wrong", [{"from_index": -2}, {"count": 0}, {"count": -1}, {"mode": "dirty"}], ids=str
)
async def test_a_senseless_read_is_refused_here(wrong: dict[str, int]) -> None:
    async with cluster_and_client(1) as (cluster, client):
        with pytest.raises(InvalidRequest):
            await collect(client, **wrong)  # type: ignore[arg-type]
        assert not cluster.servers[0].reads


async def test_read_index_follows_the_leader() -> None:
    async with cluster_and_client(3) as (cluster, client):
        fill(cluster, 3)
        assert await client.read_index() == 3
        cluster.lead(cluster.servers[2])
        assert await client.read_index() == 3
        cluster.lead(None)
        with pytest.raises(ReadFailed):
            await client.read_index(timeout=1.0)
