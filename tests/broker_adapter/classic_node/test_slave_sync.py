"""What a slave copies of its master's tables (SlaveSynchronize), and when it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.commands import SystemOffset
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.metadata.commands import (
    MAX_OFFSETS_PER_COMMAND,
    NO_GENERATION,
    CommitOffsets,
    PutGroup,
    PutTopic,
)
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server import slave_sync
from broker_adapter.server.classic_tables import offsets_by_group
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.slave_sync import SlaveSync
from broker_adapter.store.dispatcher import Arrivals
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.topic_names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP, reply_topic
from tests.node.local import until

END = 70  # of each queue, as far as messages have come


class LoopOnly(SimpleNamespace):
    """Can be asked on the event loop only, as a Replication."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            asyncio.get_running_loop()
        return super().__getattribute__(name)


class World:
    """A slave that knows topic `t` and group `g`, and a master that says what a test gives it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.metadata = MetadataState(on_logged=lambda command: self.sync.command_logged(command))
        self.delivery = DeliveryState()
        #: Called when the master has answered, on the machine's thread.
        self.on_told: Callable[[], None] = lambda: None
        self.metadata.adopt(PutTopic(TopicConfig("t", 4, 4)))
        self.metadata.adopt(PutGroup(GroupConfig("g")))
        self.leads: Callable[[], bool] = lambda: False
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, GroupConfig] = {}
        self.offsets: dict[str, list[QueueOffset]] = {}
        self.delays: dict[int, int] = {}
        self.asked: list[str] = []  # addresses of masters
        self.followed: list[str] = []  # those of their HA ports
        self.registered = {"n": registered("h:1")}
        self.looks = 0  # at how it stands with NameServers
        self.replication = LoopOnly(
            by_handshake=False,
            has_all=False,
            follows=True,
            is_following=True,
            connections=1,
            set_master=self.followed.append,
        )
        world = self

        class Roles:
            @property
            def leads(self) -> bool:
                return world.leads()

        class Feed:
            async def run(self, work: Callable[[], None]) -> None:
                await asyncio.to_thread(world.on_told)
                await asyncio.to_thread(work)  # no loop runs on the machine's thread

        class Told:
            def __init__(self, *args: object, address: str, **more: object) -> None:
                world.asked.append(address)

            async def __aenter__(self) -> Any:
                return SimpleNamespace(
                    topics=given(world.topics),
                    groups=given(world.groups),
                    offsets=given(world.offsets),
                    delays=given(world.delays),
                )

            async def __aexit__(self, *error: object) -> None: ...

        monkeypatch.setattr(slave_sync, "Master", Told)
        settings = SimpleNamespace(sync_period_ms=1)
        node = SimpleNamespace(replication=self.replication, roles=Roles(), feed=Feed(), settings=settings)
        self.parts = SimpleNamespace(
            metadata=self.metadata,
            delivery_state=self.delivery,
            settings=SimpleNamespace(cluster="main"),
            is_master=False,
            registrations=self.registrations,
        )
        self.readable: Arrivals = []
        self.adopted = list[int]()
        self.sync = SlaveSync(
            cast(Any, node),
            cast(BrokerParts, self.parts),
            lambda: None,
            lambda *queue: END,
            lambda: self.adopted.append(1),
            lambda: list(self.readable),
        )

    def registrations(self) -> dict[str, SimpleNamespace]:
        self.looks += 1
        return self.registered

    async def copied(self) -> None:
        await self.sync._sync("h:1")

    def offsets_here(self, group: str) -> dict[tuple[str, int], int]:
        found = self.metadata.group(group)
        return {} if found is None else dict(found.offsets)


def registered(address: str, ha_address: str = "", *, now: bool = True) -> SimpleNamespace:
    """At a NameServer that has named this master; `now`: it knows this broker, and so the master, still."""
    return SimpleNamespace(registered=now, master_address=address, master_ha_address=ha_address)


def given(value: object) -> Callable[[], Any]:
    async def give() -> object:
        return value

    return give


def offsets(topic: str, *of: int) -> list[QueueOffset]:
    return [QueueOffset(topic, queue_id, offset) for queue_id, offset in enumerate(of)]


async def test_topics_and_groups_that_were_changed_are_changed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.topics = {"t": TopicConfig("t", 8, 8, 4), "new": TopicConfig("new", 1, 1)}
    world.groups = {"g": GroupConfig("g", retry_max_times=3), "h": GroupConfig("h")}
    await world.copied()
    assert world.adopted, "else a restart knows nothing of them, and the log has nothing"
    assert world.metadata.topics["t"] == TopicConfig("t", 8, 8, 4)
    assert sorted(world.metadata.topics) == ["new", "t"]
    found = {group.name: group.config for group in world.metadata.groups()}
    assert found == world.groups


async def test_what_came_into_being_by_use_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's tables do not say it."""
    world = World(monkeypatch)
    world.metadata.adopt(PutTopic(TopicConfig("u", 1, 1, auto_created=True)))
    world.metadata.adopt(PutGroup(GroupConfig("h", auto_created=True)))
    world.topics = {"u": TopicConfig("u", 1, 1)}
    world.groups = {"h": GroupConfig("h")}
    await world.copied()
    assert world.metadata.topics["u"].auto_created
    assert [group.config.auto_created for group in world.metadata.groups() if group.name == "h"] == [True]


async def test_what_rocketmq_keeps_for_itself_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    own = [SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, "TBW102", "rmq_sys_SYNC_BROKER_MEMBER_a"]
    world.topics = {name: TopicConfig(name, 1, 1) for name in own} | {"a": TopicConfig("a", 1, 1, 7)}
    world.groups = {TRANSACTION_GROUP: GroupConfig(TRANSACTION_GROUP)}
    world.offsets = {TRANSACTION_GROUP: offsets(HALF_TOPIC, 3), "CID_RMQ_SYS_x": offsets("t", 3)}
    await world.copied()
    assert list(world.metadata.topics) == ["t"]
    assert [group.name for group in world.metadata.groups()] == ["g"]


async def test_how_far_the_brokers_own_queues_have_come_is_copied_as_far_as_messages_are_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes later to places beyond that would be passed over."""
    world = World(monkeypatch)
    world.delays = {3: 9, 18: END + 5}
    world.offsets = {TRANSACTION_GROUP: [*offsets(HALF_TOPIC, 4), *offsets(OP_TOPIC, END + 1)]}
    await world.copied()
    assert len(world.adopted) == 1
    await world.copied()
    assert len(world.adopted) == 1, "nothing has changed"
    assert world.delivery.system_offsets() == {
        (SCHEDULE_TOPIC, 2): 9,
        (SCHEDULE_TOPIC, 17): END,
        (HALF_TOPIC, 0): 4,
        (OP_TOPIC, 0): END,
    }


async def test_more_offsets_than_one_command_holds_are_all_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    names = [f"t{number}" for number in range(MAX_OFFSETS_PER_COMMAND // 1024 + 1)]
    world.topics = {name: TopicConfig(name, 1024, 1024) for name in names}
    world.groups = {"g": GroupConfig("g")}
    world.offsets = {"g": [one for name in names for one in offsets(name, *[5] * 1024)]}
    await world.copied()
    assert world.offsets_here("g") == {(name, number): 5 for name in names for number in range(1024)}
    world.offsets = {"g": [one for name in names for one in offsets(name, *[2] * 1024)]}
    await world.copied()  # of a master of RocketMQ's own, where they were reset
    assert set(world.offsets_here("g").values()) == {2}


@pytest.mark.parametrize("after", [0, 1])
async def test_a_slave_that_was_made_master_meanwhile_keeps_its_own_tables(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """RocketMQ's issue 1094: an old copy came over what the new master had by then."""
    world = World(monkeypatch)
    world.metadata.adopt(CommitOffsets("g", NO_GENERATION, tuple(offsets("t", 50))))
    world.topics = {"new": TopicConfig("new", 1, 1), "t": TopicConfig("t", 1, 1)}
    world.offsets = {"g": offsets("t", 40)}
    world.delays = {1: 9}
    looks = iter([False] * after)
    world.leads = lambda: next(looks, True)
    await world.copied()
    assert ("new" in world.metadata.topics) == bool(after)
    assert world.metadata.topics["t"] == TopicConfig("t", 4, 4)
    assert world.offsets_here("g") == {("t", 0): 50} and world.delivery.system_offsets() == {}


async def test_a_new_master_keeps_the_offsets_of_its_own_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an old copy has nothing else: what it would be ahead of is passed over."""
    world = World(monkeypatch)
    world.delays = {1: 9}
    world.leads = lambda: True
    await world.copied()
    assert world.delivery.system_offsets() == {}


@pytest.mark.parametrize(
    ("follows", "by_handshake", "offset"), [(True, False, 20), (True, True, 50), (False, False, 50)]
)
async def test_an_offset_falls_to_that_of_a_master_whose_resets_are_in_no_log(
    monkeypatch: pytest.MonkeyPatch, follows: bool, by_handshake: bool, offset: int
) -> None:
    """One of ours has them in its log: what it said may be older than that. Whose master it is, nobody knows
    when the connection has ended."""
    world = World(monkeypatch)
    world.replication.follows, world.replication.by_handshake = follows, by_handshake
    world.metadata.adopt(CommitOffsets("g", NO_GENERATION, tuple(offsets("t", 50, 5))))
    world.groups = {"g": GroupConfig("g")}
    world.offsets = {"g": offsets("t", 20, 8)}
    await world.copied()
    assert world.offsets_here("g") == {("t", 0): offset, ("t", 1): 8}


@pytest.mark.parametrize("by_handshake", [False, True])
async def test_a_slave_without_the_begin_of_the_log_copies_tables(
    monkeypatch: pytest.MonkeyPatch, by_handshake: bool
) -> None:
    """Commands that retention has removed come to it in no other way, also from a master of ours."""
    world = World(monkeypatch)
    world.replication.by_handshake = by_handshake
    world.topics = {"new": TopicConfig("new", 1, 1)}
    world.sync.start()
    try:
        await until(lambda: "new" in world.metadata.topics)
    finally:
        await world.sync.stop()


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_slave_that_follows_nobody_or_has_all_of_the_log_asks_for_no_tables(
    monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """The master of one that follows nobody may have refused it, since their logs differ: offsets are those
    of other messages then."""
    world, looks = World(monkeypatch), list[int]()

    class Replication:
        by_handshake = follows = is_whole
        is_following, connections = True, 1

        @property
        def has_all(self) -> bool:
            looks.append(1)
            return self.follows

    cast(Any, world.sync)._node.replication = Replication()
    world.topics = {"new": TopicConfig("new", 1, 1)}
    task = asyncio.create_task(world.sync._keep_synced())
    await until(lambda: len(looks) > 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "new" not in world.metadata.topics


async def test_a_name_server_that_does_not_answer_says_who_was_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not who is: another one may have been made master since."""
    world = World(monkeypatch)
    world.registered = {
        "away": registered("old:1", "old:2", now=False),
        "there": registered("new:1", "new:2"),
    }
    world.sync.start()
    try:
        await until(lambda: bool(world.asked and world.followed))
    finally:
        await world.sync.stop()
    assert set(world.asked) == {"new:1"} and set(world.followed) == {"new:2"}


async def test_a_master_copies_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """NameServers name itself as the master."""
    world = World(monkeypatch)
    world.registered = {"n": registered("h:1", "h:2")}
    world.parts.is_master = True
    world.sync.start()
    try:
        await until(lambda: world.looks > 3)
    finally:
        await world.sync.stop()
    assert world.asked == world.followed == []


@pytest.mark.parametrize(("committed", "received"), [(5, 3), (3, 5), (None, 5)])
def test_a_group_has_come_as_far_as_either_way_of_consuming(committed: int | None, received: int) -> None:
    """Slaves, and the tables of the directory, are told the greater one."""
    metadata = MetadataState()
    metadata.adopt(PutTopic(TopicConfig("t", 1, 1)))
    metadata.adopt(PutGroup(GroupConfig("g")))
    if committed is not None:
        metadata.adopt(CommitOffsets("g", NO_GENERATION, tuple(offsets("t", committed))))
    of_pops: Sequence[tuple[tuple[str, int], int]] = [(("t", 0), received)]
    delivery = SimpleNamespace(
        offsets_of=lambda group: dict(of_pops),
        system_offsets=lambda: {(HALF_TOPIC, 0): 2},
    )
    found = offsets_by_group(metadata, cast(DeliveryState, delivery))
    assert found == {"g": offsets("t", 5), TRANSACTION_GROUP: offsets(HALF_TOPIC, 2)}
    assert SystemOffset(*found[TRANSACTION_GROUP][0]) == SystemOffset(HALF_TOPIC, 0, 2)


async def test_tables_are_copied_when_following_starts_and_when_an_unknown_topic_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The period is an hour: a master that dies before would leave messages whose topic nobody knows."""
    world = World(monkeypatch)
    cast(Any, world.sync)._node.settings.sync_period_ms = 3_600_000
    world.replication.follows, world.replication.connections = False, 0
    world.topics = {"first": TopicConfig("first", 1, 1)}
    world.sync.start()
    try:
        await until(lambda: world.looks > 3)
        assert world.asked == []
        world.replication.follows, world.replication.connections = True, 1
        await until(lambda: "first" in world.metadata.topics)
        world.topics["second"] = TopicConfig("second", 2, 2)
        world.sync.arrived([("t", 0, 1), ("second", 1, 1), (SCHEDULE_TOPIC, 0, 1)])
        await until(lambda: "second" in world.metadata.topics)
        assert len(world.asked) == 2, "known topics, and those of the broker's own, need no copy"
    finally:
        await world.sync.stop()


async def test_a_topic_whose_messages_arrive_during_a_copy_is_copied_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The master answers before it creates the topic, and the next periodic copy is an hour away."""
    world = World(monkeypatch)
    monkeypatch.setattr(slave_sync, "_TICK_S", 0.001)
    cast(Any, world.sync)._node.settings.sync_period_ms = 3_600_000

    class Earlier(dict[str, TopicConfig]):
        def values(self) -> Any:
            world.sync.arrived([("new", 1, 1)])
            world.topics = {"new": TopicConfig("new", 2, 2)}
            return super().values()

    world.topics = Earlier()
    world.sync.arrived([("new", 0, 1)])
    world.sync.start()
    try:
        await until(lambda: bool(world.asked))
        looks = world.looks
        await until(lambda: "new" in world.metadata.topics or world.looks > looks + 50)
        assert world.metadata.topics["new"] == TopicConfig("new", 2, 2)
    finally:
        await world.sync.stop()


async def test_a_topic_is_made_up_from_its_messages_if_the_master_is_gone_and_deleted_if_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.replication.follows = False
    world.topics = {"t": TopicConfig("t", 4, 4)}
    world.groups = {"g": GroupConfig("g")}
    world.sync.start()
    try:
        replies = reply_topic("main")  # a broker's own, for which no settings are needed
        world.sync.arrived([(replies, 0, 1), ("lost", 0, 1), ("lost", 2, 7), ("t", 5, 1)])
        await until(lambda: "lost" in world.metadata.topics)
        assert replies not in world.metadata.topics
        lost = world.metadata.topics["lost"]
        assert (lost.read_queues, lost.auto_created) == (3, True)
        await until(lambda: world.metadata.topics["t"].read_queues == 6)
        world.replication.follows, world.replication.connections = True, 2
        await until(lambda: "lost" not in world.metadata.topics)
        assert world.metadata.topics["t"] == TopicConfig("t", 4, 4)
    finally:
        await world.sync.stop()


async def test_what_a_genuine_master_deletes_is_deleted_here_but_by_no_first_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.metadata.adopt(PutTopic(TopicConfig("own", 1, 1)))
    world.topics = {"t": TopicConfig("t", 4, 4), "u": TopicConfig("u", 1, 1)}
    world.groups = {"g": GroupConfig("g"), "h": GroupConfig("h")}
    world.offsets = {"g": [*offsets("t", 7, 8), *offsets("u", 3)]}
    await world.copied()
    assert sorted(world.metadata.topics) == ["own", "t", "u"]
    del world.topics["u"], world.groups["h"]
    world.offsets = {"g": offsets("t", 7)}
    await world.copied()
    assert sorted(world.metadata.topics) == ["own", "t"]
    assert [group.name for group in world.metadata.groups()] == ["g"]
    assert world.offsets_here("g") == {("t", 0): 7}


@pytest.mark.parametrize("sign", ["messages", "a restart"])
@pytest.mark.parametrize("is_recreated", [True, False])
async def test_the_next_copy_decides_on_a_topic_with_messages_since_the_tables_were_requested(
    monkeypatch: pytest.MonkeyPatch, sign: str, is_recreated: bool
) -> None:
    """The copy may be older than the topic that the master has recreated, whose messages are here."""
    world = World(monkeypatch)
    cut: list[str] = []
    world.metadata._on_topic_cut = cut.append
    world.readable = [("t", 0, 3)]
    config = TopicConfig("t", 4, 4)
    world.topics, world.groups = {"t": config}, {"g": GroupConfig("g")}
    await world.copied()
    world.topics, groups = {}, world.groups

    class Recreated(dict[str, GroupConfig]):
        def values(self) -> Any:
            if sign == "messages":
                world.readable = [("t", 0, 4)]
            else:
                world.sync.queue_restarted("t", 0)
            return groups.values()

    world.groups = Recreated()
    await world.copied()
    assert "t" in world.metadata.topics and not cut
    world.topics, world.groups = {"t": config} if is_recreated else {}, groups
    await world.copied()
    assert ("t" in world.metadata.topics, cut) == ((True, []) if is_recreated else (False, ["t"]))


async def test_the_first_copy_from_another_genuine_master_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may not have the topics of the first master yet. It has not deleted them."""
    world = World(monkeypatch)
    world.topics = {"t": TopicConfig("t", 4, 4), "u": TopicConfig("u", 1, 1)}
    world.groups = {"g": GroupConfig("g"), "h": GroupConfig("h")}
    world.offsets = {"g": [*offsets("t", 7), *offsets("u", 3)]}
    await world.copied()
    world.topics = {"t": TopicConfig("t", 4, 4), "v": TopicConfig("v", 1, 1)}
    world.groups, world.offsets = {"g": GroupConfig("g")}, {"g": offsets("t", 8)}
    await world.sync._sync("h:2")
    assert sorted(world.metadata.topics) == ["t", "u", "v"]
    assert sorted(group.name for group in world.metadata.groups()) == ["g", "h"]
    assert world.offsets_here("g") == {("t", 0): 8, ("u", 0): 3}
    del world.topics["v"]
    await world.sync._sync("h:2")
    assert sorted(world.metadata.topics) == ["t", "u"]


async def test_offsets_asked_for_before_a_queue_restarted_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may be those of the deleted topic, and would hide the first messages of the new one."""
    world = World(monkeypatch)
    world.topics, world.groups = {"t": TopicConfig("t", 4, 4)}, {"g": GroupConfig("g")}
    world.offsets = {"g": offsets("t", 50, 6)}
    groups_of = world.groups

    class Restarting(dict[str, GroupConfig]):
        def values(self) -> Any:
            world.sync.queue_restarted("t", 0)
            return groups_of.values()

    world.groups = Restarting()
    await world.copied()
    assert world.offsets_here("g") == {("t", 1): 6}
    world.groups = groups_of
    await world.copied()
    assert world.offsets_here("g") == {("t", 0): 50, ("t", 1): 6}


async def test_an_entry_that_is_not_allowed_here_keeps_no_other_from_being_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.topics = {
        name: TopicConfig(name, queues, queues) for name, queues in (("a", 1), ("b", 0), ("z", 1))
    }
    world.groups = {"g": GroupConfig("g", retry_max_times=3)}
    await world.copied()
    assert {"a", "z"} <= set(world.metadata.topics) and "b" not in world.metadata.topics
    assert world.metadata.group("g") is not None
    assert world.sync._snapshot is not None, "the copy is complete"


@pytest.mark.parametrize("level", [99999999999, 1025])
async def test_a_level_that_no_image_can_hold_is_not_copied(
    monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    world = World(monkeypatch)
    world.delays = {level: 5, 3: 9}
    world.offsets = {TRANSACTION_GROUP: [QueueOffset(HALF_TOPIC, 1 << 40, 4)]}
    await world.copied()
    assert world.delivery.system_offsets() == {(SCHEDULE_TOPIC, 2): 9}
    assert image.save(world.delivery)


async def test_an_unexpected_error_is_logged_and_ends_no_copying(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch)
    world.topics = {"new": TopicConfig("new", 1, 1)}
    looked, sync = asyncio.Event(), world.sync._sync

    async def fail_once(address: str) -> None:
        if not looked.is_set():
            looked.set()
            raise RuntimeError("a mistake of the program")
        await sync(address)

    monkeypatch.setattr(slave_sync, "_RETRY_S", 0.001)
    monkeypatch.setattr(world.sync, "_sync", fail_once)
    task = asyncio.create_task(world.sync._keep_synced())
    await until(lambda: "new" in world.metadata.topics or task.done())
    assert not task.done()
    task.cancel()
    assert "a mistake of the program" in caplog.text
