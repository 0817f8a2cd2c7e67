"""Groups that came into being by use go when they are unused: the state decides, not the master."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.delivery_state.commands import Ack, Pop, QueueKey
from broker_adapter.delivery_state.records import encode as encode_delivery
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Status
from broker_adapter.metadata.commands import Command, ExpireGroup, PutGroup, PutTopic
from broker_adapter.metadata.expiry import LastUse
from broker_adapter.metadata.group_expiry import GroupExpiry
from broker_adapter.metadata.records import decode, encode
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import CommandOutcome, GroupDelivery
from tests.broker_adapter.metadata.samples import ID, commit, reset

EXPIRE_MS = 1000


class World:
    """A master that applies what it proposes at once, after what `in_front` puts before it into the log."""

    def __init__(self, expire_ms: int = EXPIRE_MS) -> None:
        self.now_ms = 0
        self.index = 0
        self.delivered: dict[str, GroupDelivery] = {}
        self.results: list[CommandOutcome] = []
        self.metadata = MetadataState(
            on_result=lambda _, outcome: self.results.append(outcome),
            delivered=lambda group: self.delivered.get(group, GroupDelivery(0, 0)),
        )
        self.in_front: Callable[[], object] = lambda: None
        self.use = LastUse(lambda: self.now_ms)
        self.expiry = GroupExpiry(
            self.metadata,
            self,  # type: ignore[arg-type]
            self.use,
            expire_ms=expire_ms,
            has_pending=lambda group: group in self.delivered and self.delivered[group].pending > 0,
        )
        self.apply(PutTopic(TopicConfig("T")))

    def put(self, name: str = "g", *, by_use: bool = True) -> int:
        return self.apply(PutGroup(GroupConfig(name, auto_created=by_use), create_only=by_use)).index

    def apply(self, command: Command) -> CommandOutcome:
        self.index += 1
        self.metadata.apply(self.index, encode(command, ID))
        return self.results[-1]

    async def propose(self, command: Command) -> CommandOutcome:
        assert isinstance(command, ExpireGroup)
        self.in_front()
        return self.apply(command)

    async def looks(self, *, after_ms: int = EXPIRE_MS) -> set[str]:
        """The groups that are left."""
        self.now_ms += after_ms
        for _ in range(2):
            await self.expiry.sweep()
        return {group.name for group in self.metadata.groups()}

    def give(self, pending: int, progress: int) -> None:
        self.delivered["g"] = GroupDelivery(pending, progress)


async def test_a_group_made_by_use_goes_when_it_was_not_used_for_so_long() -> None:
    world = World()
    world.put()
    world.apply(commit("g", -1, ("T", 0, 5)))
    world.give(0, 7)
    assert await world.looks(after_ms=EXPIRE_MS - 1) == {"g"}
    assert await world.looks(after_ms=1) == set()
    assert world.expiry.expired == 1


async def test_a_group_of_an_administrator_stays() -> None:
    world = World()
    world.put("a", by_use=False)
    world.put("b")
    world.apply(PutGroup(GroupConfig("b")))  # it is theirs from now on
    world.put("a")  # used: an admin's all the same
    assert await world.looks() == {"a", "b"}


async def test_use_keeps_a_group() -> None:
    world = World()
    world.put()
    world.now_ms = EXPIRE_MS
    world.use.touch("g")
    assert await world.looks(after_ms=EXPIRE_MS - 1) == {"g"}


async def test_a_group_with_a_message_in_flight_stays() -> None:
    world = World()
    world.put()
    world.give(1, 1)
    assert await world.looks() == {"g"}
    world.give(0, 1)
    assert await world.looks() == set()


async def test_one_look_does_not_delete_a_group_of_which_no_use_was_told_yet() -> None:
    world = World()
    world.now_ms = 5 * EXPIRE_MS
    world.put()
    await world.expiry.sweep()
    assert world.metadata.group("g") is not None
    world.use.touch("g")  # the creation has come back to its client
    assert await world.looks(after_ms=0) == {"g"}


@pytest.mark.parametrize(
    "use",
    [
        lambda world: world.apply(commit("g", -1, ("T", 0, 0))),
        lambda world: world.apply(commit("g", -1, ("T", 1, 6))),
        lambda world: world.apply(reset("g", ("T", 0, 5))),
        lambda world: world.apply(PutGroup(GroupConfig("g"))),
        lambda world: world.give(1, 8),
        lambda world: world.give(1, 7),
        lambda world: world.give(0, 8),
    ],
    ids=["first commit", "commit", "reset", "put", "pop", "redelivery", "pop and ack"],
)
async def test_a_use_in_front_of_the_deletion_in_the_log_keeps_the_group(
    use: Callable[[World], object],
) -> None:
    world = World()
    world.put()
    world.apply(commit("g", -1, ("T", 1, 5)))
    world.give(0, 7)
    world.in_front = lambda: use(world)
    assert await world.looks() == {"g"}
    assert world.results[-1].status is Status.GENERATION_STALE
    assert world.expiry.expired == 0


async def test_a_deletion_never_meets_a_later_group_of_that_name() -> None:
    world = World()
    first = world.put()
    world.apply(ExpireGroup("g", first, 0))
    assert world.metadata.group("g") is None
    world.put()
    assert world.apply(ExpireGroup("g", first, 0)).status is Status.GENERATION_STALE
    assert world.metadata.group("g") is not None


async def test_a_new_master_begins_to_count_anew_and_zero_is_never() -> None:
    world = World(expire_ms=0)
    world.put()
    world.now_ms = 10 * EXPIRE_MS
    world.expiry.start(2, 3)
    assert world.use.idle_ms("g") == 0
    assert world.expiry._task is None
    await world.expiry.stop()


async def test_so_many_go_in_one_look_and_the_rest_later() -> None:
    world = World()
    for number in range(45):
        world.put(f"g{number}")
    world.now_ms = EXPIRE_MS
    counts = []
    for _ in range(5):
        await world.expiry.sweep()
        counts.append(len(world.metadata.groups()))
    assert counts == [45, 25, 5, 0, 0]


def test_records_of_earlier_versions_make_groups_that_do_not_expire() -> None:
    old = encode(PutGroup(GroupConfig("g"), create_only=True))
    assert b"autoCreated" not in old
    new = encode(PutGroup(GroupConfig("g", auto_created=True), create_only=True))
    for body, expected in ((old, False), (new, True)):
        command = decode(body).command
        assert isinstance(command, PutGroup) and command.config.auto_created is expected
        state = MetadataState()
        state.apply(1, body)
        again = MetadataState()
        again.load(state.save())
        group = again.group("g")
        assert group is not None and group.config.auto_created is expected


async def test_what_a_group_was_given_is_judged_by_the_state_of_delivery() -> None:
    """Not by what the master had seen: what was given since keeps the group, whether it is done or not."""
    key = QueueKey("g", "T", 0)
    delivery = DeliveryState()
    state = MetadataState(on_done=delivery.metadata_changed, delivered=delivery.of_group)
    state.apply(1, encode(PutGroup(GroupConfig("g", auto_created=True), create_only=True)))
    index = 1
    for offset in range(2):
        seen = delivery.of_group("g").progress
        pop = Pop(key, "c", "", 1000, False, False, False, offset, offset + 1, (offset,), (), True)
        delivery.apply(index + 1, 0, encode_delivery([pop]))
        given = delivery.of_group("g").progress
        state.apply(index + 2, encode(ExpireGroup("g", 1, given)))
        assert state.group("g") is not None, "it is in flight"
        delivery.apply(index + 3, 1, encode_delivery([Ack(key, offset, (index + 1) << 16)]))
        assert not delivery.has_pending("g")
        state.apply(index + 4, encode(ExpireGroup("g", 1, seen)))
        assert state.group("g") is not None, "its cursor has moved"
        index += 4
    state.apply(index + 1, encode(ExpireGroup("g", 1, given)))
    assert state.group("g") is None and not delivery.queues


async def test_a_group_with_messages_in_flight_is_not_even_proposed() -> None:
    world = World()
    world.put()
    world.give(1, 1)
    proposed: list[bool] = []
    world.in_front = lambda: proposed.append(True)
    await world.looks()
    assert not proposed
