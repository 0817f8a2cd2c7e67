"""Topics that came into being by being used go when they are empty and unused: never with a message."""

from __future__ import annotations

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.errors import Status, error_for
from broker_adapter.metadata.commands import Command, DeleteTopic, PutTopic
from broker_adapter.metadata.expiry import LastUse
from broker_adapter.metadata.records import decode, encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_expiry import Holdings, TopicExpiry
from broker_adapter.metadata.values import CommandOutcome

EXPIRE_MS = 1000


class World:
    """A master that applies what it proposes at once."""

    def __init__(self, expire_ms: int = EXPIRE_MS) -> None:
        self.now_ms = 0
        self.metadata = MetadataState()
        self.index = 0
        self.bounds: dict[tuple[str, int], tuple[int, int]] = {}
        self.awaited: set[str] = set()
        self.last_index = self.dispatched = 0
        self.deleted: list[str] = []
        self.error: Exception | None = None
        self.use = LastUse(lambda: self.now_ms)
        self.expiry = TopicExpiry(
            self.metadata,
            self,  # type: ignore[arg-type]
            self.use,
            Holdings(
                lambda topic, queue_id: self.bounds[topic, queue_id],
                lambda topic: [queue_id for name, queue_id in self.bounds if name == topic],
                self.awaited.__contains__,
                lambda: self.last_index,
                lambda: self.dispatched,
            ),
            expire_ms=expire_ms,
        )

    def put(self, name: str = "T", *, by_use: bool = True) -> None:
        config = TopicConfig(name, auto_created=by_use)
        self.apply(PutTopic(config, create_only=by_use))

    def apply(self, command: Command) -> None:
        self.index += 1
        self.metadata.apply(self.index, encode(command))

    async def propose(self, command: Command) -> CommandOutcome:
        assert isinstance(command, DeleteTopic)
        if self.error is not None:
            raise self.error
        self.apply(command)
        self.deleted.append(command.topic)
        return CommandOutcome(self.index)

    async def looks(self, *, after_ms: int = EXPIRE_MS) -> list[str]:
        self.now_ms += after_ms
        for _ in range(2):
            await self.expiry.sweep()
        return self.deleted


async def test_an_empty_topic_made_by_use_goes_when_it_was_not_used_for_so_long() -> None:
    world = World()
    world.put()
    assert await world.looks(after_ms=EXPIRE_MS - 1) == []
    assert await world.looks(after_ms=1) == ["T"]
    assert world.expiry.expired == 1 and world.metadata.topic("T") is None


async def test_a_topic_of_an_administrator_stays() -> None:
    world = World()
    world.put("A", by_use=False)
    world.put("B")
    world.apply(PutTopic(TopicConfig("B")))  # it is theirs from now on
    assert await world.looks() == []


async def test_use_keeps_a_topic() -> None:
    world = World()
    world.put()
    world.now_ms = EXPIRE_MS
    world.use.touch("T")
    assert await world.looks(after_ms=EXPIRE_MS - 1) == []


@pytest.mark.parametrize("what", ["a message", "a delayed message"])
async def test_a_topic_that_holds_something_stays(what: str) -> None:
    world = World()
    world.put()
    if what == "a message":
        world.bounds = {("T", 0): (3, 3), ("T", 1): (3, 4)}
    else:
        world.awaited.add("T")
    assert await world.looks() == []
    world.bounds = {("T", 0): (3, 3), ("T", 1): (4, 4)}
    world.awaited.clear()
    assert await world.looks() == ["T"]


async def test_a_topic_stays_until_all_that_was_appended_before_the_first_look_is_applied() -> None:
    """What a send has put into the log is in its queue only then."""
    world = World()
    world.put()
    world.last_index, world.dispatched = 9, 8
    assert await world.looks() == []
    world.last_index = 50  # of other topics
    world.dispatched = 9
    assert await world.looks(after_ms=0) == ["T"]


async def test_a_new_master_begins_to_count_anew() -> None:
    world = World(expire_ms=0)
    world.put()
    world.now_ms = 10 * EXPIRE_MS
    world.expiry.start(2, 3)
    assert world.use.idle_ms("T") == 0
    assert world.expiry._task is None, "0: never"
    await world.expiry.stop()


async def test_so_many_go_in_one_look_and_the_rest_later() -> None:
    world = World()
    for number in range(45):
        world.put(f"T{number}")
    world.now_ms = EXPIRE_MS
    counts = []
    for _ in range(4):
        await world.expiry.sweep()
        counts.append(len(world.deleted))
    assert counts == [20, 40, 45, 45]


async def test_a_deletion_that_is_refused_leaves_the_topic_for_later() -> None:
    world = World()
    world.put()
    world.error = error_for(Status.TOO_MANY_PROPOSALS, "later")
    with pytest.raises(type(world.error)):
        await world.looks()
    world.error = None
    assert await world.looks(after_ms=0) == ["T"]


def test_records_of_earlier_versions_make_topics_that_do_not_expire() -> None:
    old = encode(PutTopic(TopicConfig("T"), create_only=True))
    assert b"autoCreated" not in old
    command = decode(old).command
    assert isinstance(command, PutTopic) and not command.config.auto_created
    new = decode(encode(PutTopic(TopicConfig("T", auto_created=True), create_only=True))).command
    assert isinstance(new, PutTopic) and new.config.auto_created
    state = MetadataState()
    state.apply(1, encode(new))
    again = MetadataState()
    again.load(state.save())
    config = again.topic("T")
    assert config is not None and config.auto_created
