"""Resets of the offsets of a running group: its members follow, and none of them undoes the reset."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker_adapter.client import (
    Admin,
    ClientOptions,
    ConsumeFromWhere,
    ConsumeSettings,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import beat
from tests.node.local import until

QUEUES, COUNT, RESET_TO, TOPIC = 3, 20, 5, "orders"
OPTIONS = ClientOptions(timeout=60.0, poll_name_server_s=0.2, heartbeat_broker_s=0.2)
CONSUMING = ConsumeSettings(pull_retry_s=0.05, commit_interval_s=0.02)


class Group:
    """Members of one group, and the offsets that their listeners saw, by queue id."""

    def __init__(self, names: str, cluster: BrokerCluster) -> None:
        self.names = names
        self.cluster = cluster
        self.seen: dict[int, list[int]] = defaultdict(list)

    def member(self) -> PushConsumer:
        made = PushConsumer(
            "g",
            self.names,
            self._listen,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            settings=CONSUMING,
            options=OPTIONS,
        )
        made.subscribe(TOPIC)
        return made

    async def _listen(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            self.seen[message.queue.queue_id].append(message.queue_offset)

    async def all_is_consumed(self, admin: Admin, end: int = COUNT) -> None:
        wanted = {MessageQueue(TOPIC, "broker-a", queue): end for queue in range(QUEUES)}
        async with asyncio.timeout(60):
            while await admin.group_offsets("g") != wanted:
                await asyncio.sleep(0)

    async def reset(self, admin: Admin) -> None:
        for queue in range(QUEUES):
            await admin.reset_offset("g", MessageQueue(TOPIC, "broker-a", queue), RESET_TO)

    def has_seen_again(self, queue: int) -> bool:
        return all(self.seen[queue].count(offset) >= 2 for offset in range(RESET_TO, COUNT))


@pytest.fixture
async def group(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    count = getattr(request, "param", 1)
    async with name_server(tmp_path / "namesrv") as server:
        settings = {"remoting": {"listen": "127.0.0.1:0"}, "namesrv": [server.address]}
        async with brokers(tmp_path, count, settings) as cluster:
            await cluster.master()
            yield Group(server.address, cluster)


async def fill(admin: Admin, producer: Producer) -> None:
    await admin.create_topic(TOPIC, queues=QUEUES)
    for queue in range(QUEUES):
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%d" % number), queue=MessageQueue(TOPIC, "broker-a", queue))


class Paused:
    """A member that commits where it was, again and again, and never pulls: a program that stands in a
    debugger while the threads of its client go on."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self.commits = 0
        self._task = asyncio.create_task(self._commit())

    async def _commit(self) -> None:
        await self._asker.get(RequestCode.HEART_BEAT, beat("paused", "g", TOPIC))
        while True:
            for queue in range(QUEUES):
                fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": queue, "commitOffset": COUNT}
                await self._asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
            self.commits += 1
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.parametrize("members", [1, 3])
async def test_running_members_consume_again_from_the_offset_of_a_reset(group: Group, members: int) -> None:
    async with (
        Admin(group.names, options=OPTIONS) as admin,
        Producer("p", group.names, options=OPTIONS) as producer,
        AsyncExitStack() as stack,
    ):
        await fill(admin, producer)
        for _ in range(members):
            await stack.enter_async_context(group.member())
        await group.all_is_consumed(admin)
        for seen in group.seen.values():  # a rebalance may have given some of them twice
            seen[:] = range(COUNT)
        await group.reset(admin)
        await until(lambda: all(map(group.has_seen_again, range(QUEUES))))
        await group.all_is_consumed(admin)
        assert not any(offset < RESET_TO for seen in group.seen.values() for offset in seen[COUNT:])


async def test_a_member_that_left_a_queue_and_got_it_again_follows_a_reset(group: Group) -> None:
    """Its pull from before waits at the broker beside the new one, and nobody reads the answer to that."""
    master = await group.cluster.master()
    async with (
        Admin(group.names, options=OPTIONS) as admin,
        Producer("p", group.names, options=OPTIONS) as producer,
        AsyncExitStack() as stack,
    ):
        await fill(admin, producer)
        member = await stack.enter_async_context(group.member())
        await group.all_is_consumed(admin)
        for others, queue in enumerate((2, 1)):
            await until(lambda count=QUEUES + others: len(master.broker.long_polls) >= count)
            asker = await stack.enter_async_context(asking(master.remoting.address))
            await asker.get(RequestCode.HEART_BEAT, beat("0z"[others], "g", TOPIC))
            own = MessageQueue(TOPIC, "broker-a", queue)
            await until(lambda own=own: [one for one in member.assigned if one.topic == TOPIC] == [own])
        await until(lambda: len(master.broker.long_polls) > QUEUES)
        await group.reset(admin)
        await until(lambda: group.has_seen_again(1))


async def test_a_paused_member_does_not_undo_a_reset_and_others_take_its_queues_from_there(
    group: Group,
) -> None:
    master = await group.cluster.master()
    async with (
        Admin(group.names, options=OPTIONS) as admin,
        Producer("p", group.names, options=OPTIONS) as producer,
        AsyncExitStack() as stack,
    ):
        await fill(admin, producer)
        member = await stack.enter_async_context(group.member())
        await group.all_is_consumed(admin)
        async with asking(master.remoting.address) as asker:
            paused = Paused(asker)
            await until(lambda: sum(queue.topic == TOPIC for queue in member.assigned) < QUEUES)
            await group.reset(admin)
            commits = paused.commits
            await until(lambda: paused.commits > commits + 5)
            owned = {queue.queue_id for queue in member.assigned if queue.topic == TOPIC}
            await until(lambda: all(map(group.has_seen_again, owned)))
            offsets = await admin.group_offsets("g")
            left = {queue.queue_id: at for queue, at in offsets.items() if queue.queue_id not in owned}
            assert left and set(left.values()) == {RESET_TO}
            await paused.stop()
        await until(lambda: all(map(group.has_seen_again, range(QUEUES))))
        await group.all_is_consumed(admin)


@pytest.mark.parametrize("group", [3], indirect=True)
async def test_a_failover_after_a_reset_neither_undoes_nor_repeats_it(group: Group) -> None:
    async with (
        Admin(group.names, options=OPTIONS) as admin,
        Producer("p", group.names, options=OPTIONS) as producer,
        AsyncExitStack() as stack,
    ):
        await fill(admin, producer)
        member = await stack.enter_async_context(group.member())
        await group.all_is_consumed(admin)
        await group.reset(admin)
        await until(lambda: all(map(group.has_seen_again, range(QUEUES))))
        await group.all_is_consumed(admin)
        before = {queue: list(seen) for queue, seen in group.seen.items()}
        master = (await group.cluster.master()).config.node_id
        await group.cluster.stop(master)
        await group.cluster.master(other_than=master)
        for queue in range(QUEUES):
            name = MessageQueue(TOPIC, "broker-a", queue)
            await producer.send(Message(TOPIC, b"after"), queue=name)
        await group.all_is_consumed(admin, COUNT + 1)
        assert member.assigned
        for queue, seen in before.items():
            assert group.seen[queue] == [*seen, COUNT], "nothing again: it has committed since the reset"


@pytest.mark.parametrize("group", [3], indirect=True)
async def test_a_member_that_missed_the_reset_because_of_a_failover_moves_at_the_new_master(
    group: Group,
) -> None:
    """Its old commits reach a master that knows of the reset by the log alone."""
    async with (
        Admin(group.names, options=OPTIONS) as admin,
        Producer("p", group.names, options=OPTIONS) as producer,
    ):
        await fill(admin, producer)
        async with group.member():
            await group.all_is_consumed(admin)
            await group.reset(admin)
            master = (await group.cluster.master()).config.node_id
            await group.cluster.stop(master)
            await group.cluster.master(other_than=master)
            await until(lambda: all(map(group.has_seen_again, range(QUEUES))))
            await group.all_is_consumed(admin)
