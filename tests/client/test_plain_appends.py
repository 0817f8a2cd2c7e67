"""Appends without a session: only what certainly was not stored is ever sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dledger import Code, Indeterminate, InvalidRequest, Limits, NotLeader
from dledger.infra.transport.channels import MAX_PAYLOAD_BYTES
from tests.client.fake_cluster import break_stream, refuse, store, store_and_break, swallow
from tests.client.helpers import cluster_and_client, until


@pytest.mark.parametrize("fault", [break_stream, store_and_break])
async def test_a_lost_answer_is_indeterminate_and_never_sent_again(fault: object) -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        cluster.servers[0].answers.append(fault)
        with pytest.raises(Indeterminate):
            await client.append(b"a")
        await client.append(b"b")
        assert [list(r.bodies) for r in cluster.servers[0].requests] == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    "code",
    [
        Code.TERM_CHANGED,
        Code.WAIT_QUORUM_ACK_TIMEOUT,
        Code.INTERNAL_ERROR,
        Code.DISK_ERROR,
        Code.FSYNC_FAILED,
    ],
)
async def test_an_undecided_answer_is_indeterminate_and_never_sent_again(code: Code) -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        cluster.servers[0].answers.append(refuse(code))
        with pytest.raises(Indeterminate) as failed:
            await client.append(b"a")
        assert failed.value.code == code
        assert len(cluster.servers[0].requests) == 1


@pytest.mark.parametrize("code", [Code.NOT_LEADER, Code.LEADER_TRANSFERRING, Code.LEADER_PENDING_FULL])
async def test_a_definite_refusal_is_tried_again(code: Code) -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        cluster.servers[0].answers.extend([refuse(code), refuse(code), refuse(code)])
        await asyncio.gather(*(client.append(b"%d" % i) for i in range(5)))
        assert sorted(cluster.log.bodies) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_refusal_that_lasts_is_raised_as_what_it_is() -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        server = cluster.servers[0]
        server.answers.append(refuse(Code.LEADER_TRANSFERRING))
        append = asyncio.create_task(client.append(b"a", timeout=1.0))
        await until(lambda: bool(server.requests))
        cluster.lead(None)
        with pytest.raises(NotLeader) as failed:
            await append
        assert failed.value.code == Code.LEADER_TRANSFERRING
        assert cluster.log.bodies == []


async def test_the_hint_of_a_follower_is_followed() -> None:
    async with cluster_and_client(3, session=False) as (cluster, client):
        await client.append(b"a")
        cluster.lead(cluster.servers[2])
        await client.append(b"b")
        assert len(cluster.servers[0].requests) == 2
        assert len(cluster.servers[1].requests) == 0
        assert cluster.log.bodies == [b"a", b"b"]


async def test_a_wrong_hint_does_not_lead_in_circles() -> None:
    async with cluster_and_client(3, session=False) as (cluster, client):
        one, two, three = cluster.servers
        await client.append(b"a")
        one.answers.extend([refuse(Code.NOT_LEADER, two.address)] * 5)
        two.answers.extend([refuse(Code.NOT_LEADER, one.address)] * 5)
        cluster.lead(three)
        await client.append(b"b")
        assert len(one.requests) + len(two.requests) <= 5
        assert cluster.log.bodies == [b"a", b"b"]


async def test_a_call_that_shared_a_rejected_batch_is_stored() -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        cluster.servers[0].rejected_body = b"bad"
        good, bad, other = await asyncio.gather(
            *map(client.append, [b"good", b"bad", b"other"]), return_exceptions=True
        )
        assert isinstance(bad, InvalidRequest)
        assert not isinstance(good, BaseException)
        assert not isinstance(other, BaseException)
        assert cluster.log.bodies == [b"good", b"other"]


async def test_a_silent_leader_that_was_replaced_leaves_its_batches_undecided() -> None:
    async with cluster_and_client(3, session=False, stall_timeout=1.0) as (cluster, client):
        old, new, _ = cluster.servers
        await client.append(b"a")
        old.gate.clear()
        waiting = asyncio.create_task(client.append(b"b"))
        await until(lambda: len(old.requests) == 2)
        behind = asyncio.create_task(client.append(b"c"))
        cluster.lead(new)
        with pytest.raises(Indeterminate):
            await waiting
        await behind
        assert cluster.log.bodies == [b"a", b"c"]


async def test_a_server_that_is_down_refuses_for_certain() -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        await cluster.servers[0].kill()
        with pytest.raises(NotLeader):
            await client.append(b"a", timeout=1.0)


async def test_a_cancelled_append_that_still_waits_is_not_sent() -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        server = cluster.servers[0]
        server.answers.append(swallow)
        silent = asyncio.create_task(client.append(b"a"))
        await until(lambda: bool(server.requests))
        waiting = asyncio.create_task(client.append(b"b"))
        await asyncio.sleep(0)
        waiting.cancel()
        silent.cancel()
        await client.append_many([b"x" * 70_000])
        assert [next(iter(r.bodies))[:1] for r in server.requests] == [b"a", b"x"]
        await client.close(0)


async def test_a_batch_is_bounded_in_bytes_and_count() -> None:
    limits = Limits(max_batch_bytes=10_000, max_batch_count=5)
    async with cluster_and_client(1, session=False, limits=limits) as (cluster, client):
        await asyncio.gather(*(client.append(b"s") for _ in range(30)))
        results = await client.append_many([b"x" * 3000] * 10)
        assert [r.index for r in results] == list(range(30, 40))
        for request in cluster.servers[0].requests:
            assert len(request.bodies) <= 5
            assert sum(len(b) + 48 for b in request.bodies) <= 10_000


async def test_append_many_is_one_batch_if_it_fits() -> None:
    async with cluster_and_client(1, session=False) as (cluster, client):
        assert await client.append_many([]) == []
        await client.append_many([b"x" * 1024] * 256)
        assert [len(r.bodies) for r in cluster.servers[0].requests] == [256]


async def test_a_failed_part_of_a_large_append_many_is_indeterminate_for_the_whole() -> None:
    limits = Limits(max_batch_count=2, gather_bytes=1)
    async with cluster_and_client(1, session=False, limits=limits) as (cluster, client):
        cluster.servers[0].answers.extend([store, refuse(Code.BODY_TOO_LARGE)])
        with pytest.raises(Indeterminate):
            await client.append_many([b"1", b"2", b"3", b"4"])


@pytest.mark.parametrize(
    "body", ["text", bytearray(b"x"), None, pytest.param(b"x" * MAX_PAYLOAD_BYTES, id="too large")]
)
async def test_what_no_server_could_take_is_refused_here(body: bytes) -> None:
    async with cluster_and_client(1) as (cluster, client):
        with pytest.raises(InvalidRequest):
            await client.append(body)
        with pytest.raises(InvalidRequest):
            await client.append_many([b"good", body])
        assert not cluster.servers[0].requests


async def test_a_body_above_the_batch_limit_travels_alone() -> None:
    limits = Limits(max_batch_bytes=1000)
    async with cluster_and_client(1, limits=limits) as (cluster, client):
        await asyncio.gather(client.append(b"a"), client.append(b"x" * 2000), client.append(b"b"))
        assert [len(r.bodies) for r in cluster.servers[0].requests] == [1, 1, 1]


async def test_every_attempt_is_told_of_and_of_what_is_not_stored_again_there_is_only_one() -> None:
    told: list[tuple[list[bytes], int]] = []

    def note(bodies: Sequence[bytes], number: int) -> None:
        told.append((list(bodies), number))

    async with cluster_and_client(1, session=False, on_attempt=note) as (cluster, client):
        cluster.servers[0].answers.extend(
            [refuse(Code.LEADER_PENDING_FULL), refuse(Code.LEADER_PENDING_FULL)]
        )
        await client.append_many([b"a", b"b"])
        cluster.servers[0].answers.append(store_and_break)
        with pytest.raises(Indeterminate):
            await client.append(b"c")
        assert told == [([b"a", b"b"], 1), ([b"a", b"b"], 2), ([b"a", b"b"], 3), ([b"c"], 1)]
