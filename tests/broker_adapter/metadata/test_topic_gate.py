"""No message lies behind the deletion of its topic in the log: acknowledged, and read by nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from broker_adapter.api import OutgoingMessage, QueueStats, TopicConfig
from broker_adapter.errors import BrokerError, Busy, IllegalMessage, Status
from broker_adapter.log.replicated import ReplicatedAppends
from broker_adapter.metadata.commands import METADATA_TOPIC, Command, DeleteTopic, PutTopic
from broker_adapter.metadata.config_changes import ConfigChanges
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome
from broker_adapter.metadata.writable_topics import TopicGate
from broker_adapter.put import message_writer
from broker_adapter.put.message_writer import MessageWriter, PutLimits
from broker_adapter.wire.host import NO_HOST, Host
from dledger import AppendOutcome, Assigned


class World:
    """A master whose log takes everything at once, and applies it when the test says so."""

    def __init__(self) -> None:
        self.metadata = MetadataState()
        self.gate = TopicGate(self.metadata)
        self.log: list[tuple[int, bytes]] = []
        self.index = 0
        self.writer = MessageWriter(
            ReplicatedAppends(self),
            Host(bytes((10, 0, 0, 1)), 10911),
            PutLimits(
                max_body_bytes=1000,
                max_command_bytes=1000,
                timeout_ms=500,
            ),
            master=lambda: None,
            topics=self.gate,
        )
        self.writer.open_for(3, 7)

    @property
    def steps_ms(self) -> int:
        return 0

    def cluster_time_ms(self) -> int:
        return 1

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Callable[[Assigned], Sequence[bytes]],
        *,
        expected: tuple[int, int],
        timeout: float | None = None,
    ) -> asyncio.Future[AppendOutcome]:
        fill(Assigned(self.index, 3, [1000 * self.index + 100 * n for n in range(len(sizes))], 5))
        future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        future.set_result(AppendOutcome(self.index, len(sizes), 3, 0))
        self.index += len(sizes)
        return future

    async def propose(self, command: Command) -> None:
        body = encode(command)
        index = await self.writer.put_command(METADATA_TOPIC, body, self.gate.appending(body))
        self.log.append((index, body))

    def apply(self) -> None:
        for index, body in self.log:
            self.metadata.apply(index, body)

    async def made(self, queues: int = 2) -> None:
        await self.propose(put(queues))
        self.apply()

    async def send(self, queue_id: int = 0) -> None:
        records = self.writer.records("T", queue_id, [OutgoingMessage(b"x")], born_host=NO_HOST)
        await self.writer.put_stored([records])


def put(queues: int, *, create_only: bool = False) -> PutTopic:
    return PutTopic(TopicConfig("T", read_queues=queues, write_queues=queues), create_only)


async def refused(world: World, queue_id: int = 0) -> None:
    before = world.index
    with pytest.raises(Busy) as caught:
        await world.send(queue_id)
    assert caught.value.status is Status.TOPIC_CHANGED
    assert world.index == before, "nothing was stored"


async def test_a_send_behind_a_deletion_that_is_not_applied_yet_is_refused() -> None:
    world = World()
    await world.made()
    await world.send()
    await world.propose(DeleteTopic("T"))
    await refused(world)
    world.apply()
    await refused(world)


async def test_of_several_changes_that_are_not_applied_yet_each_may_be_the_one_that_counts() -> None:
    """The later one may be refused when it is applied: what was sent in its favour would be lost."""
    world = World()
    await world.made(4)
    await world.propose(put(2))
    await world.propose(put(8))
    await refused(world, queue_id=3)
    await world.send(1)
    world.apply()
    await world.send(7)
    await world.propose(DeleteTopic("T"))
    await world.propose(put(2))
    await refused(world)


async def test_a_topic_that_was_made_anew_takes_messages_once_that_is_applied() -> None:
    world = World()
    await world.made()
    await world.propose(DeleteTopic("T"))
    await world.propose(put(2, create_only=True))
    await refused(world)
    world.apply()
    await world.send(1)


async def test_a_deletion_that_was_refused_is_none() -> None:
    world = World()
    await world.propose(DeleteTopic("T"))
    await world.propose(put(2, create_only=True))
    world.apply()
    await world.send()


async def test_a_send_to_a_queue_that_the_topic_is_about_to_lose_is_refused() -> None:
    world = World()
    await world.made(4)
    await world.propose(put(2))
    await world.send(1)
    await refused(world, 2)
    assert world.gate.fitting_queue("T", 3) == 1, "a delayed message that comes due would be dropped"
    world.apply()
    await refused(world, 2)
    await world.send(1)
    assert world.gate.fitting_queue("T", 3) == 1


async def test_queues_that_only_readers_see_take_messages_of_producers_with_an_old_route() -> None:
    """An administrator shrinks a topic by its write queues first, and waits until the others are read."""
    world = World()
    await world.propose(PutTopic(TopicConfig("T", read_queues=4, write_queues=2)))
    world.apply()
    config = world.metadata.topic("T")
    assert config is not None
    assert [world.writer.queue_of(config, -1) for _ in range(4)] == [0, 1, 0, 1]
    assert world.writer.queue_of(config, 3) == 3
    await world.send(3)
    assert world.gate.fitting_queue("T", 3) == 3, "a delayed message or a half stays in its queue"
    assert world.gate.fitting_queue("T", 4) == 0
    with pytest.raises(IllegalMessage, match="has 4 queues; queue 4 does not exist"):
        world.writer.queue_of(config, 4)
    await refused(world, 4)


async def test_no_message_enters_a_queue_that_an_administrator_removes() -> None:
    """Not even between the last look at the queue and its removal, and whichever number of queues falls."""
    world = World()
    await world.propose(PutTopic(TopicConfig("T", read_queues=4, write_queues=2)))
    world.apply()
    proposed: list[Command] = []

    async def propose(command: Command) -> CommandOutcome:
        await refused(world, 3)
        assert world.gate.fitting_queue("T", 3) == 1
        await world.send(2)
        proposed.append(command)
        await world.propose(command)
        world.apply()
        return CommandOutcome(0)

    async def stats(topic: str) -> list[QueueStats]:
        return []

    changes = ConfigChanges(world.metadata, propose, stats, world.gate.closing)
    await changes.change_topic(
        "T", lambda _: TopicConfig("T", read_queues=3, write_queues=2), is_forced=False
    )
    first, last = proposed
    assert first == PutTopic(TopicConfig("T", read_queues=4, write_queues=2)), "behind all that was taken"
    assert last == PutTopic(TopicConfig("T", read_queues=3, write_queues=2))
    await refused(world, 3)
    await world.propose(PutTopic(TopicConfig("T", read_queues=4, write_queues=2)))
    world.apply()
    await world.send(3)


async def test_a_deletion_of_the_leadership_before_that_the_log_has_lost_is_forgotten() -> None:
    world = World()
    await world.made()
    await world.propose(DeleteTopic("T"))
    world.log.pop()
    world.writer.close()
    world.writer.open_for(4, 9)
    await world.send()


async def test_one_put_that_is_refused_leaves_the_others_of_the_same_turn_alone() -> None:
    world = World()
    await world.made(2)
    await world.propose(put(1))
    ends = await asyncio.gather(*(world.send(n % 2) for n in range(4)), return_exceptions=True)
    assert [isinstance(end, Busy) for end in ends] == [False, True, False, True]


async def test_who_sees_the_index_of_a_command_sees_what_it_did() -> None:
    """Otherwise a deletion could be taken for applied while the state still had the topic."""
    seen: list[tuple[int, bool]] = []

    class Watched(MetadataState):
        def _execute(self, index: int, command: Command) -> int:
            seen.append((self.applied_index, self.topic("T") is None))
            found = super()._execute(index, command)
            seen.append((self.applied_index, self.topic("T") is None))
            return found

    state = Watched()
    state.apply(1, encode(put(1)))
    state.apply(5, encode(DeleteTopic("T")))
    assert seen == [(-1, True), (-1, False), (1, False), (1, True)]
    assert state.applied_index == 5


def test_deletions_that_are_applied_are_forgotten_though_nobody_sends_to_the_topic_again() -> None:
    world = World()
    for index in range(0, 20, 2):
        name = f"T{index}"
        world.metadata.apply(index, encode(PutTopic(TopicConfig(name))))
        noted = world.gate.appending(encode(DeleteTopic(name)))
        assert noted is not None
        noted(index + 1)
        assert len(world.gate._changes) == 1, "those before it are applied"
        assert world.gate.refusal(name, 0) is not None
        world.metadata.apply(index + 1, encode(DeleteTopic(name)))


def test_turns_of_so_many_topics_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_writer, "_MAX_ROUND_ROBIN_TOPICS", 3)
    world = World()
    for number in range(10):
        assert world.writer.queue_of(TopicConfig(f"T{number}"), -1) == 0
        assert len(world.writer._round_robin) <= 3
    assert world.writer.queue_of(TopicConfig("T9"), -1) == 1, "known ones go on"


def test_topics_of_the_brokers_own_take_messages_and_nobody_changes_them() -> None:
    gate = TopicGate(MetadataState(), own={"own"})
    assert gate.refusal("own", 17) is None
    assert gate.refusal("other", 0) is not None
    for command in (PutTopic(TopicConfig("own")), DeleteTopic("own")):
        with pytest.raises(BrokerError) as caught:
            gate.appending(encode(command, b"r" * 16))
        assert caught.value.status is Status.TOPIC_RESERVED


async def test_a_queue_that_got_a_message_after_the_first_look_at_it_is_not_removed() -> None:
    """The message is acknowledged, and no consumer reads a removed queue."""
    world = World()
    await world.made(4)
    looks, sent_at = list[int](), list[int]()

    async def propose(command: Command) -> CommandOutcome:
        await world.propose(command)
        world.apply()
        return CommandOutcome(0)

    async def stats(topic: str) -> list[QueueStats]:
        found = [
            QueueStats(topic, queue_id, 0, len(sent_at) if queue_id == 3 else 0, 0) for queue_id in range(4)
        ]
        looks.append(world.index)
        if not sent_at:
            sent_at.append(world.index)
            await world.send(3)  # after the queues were looked at
        return found

    changes = ConfigChanges(world.metadata, propose, stats, world.gate.closing)
    with pytest.raises(BrokerError) as caught:
        await changes.change_topic("T", lambda _: put(2).config, is_forced=False)
    assert caught.value.status is Status.QUEUES_NOT_EMPTY
    config = world.metadata.topic("T")
    assert config is not None and config.read_queues == 4, "consumers still read it"
    assert looks[-1] > looks[0] + 1, "the last look came behind the command that closed the queues"
    await world.propose(PutTopic(TopicConfig("T", read_queues=4, write_queues=4)))
    world.apply()
    await world.send(3)  # the failed change leaves the queue open
