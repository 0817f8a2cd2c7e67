"""Appends in a session: stored exactly once, in call order, whatever happens to streams and leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dledger import AsyncClient, Code, Indeterminate, InvalidRequest, Limits, Overloaded, SessionExpired
from tests.client.fake_cluster import (
    FakeSession,
    break_stream,
    refuse,
    store,
    store_and_break,
    store_and_swallow,
    swallow,
)
from tests.client.helpers import cluster_and_client, until

#: Every call in a batch of its own, all of them in flight at once.
ONE_EACH = Limits(max_batch_count=1, gather_bytes=1)


def names(count: int) -> list[bytes]:
    return [b"%03d" % i for i in range(count)]


async def append_all(client: AsyncClient, bodies: list[bytes]) -> list[object]:
    return await asyncio.gather(*map(client.append, bodies), return_exceptions=True)


async def test_the_session_opens_at_the_first_append_and_only_once() -> None:
    async with cluster_and_client(1) as (cluster, client):
        assert cluster.servers[0].opens == 0
        await append_all(client, names(5))
        await client.append(b"later")
        assert cluster.servers[0].opens == 1


async def test_results_say_where_each_entry_is() -> None:
    async with cluster_and_client(1) as (cluster, client):
        one = await client.append(b"one")
        many = await client.append_many([b"two", b"", b"three"])
        for result, body in zip([one, *many], [b"one", b"two", b"", b"three"], strict=True):
            stored = cluster.log.entries[result.index]
            assert (stored.body, stored.term, stored.pos) == (body, result.term, result.pos)


async def test_seq_starts_at_1_and_grows_by_1() -> None:
    async with cluster_and_client(1, limits=ONE_EACH) as (cluster, client):
        await append_all(client, names(20))
        assert [r.session.seq for r in cluster.servers[0].requests] == list(range(1, 21))


@pytest.mark.parametrize(
    "fault",
    [
        refuse(Code.NOT_LEADER),
        refuse(Code.LEADER_TRANSFERRING),
        refuse(Code.LEADER_PENDING_FULL),
        refuse(Code.SESSION_WINDOW_FULL),
        refuse(Code.SESSION_GAP),
        refuse(Code.TERM_CHANGED),
        refuse(Code.WAIT_QUORUM_ACK_TIMEOUT),
        refuse(Code.INTERNAL_ERROR),
        refuse(Code.DISK_FULL),
        refuse(Code.DISK_ERROR),
        break_stream,
        store_and_break,
    ],
)
async def test_order_and_uniqueness_survive(fault: object) -> None:
    async with cluster_and_client(1, limits=ONE_EACH) as (cluster, client):
        server = cluster.servers[0]
        server.answers.extend([store, store, fault, store, fault])
        results = await append_all(client, names(20))
        assert cluster.log.bodies == names(20)
        assert [cluster.log.entries[r.index].body for r in results] == names(20)
        assert server.streams >= 2


async def test_batch_boundaries_of_a_seq_never_change_when_sent_again() -> None:
    async with cluster_and_client(1) as (cluster, client):
        server = cluster.servers[0]
        server.answers.append(swallow)
        big = b"x" * 40_000
        calls = [asyncio.create_task(client.append(b"0" + big))]
        await until(lambda: len(server.requests) == 1)
        server.answers.extend([swallow, break_stream])
        calls += [asyncio.create_task(client.append(b"%d" % i + big)) for i in range(1, 60)]
        await asyncio.gather(*calls)
        contents: dict[int, set[tuple[bytes, ...]]] = {}
        for request in server.requests:
            contents.setdefault(request.session.seq, set()).add(tuple(request.bodies))
        assert len(server.requests) > len(contents), "nothing was sent again"
        assert all(len(variants) == 1 for variants in contents.values())


async def test_unanswered_batches_go_to_the_new_leader_when_the_old_one_dies() -> None:
    async with cluster_and_client(3, limits=ONE_EACH) as (cluster, client):
        old, new, _ = cluster.servers
        old.answers.extend([store, store_and_swallow, store_and_swallow, swallow, swallow, swallow])
        calls = asyncio.gather(*map(client.append, names(6)))
        await until(lambda: len(old.requests) == 6)
        cluster.lead(new)
        await old.kill()
        results = await calls
        assert cluster.log.bodies == names(6)
        assert [cluster.log.entries[r.index].body for r in results] == names(6)


async def test_a_refused_first_batch_is_not_overtaken_by_those_behind_it() -> None:
    async with cluster_and_client(3, limits=ONE_EACH) as (cluster, client):
        new = cluster.servers[1]
        await client.append(b"first")
        cluster.lead(new)
        await append_all(client, names(10))
        assert cluster.log.bodies == [b"first", *names(10)]
        assert new.requests


async def test_a_forgotten_position_is_a_success_without_a_place() -> None:
    async with cluster_and_client(1) as (cluster, client):
        await client.append(b"a")
        session: FakeSession = next(iter(cluster.log.sessions.values()))
        session.forgotten = True
        cluster.servers[0].answers.append(store_and_break)
        result = await client.append(b"b")
        assert (result.index, result.pos) == (-1, -1)
        assert cluster.log.bodies == [b"a", b"b"]


async def test_an_expired_session_fails_everything_until_the_user_opens_a_new_one() -> None:
    async with cluster_and_client(1, limits=ONE_EACH) as (cluster, client):
        await client.append(b"a")
        cluster.log.sessions.clear()
        outcomes = await append_all(client, names(20))
        assert all(isinstance(o, SessionExpired) for o in outcomes)
        assert len({id(o) for o in outcomes}) == 20, "each caller needs an exception of its own"
        with pytest.raises(SessionExpired):
            await client.append(b"b")
        assert cluster.servers[0].opens == 1, "a new session was opened silently"
        await client.new_session()
        await client.append(b"c")
        assert cluster.log.bodies == [b"a", b"c"]


async def test_concurrent_calls_for_a_new_session_get_the_same_one() -> None:
    """Each of many tasks that learn of the expiry asks for one: one is opened, and none is left behind."""
    async with cluster_and_client(1) as (cluster, client):
        await client.append(b"a")
        cluster.log.sessions.clear()
        sessions = await asyncio.gather(*(client.new_session() for _ in range(5)))
        assert len(set(map(id, sessions))) == 1 and cluster.servers[0].opens == 2
        await client.append(b"b")
        assert sessions[0] is client.appender and cluster.log.bodies == [b"a", b"b"]
        assert await client.new_session() is not sessions[0], "a later call wants another one"
        assert cluster.servers[0].opens == 3


async def test_a_call_for_a_new_session_that_fails_leaves_the_next_one_its_turn() -> None:
    async with cluster_and_client(1) as (cluster, client):
        await client.append(b"a")
        cluster.servers[0].gate.clear()
        outcomes = await asyncio.gather(
            client.new_session(timeout=0.1), client.new_session(timeout=0.2), return_exceptions=True
        )
        assert all(isinstance(outcome, Indeterminate) for outcome in outcomes)
        first = asyncio.create_task(client.new_session())
        second = asyncio.create_task(client.new_session())
        await asyncio.sleep(0)
        first.cancel()
        cluster.servers[0].gate.set()
        session = await second
        assert session is client.appender and first.cancelled()
        await client.append(b"b")
        assert cluster.log.bodies == [b"a", b"b"]


async def test_a_timed_out_append_is_indeterminate_and_leaves_no_hole_in_the_order() -> None:
    async with cluster_and_client(1) as (cluster, client):
        server = cluster.servers[0]
        await client.append(b"a")
        server.gate.clear()
        with pytest.raises(Indeterminate) as failed:
            await client.append(b"b", timeout=1.0)
        assert failed.value.code == Code.TIMEOUT
        server.gate.set()
        await client.append(b"c")
        assert cluster.log.bodies == [b"a", b"b", b"c"]


async def test_an_append_that_was_never_sent_is_refused_for_certain() -> None:
    async with cluster_and_client(1) as (cluster, client):
        cluster.lead(None)
        with pytest.raises(Exception, match="leader") as failed:
            await client.append(b"a", timeout=1.0)
        assert not isinstance(failed.value, Indeterminate)
        cluster.lead(cluster.servers[0])
        await client.append(b"b")
        assert cluster.log.bodies == [b"b"]


async def test_what_waits_behind_a_silent_batch_is_refused_for_certain() -> None:
    async with cluster_and_client(1) as (cluster, client):
        await client.append(b"a")
        cluster.servers[0].answers.append(swallow)
        sent = asyncio.create_task(client.append(b"b", timeout=1.0))
        await until(lambda: len(cluster.servers[0].requests) == 2)
        with pytest.raises(Overloaded):
            await client.append(b"c", timeout=0.01)
        with pytest.raises(Indeterminate):
            await sent
        await client.close(0)


async def test_a_paused_leader_is_left_for_the_one_with_the_later_term() -> None:
    async with cluster_and_client(3, stall_timeout=1.0) as (cluster, client):
        old, new, _ = cluster.servers
        await client.append(b"a")
        old.gate.clear()
        waiting = asyncio.create_task(client.append(b"b"))
        await until(lambda: len(old.requests) == 2)
        cluster.lead(new)
        result = await waiting
        assert result.term == 2
        assert cluster.log.bodies == [b"a", b"b"]


async def test_a_slow_leader_is_not_left_while_nobody_else_leads() -> None:
    async with cluster_and_client(3, stall_timeout=0.01) as (cluster, client):
        await client.append(b"a")
        server = cluster.servers[0]
        server.answers.append(swallow)
        lost = asyncio.create_task(client.append(b"b", timeout=1.0))
        with pytest.raises(Indeterminate):
            await lost
        assert server.streams == 1
        await client.close(0)


async def test_a_rejected_body_fails_alone_and_the_session_goes_on() -> None:
    async with cluster_and_client(1) as (cluster, client):
        cluster.servers[0].rejected_body = b"bad"
        await client.append(b"a")
        outcomes = await append_all(client, [b"b", b"c", b"bad", b"d"])
        assert isinstance(outcomes[2], InvalidRequest)
        assert cluster.log.bodies == [b"a", b"b", b"c", b"d"]
        await client.append(b"e")


async def test_batches_behind_a_rejected_one_get_its_seq_and_stay_in_order() -> None:
    async with cluster_and_client(1, limits=ONE_EACH) as (cluster, client):
        await client.append(b"a")
        cluster.servers[0].answers.append(refuse(Code.BODY_TOO_LARGE))
        outcomes = await append_all(client, names(6))
        assert isinstance(outcomes[0], InvalidRequest)
        assert cluster.log.bodies == [b"a", *names(6)[1:]]


async def test_a_batch_rejected_when_sent_again_ends_the_session() -> None:
    """An earlier attempt may linger in a server, so its seq cannot be given to other bodies."""
    async with cluster_and_client(1) as (cluster, client):
        await client.append(b"a")
        cluster.servers[0].answers.extend([break_stream, refuse(Code.BATCH_TOO_LARGE)])
        with pytest.raises(Indeterminate):
            await client.append(b"b")
        with pytest.raises(Indeterminate):
            await client.append(b"c")
        await client.new_session()
        await client.append(b"d")


async def test_sessions_of_one_client_are_independent() -> None:
    async with cluster_and_client(1) as (cluster, client):
        async with client.session() as one, await client.open_session() as two:
            assert (one.session_id, two.session_id) == (None, 0)
            await asyncio.gather(one.append(b"1"), two.append(b"2"))
            assert one.session_id != two.session_id
        with pytest.raises(Exception, match="closed"):
            await one.append(b"3")
        await client.append(b"4")
        assert sorted(cluster.log.bodies) == [b"1", b"2", b"4"]


async def test_opening_a_session_follows_the_leader_and_gives_up_in_time() -> None:
    async with cluster_and_client(3) as (cluster, client):
        cluster.servers[0].open_answers.extend([refuse(Code.LEADER_TRANSFERRING), refuse(Code.TERM_CHANGED)])
        session = await client.open_session()
        assert session.session_id == 0
        cluster.lead(None)
        with pytest.raises(Indeterminate):
            await client.open_session(timeout=1.0)


async def test_a_wrong_group_is_an_error_at_once() -> None:
    async with cluster_and_client(1) as (cluster, client):
        cluster.servers[0].open_answers.append(refuse(Code.UNKNOWN_GROUP))
        with pytest.raises(InvalidRequest):
            await client.append(b"a")


async def test_what_a_session_sends_again_is_told_of() -> None:
    told: list[int] = []

    def note(bodies: Sequence[bytes], number: int) -> None:
        told.append(number)
        raise ValueError("the hook's error does not concern the append")

    async with cluster_and_client(1, on_attempt=note) as (
        cluster,
        client,
    ):
        await client.append(b"a")
        cluster.servers[0].answers.append(store_and_break)
        await client.append(b"b")
        assert told == [1, 1, 2] and cluster.log.bodies == [b"a", b"b"]
