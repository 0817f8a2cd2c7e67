"""How calls gather into batches, and what holds a producer back."""

from __future__ import annotations

import asyncio

import pytest

from dledger import Indeterminate, Limits, Refused
from dledger.client.batching import AppendCall, CallQueue, split
from dledger.infra.transport.channels import channel_options
from tests.client.fake_cluster import swallow
from tests.client.helpers import cluster_and_client, until


async def test_a_lone_append_is_sent_at_once_and_alone() -> None:
    async with cluster_and_client(1) as (cluster, client):
        for i in range(3):
            await client.append(b"%d" % i)
        assert [len(r.bodies) for r in cluster.servers[0].requests] == [1, 1, 1]


async def test_concurrent_appends_gather_while_a_batch_is_in_flight() -> None:
    async with cluster_and_client(1) as (cluster, client):

        async def worker() -> None:
            for _ in range(20):
                await client.append(b"x")

        await asyncio.gather(*(worker() for _ in range(64)))
        requests = cluster.servers[0].requests
        assert sum(len(r.bodies) for r in requests) == 64 * 20
        assert len(requests) <= 40, "the batches are small"


async def test_large_batches_are_pipelined_up_to_the_limit() -> None:
    async with cluster_and_client(1, limits=Limits(max_inflight_batches=8)) as (cluster, client):
        server = cluster.servers[0]
        await client.append(b"a")
        server.answers.extend([swallow] * 8)
        calls = [asyncio.create_task(client.append_many([b"x" * 1024] * 900)) for _ in range(12)]
        await until(lambda: len(server.requests) == 9)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(server.requests) == 9
        await client.close(0)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(o, Indeterminate) for o in outcomes) == 8
        assert sum(isinstance(o, Refused) for o in outcomes) == 4, "what was not sent is refused for certain"


async def test_submit_keeps_many_under_way_in_order() -> None:
    async with cluster_and_client(1) as (cluster, client):
        futures = [await client.submit(b"%04d" % i) for i in range(1000)]
        results = await asyncio.gather(*futures)
        assert [cluster.log.entries[r.index].body for r in results] == cluster.log.bodies
        assert cluster.log.bodies == [b"%04d" % i for i in range(1000)]


async def test_submit_waits_while_too_much_is_pending() -> None:
    limits = Limits(max_pending_bytes=10_000)
    async with cluster_and_client(1, limits=limits) as (cluster, client):
        cluster.servers[0].gate.clear()
        first = await client.submit(b"x" * 6000)
        second = asyncio.create_task(client.submit(b"x" * 6000))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        cluster.servers[0].gate.set()
        await asyncio.gather(first, await second)


async def test_close_waits_for_appends_under_way() -> None:
    async with cluster_and_client(1) as (cluster, client):
        server = cluster.servers[0]
        await client.append(b"a")
        server.gate.clear()
        calls = [asyncio.create_task(client.append(b"%d" % i)) for i in range(5)]
        await until(lambda: len(server.requests) == 2)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        server.gate.set()
        await closing
        assert all(call.done() and call.exception() is None for call in calls)


async def test_close_ends_what_does_not_finish_in_time() -> None:
    async with cluster_and_client(1) as (cluster, client):
        await client.append(b"a")
        cluster.servers[0].gate.clear()
        call = asyncio.create_task(client.append(b"b"))
        await until(lambda: len(cluster.servers[0].requests) == 2)
        await client.close(0.01)
        with pytest.raises(Indeterminate):
            await call


def test_split_keeps_what_fits_in_one_piece() -> None:
    bodies = [b"x" * 100] * 10
    assert split(bodies, Limits())[0] is bodies
    parts = split(bodies, Limits(max_batch_bytes=1000))
    assert [b for part in parts for b in part] == bodies
    assert all(sum(len(b) + 48 for b in part) <= 1000 for part in parts)
    assert [len(p) for p in split(bodies, Limits(max_batch_count=4))] == [4, 4, 2]


async def test_a_queue_gives_back_in_order_and_forgets_the_done() -> None:
    loop = asyncio.get_running_loop()
    calls = [
        AppendCall((b"%d" % i,), single=True, future=loop.create_future(), deadline=1.0) for i in range(5)
    ]
    queue = CallQueue(Limits(max_batch_count=2))
    for call in calls:
        queue.add(call)
    first, _ = queue.next_calls()
    calls[2].future.set_result(None)
    queue.requeue(first)
    assert queue.next_calls()[0] == calls[:2]
    assert queue.next_calls()[0] == calls[3:]
    assert (bool(queue), queue.size) == (False, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_inflight_batches": 0},
        {"max_inflight_batches": 65},
        {"max_batch_bytes": 0},
        {"max_batch_bytes": 1 << 30},
        {"max_batch_count": 0},
        {"gather_bytes": 0},
        {"max_pending_bytes": 0},
    ],
    ids=str,
)
def test_senseless_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


def test_channels_reconnect_soon_and_never_retry_by_themselves() -> None:
    options = dict(channel_options())
    assert int(options["grpc.max_reconnect_backoff_ms"]) <= 200
    assert options["grpc.enable_retries"] == 0
