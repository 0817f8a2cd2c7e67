"""Members of a group: who gets which queue, in which order, from where on, through all that may happen."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import pytest

from broker_adapter.api import Assignment, OutgoingMessage, QueueOffset, QueueStats, TopicConfig
from broker_adapter.client.consumer import Consumer
from broker_adapter.client.listening import GroupListener
from broker_adapter.client.routes import StaticRoutes
from broker_adapter.client.values import Message, MessageQueue
from broker_adapter.errors import Status, TopicRefused
from broker_adapter.format.properties import TAGS
from tests.broker_adapter.client.helpers import routes_to, until
from tests.broker_adapter.memory_broker import MemoryBrokers

QUEUES = 6


#: Of a member: what ("assigned" from an offset on, or "seen" at an offset), its name, queue, offset.
Event = tuple[Literal["assigned", "seen"], str, int, int]


class Assignments(GroupListener):
    """Notes where a member begins with each queue."""

    def __init__(self, member: str, histories: list[Event]) -> None:
        self.member = member
        self.histories = histories

    def assigned(self, queue: MessageQueue, offset: int, generation: int) -> None:
        self.histories.append(("assigned", self.member, queue.queue_id, offset))


class World:
    """Brokers with one topic, and what all consumers of the group have been handed."""

    def __init__(self, brokers: MemoryBrokers, routes: StaticRoutes) -> None:
        self.brokers = brokers
        self.cluster = brokers.cluster
        self.routes = routes
        self.seen: dict[int, list[int]] = defaultdict(list)  # queue -> offsets, as they came
        self.histories: list[Event] = []  # as they came
        self.produced = 0

    def consumer(self, group: str = "g", topics: Any = "t", **options: Any) -> Consumer:
        name = options.get("member_id", "")

        async def handle(message: Message) -> None:
            self.histories.append(("seen", name, message.queue_id, message.queue_offset))
            self.seen[message.queue_id].append(message.queue_offset)
            await asyncio.sleep(0)

        options = {
            "lease": 1.0,
            "commit_interval": 0.05,
            "handler": handle,
            "listener": Assignments(name, self.histories),
        } | options
        return Consumer(self.routes, group, topics, **options)

    def produce(self, count: int, *, queue_id: int | None = None, tag: str = "") -> None:
        broker = self.cluster.brokers[0]
        for _ in range(count):
            q = self.produced % QUEUES if queue_id is None else queue_id
            message = OutgoingMessage(b"%d" % self.produced, {TAGS: tag} if tag else {})
            broker._store("t", q, [message], "")
            self.produced += 1
        self.cluster.wake()

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        return self.cluster.groups["g"].offsets

    def all_seen(self) -> bool:
        return all(set(self.seen[q]) >= set(range(len(self.cluster.queues["t", q]))) for q in range(QUEUES))

    def all_committed(self) -> bool:
        return all(self.offsets.get(("t", q), 0) == len(self.cluster.queues["t", q]) for q in range(QUEUES))

    def check_order(self) -> None:
        """Nothing of a queue is left out, and each member gets it without a gap from where it begins.

        Two members may have a queue at once for a moment: the old one goes on until it hears of the new one.
        """
        highest: dict[int, int] = defaultdict(lambda: -1)
        following: dict[tuple[str, int], int] = {}
        for event, member, queue, offset in self.histories:
            if event == "assigned":
                assert offset <= highest[queue] + 1, (
                    f"{member} begins {queue} at {offset}, behind {highest[queue]}"
                )
                following[member, queue] = offset
            else:
                expected = following[member, queue]
                assert offset == expected, f"{member} got {offset} of {queue} instead of {expected}"
                following[member, queue] = offset + 1
                highest[queue] = max(highest[queue], offset)


@asynccontextmanager
async def world(size: int = 2) -> AsyncIterator[World]:
    async with MemoryBrokers(size) as brokers, routes_to(brokers) as routes:
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t", QUEUES, QUEUES))
        yield World(brokers, routes)


class RefusedCommits:
    """A master that refuses commits, as it does between the deletion of a topic and the next generation."""

    def __init__(self, w: World, monkeypatch: pytest.MonkeyPatch, most: float) -> None:
        self.refused = 0
        self.joins = 0
        broker = w.cluster.brokers[0]
        commit, join = broker.commit_offsets, broker.join

        async def refuse(*arguments: Any) -> None:
            if self.refused < most:
                self.refused += 1
                raise TopicRefused(Status.TOPIC_UNKNOWN, "there is no topic 'u'")
            await commit(*arguments)

        async def count(*arguments: Any) -> Assignment:
            self.joins += 1
            return await join(*arguments)

        monkeypatch.setattr(broker, "commit_offsets", refuse)
        monkeypatch.setattr(broker, "join", count)


async def test_a_commit_that_is_refused_for_a_deleted_topic_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        commits = RefusedCommits(w, monkeypatch, most=3)
        # No heartbeat commits within the test: only the regular commits do.
        async with w.consumer(lease=600.0):
            w.produce(60)
            await until(w.all_committed)
            assert commits.refused == 3


async def test_a_member_whose_commits_are_refused_stays_in_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        commits = RefusedCommits(w, monkeypatch, most=float("inf"))
        async with w.consumer(lease=1.0, commit_interval=600.0) as consumer:
            w.produce(60)
            await until(lambda: commits.refused > 3)
            before = commits.joins
            await until(lambda: commits.joins > before + 3)
            assert len(consumer.assignment) == QUEUES


async def test_a_queue_that_is_gone_again_when_its_beginning_is_asked_for_is_asked_for_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        broker, asked = w.cluster.brokers[0], 0
        stats = broker.topic_stats

        async def without_the_first(topic: str) -> list[QueueStats]:
            nonlocal asked
            asked += 1
            return (await stats(topic))[1 if asked < 3 else 0 :]

        consumer = w.consumer(lease=600.0)
        await consumer.start()
        try:
            w.produce(60)
            await until(w.all_committed)
            monkeypatch.setattr(broker, "topic_stats", without_the_first)
            w.cluster.groups["g"].generation += 1
            w.offsets.clear()  # so that it has to ask where to begin
            w.produce(60)
            await until(w.all_committed)
            assert asked >= 3
        finally:
            await consumer.close()


async def test_a_single_member_gets_every_message_in_the_order_of_its_queue() -> None:
    async with world() as w:
        w.produce(300)
        async with w.consumer() as consumer:
            await until(lambda: sum(map(len, w.seen.values())) == 300)
            w.produce(60)
            await until(lambda: sum(map(len, w.seen.values())) == 360)
            assert len(consumer.assignment) == QUEUES
        assert all(w.seen[q] == list(range(60)) for q in range(QUEUES))
        assert w.all_committed()
        assert not w.cluster.groups["g"].members


async def test_messages_can_be_iterated_and_count_when_the_next_is_asked_for() -> None:
    async with world() as w:
        w.produce(10, queue_id=3)
        async with w.consumer(handler=None) as consumer:
            got = []
            async for message in consumer:
                got.append(message.queue_offset)
                if len(got) == 10:
                    break
            assert got == list(range(10))
        # The tenth was left by break: nobody said that it is consumed.
        assert w.offsets["t", 3] == 9


async def test_a_consumer_that_is_closed_ends_its_iteration() -> None:
    async with world() as w:
        consumer = w.consumer(handler=None)
        await consumer.start()

        async def iterate() -> list[Message]:
            return [message async for message in consumer]

        iteration = asyncio.ensure_future(iterate())
        await asyncio.sleep(0)
        await consumer.close()
        assert await iteration == []


async def test_a_later_consumer_goes_on_where_the_group_has_stopped() -> None:
    async with world() as w:
        w.produce(60)
        async with w.consumer():
            await until(w.all_seen)
        w.produce(60)
        w.seen.clear()
        async with w.consumer():
            await until(lambda: sum(map(len, w.seen.values())) == 60)
            await until(w.all_committed)
        assert all(w.seen[q] == list(range(10, 20)) for q in range(QUEUES))


@pytest.mark.parametrize("start", ["latest", 1_700_000_000_001])
async def test_a_new_group_begins_where_it_is_told(start: str | int) -> None:
    async with world() as w:
        w.produce(60)
        w.cluster.now_ms += 1
        async with w.consumer(start=start) as consumer:
            await until(lambda: len(consumer.assignment) == QUEUES)
            w.produce(6)
            await until(lambda: sum(map(len, w.seen.values())) == 6)
        assert all(w.seen[q] == [10] for q in range(QUEUES))


async def test_tags_select_and_what_is_passed_over_is_committed() -> None:
    async with world() as w:
        for tag in ("a", "b", "c"):
            w.produce(6, tag=tag)
        async with w.consumer(topics={"t": "a || c"}):
            await until(w.all_committed)
        assert all(w.seen[q] == [0, 2] for q in range(QUEUES))


async def test_a_handler_that_fails_gets_the_message_again_before_any_other() -> None:
    async with world() as w:
        failed: list[int] = []

        def handler(message: Message) -> None:
            if message.queue_offset == 2 and len(failed) < 3:
                failed.append(message.queue_offset)
                raise ValueError("not now")
            w.seen[message.queue_id].append(message.queue_offset)

        w.produce(5, queue_id=0)
        async with w.consumer(handler=handler, retry_pause=0.01):
            await until(lambda: len(w.seen[0]) == 5)
        assert failed == [2, 2, 2] and w.seen[0] == [0, 1, 2, 3, 4]


async def test_prefetch_is_bounded_in_bytes() -> None:
    async with world() as w:
        gate = asyncio.Event()

        async def handler(message: Message) -> None:
            await gate.wait()
            w.seen[0].append(message.queue_offset)

        w.cluster.brokers[0]._store("t", 0, [OutgoingMessage(bytes(1000)) for _ in range(400)], "")
        async with w.consumer(handler=handler, prefetch_bytes=60_000) as consumer:
            await until(lambda: consumer.buffered_bytes > 5_000)
            await until(lambda: w.cluster.brokers[0].pulls == QUEUES - 1)  # the full queue asks no more
            assert consumer.buffered_bytes <= 60_000 // QUEUES + 1_200
            gate.set()
            await until(lambda: len(w.seen[0]) == 400)
        assert w.seen[0] == list(range(400))


async def test_three_members_share_the_queues_and_nothing_is_lost_when_they_come_and_go() -> None:
    async with world() as w, AsyncExitStack() as stack:
        first = await stack.enter_async_context(w.consumer(member_id="a"))
        w.produce(120)
        second = await stack.enter_async_context(w.consumer(member_id="b"))
        w.produce(120)
        third = w.consumer(member_id="c")
        await third.start()
        members = (first, second, third)
        await until(lambda: [len(m.assignment) for m in members] == [2, 2, 2])
        owned = [queue for m in members for queue in m.assignment]
        assert len(set(owned)) == QUEUES
        w.produce(120)
        await until(w.all_committed)  # the others go on behind what they have never seen
        await third.close()
        await until(lambda: len(first.assignment) + len(second.assignment) == QUEUES)
        w.produce(120)
        await until(w.all_seen)
        await until(w.all_committed)
        w.check_order()


async def test_a_member_that_dies_loses_its_queues_to_the_others() -> None:
    async with world() as w:
        dead = w.consumer(member_id="a")
        await dead.start()
        for task in dead._members[0]._tasks:  # no heartbeat and no commit any more
            task.cancel()
        async with w.consumer(member_id="b") as alive:
            await until(lambda: len(alive.assignment) == QUEUES)
            w.produce(60)
            await until(w.all_committed)
        await dead.close()


async def test_after_a_change_of_master_the_group_goes_on_from_what_was_acknowledged() -> None:
    async with world() as w:
        w.produce(120)
        async with w.consumer(member_id="a") as consumer:
            await until(w.all_committed)
            generation = consumer.generations[0]
            w.cluster.lead(1)
            await w.brokers.nodes[0].kill()
            w.produce(120)
            await until(lambda: consumer.generations[0] > generation)
            await until(w.all_committed)
        assert all(w.seen[q] == list(range(40)) for q in range(QUEUES))  # not one was delivered twice


async def test_members_and_masters_change_under_load_and_nothing_is_lost() -> None:
    async with world(3) as w, AsyncExitStack() as stack:
        members = [await stack.enter_async_context(w.consumer(member_id="a"))]
        for round_ in range(6):
            w.produce(60)
            w.cluster.lead(None)
            w.produce(30)
            w.cluster.lead((round_ + 1) % 3)
            if round_ < 2:
                members.append(await stack.enter_async_context(w.consumer(member_id=f"m{round_}")))
            w.produce(30)
            await until(lambda: sum(len(m.assignment) for m in members) == QUEUES)
        await until(w.all_seen)
        await until(w.all_committed)
        w.check_order()
        highest: dict[QueueOffset, int] = {}
        for _, _, offsets in w.cluster.commits:
            for o in offsets:
                key = o._replace(offset=0)
                highest[key] = max(highest.get(key, 0), o.offset)
        assert all(o == w.offsets[key.topic, key.queue_id] for key, o in highest.items())


async def test_a_reset_makes_members_go_back() -> None:
    async with world() as w:
        w.produce(60)
        async with w.consumer():
            await until(w.all_committed)
            await w.cluster.brokers[0].reset_offsets("g", [QueueOffset("t", 2, 4)])
            await until(lambda: len(w.seen[2]) == 16)
            await until(w.all_committed)
        assert w.seen[2] == [*range(10), *range(4, 10)]
        assert w.seen[1] == list(range(10))


async def test_messages_that_retention_took_are_passed_over() -> None:
    async with world() as w:
        w.produce(20, queue_id=0)
        w.cluster.trim("t", 0, 15)
        w.offsets["t", 0] = 3
        async with w.consumer():
            await until(lambda: w.offsets["t", 0] == 20)
        assert w.seen[0] == [15, 16, 17, 18, 19]


async def test_a_topic_that_does_not_exist_is_refused_at_the_start() -> None:
    async with world() as w:
        with pytest.raises(TopicRefused):
            async with w.consumer(topics="nothing"):
                pass


@pytest.mark.parametrize(("topics", "start"), [((), "earliest"), ("t", "tomorrow")])
async def test_what_makes_no_sense_is_refused(topics: Any, start: str) -> None:
    async with world() as w:
        with pytest.raises(ValueError, match=r"topic|start"):
            w.consumer(topics=topics, start=start)
