"""A reset of the offsets of a running group, as clients of the remoting protocol see it at their node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from broker_adapter.api import BrokerApi, QueueOffset
from broker_adapter.endpoints.v4.pulls import COMMIT_OFFSET, PullCommits
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import Language, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import SUBSCRIPTION, SUSPEND, beat, pull, slave
from tests.node.local import until

QUEUE = {"topic": "t", "queueId": 0}
GROUP = {"consumerGroup": "g", **QUEUE}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    """Ten messages in one queue."""
    async with brokers(tmp_path, 2, LISTEN) as cluster:
        master = await cluster.master()
        async with asking(master.remoting.address) as asker:
            await asker.get(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic="t",
                readQueueNums=1,
                writeQueueNums=1,
                perm=6,
            )
            for number in range(10):
                await asker.send("t", b"%d" % number, 0)
        yield cluster


async def reset(asker: Asker, offset: int) -> None:
    fields = {"group": "g", **QUEUE, "offset": offset, "timestamp": -1, "isForce": "true"}
    await asker.get(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)


async def commit(asker: Asker, offset: int) -> int:
    """The response code."""
    return (await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **GROUP, commitOffset=offset)).code


async def stored(asker: Asker) -> int:
    return int((await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **GROUP))["offset"])


async def join(cluster: BrokerCluster, asker: Asker, client_id: str, **of_beat: str) -> None:
    """As a member at each node: the connection is that to one of them."""
    body = beat(client_id, "g", "t")
    if of_beat:
        told = json.loads(body)
        told["consumerDataSet"][0].update(of_beat)
        body = json.dumps(told).encode()
    await asker.get(RequestCode.HEART_BEAT, body)


CARRIED = {"sysFlag": COMMIT_OFFSET | SUBSCRIPTION}


async def test_a_pull_commits_the_offset_that_it_carries(cluster: BrokerCluster) -> None:
    """Push consumers commit with each pull, too: one that is killed consumes less again."""
    async with (
        asking((await cluster.master()).remoting.address) as member,
        asking(slave(cluster)) as operator,
    ):
        await join(cluster, member, "m")
        assert (await pull(member, "t", 1, **CARRIED, commitOffset=99)).code == ResponseCode.SUCCESS
        assert await stored(operator) == 0, "it is beyond the end, and the pull succeeds without it"
        assert (await pull(member, "t", 5, commitOffset=3)).code == ResponseCode.SUCCESS
        assert await stored(operator) == 0, "this pull says that it carries none"
        assert (await pull(member, "t", 5, **CARRIED, commitOffset=4)).code == ResponseCode.SUCCESS
        assert await stored(operator) == 4


async def test_a_pull_that_has_not_followed_a_reset_commits_nothing(cluster: BrokerCluster) -> None:
    async with (
        asking((await cluster.master()).remoting.address) as member,
        asking(slave(cluster)) as operator,
    ):
        await join(cluster, member, "m")
        assert (await pull(member, "t", 5)).code == ResponseCode.SUCCESS
        await reset(operator, 1)
        moved = await pull(member, "t", 6, **CARRIED, commitOffset=6)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
        assert await stored(operator) == 1


async def test_a_queue_has_one_commit_of_its_pulls_in_five_seconds() -> None:
    committed, now = list[int](), 0.0

    class Broker:
        async def commit_offsets(self, group: str, offsets: Sequence[QueueOffset], *, client_id: str) -> None:
            committed.extend(one.offset for one in offsets)

    commits = PullCommits(cast(BrokerApi, Broker()), lambda: now)
    for now, offset in ((0.0, 1), (1.0, 2), (4.9, 3), (5.0, 4), (20.0, 4), (20.0, 5)):  # noqa: B007
        await commits.commit("g", QueueOffset("t", 0, offset), "c")
    assert committed == [1, 4, 5]


async def test_a_commit_from_before_a_reset_is_answered_in_words_that_it_does_not_count(
    cluster: BrokerCluster,
) -> None:
    master = (await cluster.master()).remoting.address
    async with asking(master) as member, asking(master) as operator:
        await join(cluster, member, "m")
        assert (await pull(member, "t", 5)).code == ResponseCode.SUCCESS
        await reset(operator, 1)
        fields = {**GROUP, "commitOffset": 6}
        void = await member.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
        assert (void.code, void.remark) == (ResponseCode.SUCCESS, "Offset has been previously reset")
        assert (await pull(member, "t", 6)).code == ResponseCode.PULL_OFFSET_MOVED
        assert (await pull(member, "t", 1)).code == ResponseCode.SUCCESS
        counted = await member.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
        assert (counted.code, counted.remark) == (ResponseCode.SUCCESS, None)


@pytest.mark.parametrize("offset", [1, 9])
async def test_a_member_follows_a_reset_with_its_next_pull(cluster: BrokerCluster, offset: int) -> None:
    master = (await cluster.master()).remoting.address
    async with asking(master) as member, asking(master) as operator:
        await join(cluster, member, "m")
        assert (await pull(member, "t", 5)).code == ResponseCode.SUCCESS
        assert await commit(member, 6) == ResponseCode.SUCCESS
        await reset(operator, offset)
        assert await commit(member, 6) == ResponseCode.SUCCESS
        assert await stored(operator) == offset
        moved = await pull(member, "t", 6)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(offset))
        assert (await pull(member, "t", offset)).code == ResponseCode.SUCCESS
        assert await commit(member, 10) == ResponseCode.SUCCESS
        assert await stored(operator) == 10


async def test_a_member_that_wants_none_of_the_messages_commits_behind_them(cluster: BrokerCluster) -> None:
    master = (await cluster.master()).remoting.address
    async with asking(master) as member:
        await join(cluster, member, "m")
        await reset(member, 3)
        found = await pull(member, "t", 3, sysFlag=SUBSCRIPTION, subscription="other")
        assert (found.code, found.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "10")
        assert await commit(member, 10) == ResponseCode.SUCCESS
        assert await stored(member) == 10


async def test_a_reset_completes_a_pull_that_waits(cluster: BrokerCluster) -> None:
    master = await cluster.master()
    async with asking(master.remoting.address) as member, asking(master.remoting.address) as operator:
        await join(cluster, member, "m")
        waiting = asyncio.create_task(
            pull(member, "t", 10, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=60_000)
        )
        await until(lambda: len(master.broker.long_polls) == 1)
        await reset(operator, 3)
        moved = await asyncio.wait_for(waiting, 30)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")


async def test_a_member_that_pulls_through_a_slave_follows_as_well(cluster: BrokerCluster) -> None:
    """Its heartbeats come to every node, and its pulls to the master by way of the slave."""
    master = (await cluster.master()).remoting.address
    async with asking(master) as known, asking(slave(cluster)) as member:
        await join(cluster, known, "m")
        await join(cluster, member, "m")
        await reset(known, 3)
        assert (await pull(member, "t", 6)).code == ResponseCode.PULL_OFFSET_MOVED
        assert await commit(member, 6) == ResponseCode.SUCCESS
        assert await stored(known) == 3
        assert (await pull(member, "t", 3)).code == ResponseCode.SUCCESS
        assert await commit(member, 5) == ResponseCode.SUCCESS
        assert await stored(known) == 5


class Noticed:
    """A client that is sent requests."""

    def __init__(self) -> None:
        self.requests: list[RemotingCommand] = []
        self.dispatch = Dispatch()
        self.dispatch.register(
            [RequestCode.RESET_CONSUMER_CLIENT_OFFSET], self._take, Executor("resets", 9, 9)
        )

    async def _take(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        self.requests.append(request)


async def test_a_client_in_cpp_is_sent_its_new_offset_in_the_form_that_it_can_read(
    cluster: BrokerCluster,
) -> None:
    master, client = (await cluster.master()).remoting.address, Noticed()
    async with asking(master) as operator:
        connection = await connect(master, timeout_s=10, dispatch=client.dispatch)
        member = Asker(connection)
        try:
            heartbeat = RemotingCommand(
                RequestCode.HEART_BEAT, {}, beat("c", "g", "t"), language=Language.CPP
            )
            assert (await connection.invoke(heartbeat, 40)).code == ResponseCode.SUCCESS
            await reset(operator, 3)
            assert (await pull(member, "t", 6)).code == ResponseCode.PULL_NOT_FOUND
            await until(lambda: bool(client.requests))
            (told,) = client.requests
            assert json.loads(told.body) == {
                "offsetTable": [{"brokerName": "broker-a", "queueId": 0, "topic": "t", "offset": 3}]
            }
            assert (told.fields["group"], told.fields["topic"]) == ("g", "t")
            assert (await pull(member, "t", 3)).code == ResponseCode.SUCCESS
        finally:
            connection.close("asked")


async def test_a_member_that_broadcasts_is_sent_the_offsets_and_pulls_where_it_likes(
    cluster: BrokerCluster,
) -> None:
    master, client = (await cluster.master()).remoting.address, Noticed()
    async with asking(master) as operator:
        connection = await connect(master, timeout_s=10, dispatch=client.dispatch)
        try:
            member = Asker(connection)
            await join(cluster, member, "b", messageModel="BROADCASTING")
            await reset(operator, 3)
            await until(lambda: bool(client.requests))
            assert b'"queueId":0' in client.requests[0].body
            assert (await pull(member, "t", 6)).code == ResponseCode.SUCCESS
        finally:
            connection.close("asked")


async def test_clustering_members_are_not_sent_a_reset(cluster: BrokerCluster) -> None:
    """The Java client would drop its queue twice: for the request, and 10 s after the answer to its pull."""
    master, client = (await cluster.master()).remoting.address, Noticed()
    async with asking(master) as operator:
        connection = await connect(master, timeout_s=10, dispatch=client.dispatch)
        try:
            member = Asker(connection)
            await join(cluster, member, "m")
            await reset(operator, 3)
            assert (await pull(member, "t", 6)).code == ResponseCode.PULL_OFFSET_MOVED
            assert not client.requests
        finally:
            connection.close("asked")


async def test_an_imported_offset_counts_from_a_connection_that_is_no_member(cluster: BrokerCluster) -> None:
    """A mirror commits the offsets of the other cluster: the master asks for patience while it is new."""
    master = await cluster.master()
    async with asking(master.remoting.address) as operator:
        await reset(operator, 3)
        assert await commit(operator, 5) == ResponseCode.SYSTEM_BUSY
        master.groups.barriers._started_s = float("-inf")
        assert await commit(operator, 5) == ResponseCode.SUCCESS
        assert await stored(operator) == 5


async def test_a_commit_of_a_tool_counts_from_the_first_second_of_a_master(cluster: BrokerCluster) -> None:
    """mqadmin's cloneGroupOffset: in Java, without a heartbeat, and waiting for the answer."""
    master = (await cluster.master()).remoting.address
    fields = {name: str(value) for name, value in GROUP.items()}

    def commit_in_java(offset: int, flag: int = 0) -> RemotingCommand:
        told = {**fields, "commitOffset": str(offset)}
        return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, told, flag=flag, language=Language.JAVA)

    async with asking(master) as operator, asking(master) as member:
        await reset(operator, 3)
        assert (await operator.connection.invoke(commit_in_java(5), 40)).code == ResponseCode.SUCCESS
        assert await stored(operator) == 5
        operator.connection.notify(commit_in_java(6, RemotingCommand.oneway(0).flag))  # as a consumer does
        await join(cluster, member, "m")
        assert (await member.connection.invoke(commit_in_java(7), 40)).code == ResponseCode.SUCCESS
        assert await stored(operator) == 5
