"""Groups of ours as slaves of a live master."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_adapter.api import QueueOffset
from broker_adapter.errors import AnswerMissing, BrokerError, Status
from broker_adapter.migration.master import Master
from broker_adapter.migration.mirror import Mirror, MirrorSettings
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode, record_size_at
from tests.broker_adapter.classic.store_writer import StoreWriter
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.migration.fake_master import FakeMaster, fake_master
from tests.broker_adapter.migration.test_import import OneTarget
from tests.broker_adapter.v4.asker import LISTEN, asking
from tests.node.local import until

#: Topics of the broker's own.
LEFT = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer")
QUICK = MirrorSettings(step_s=10, sync_s=0.05, pause_s=0.05, report_s=0.05)


class World(NamedTuple):
    master: FakeMaster
    cluster: BrokerCluster
    ours: BrokerProgram


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with brokers(tmp_path / "nodes", 1, LISTEN) as cluster, fake_master(tmp_path / "store") as master:
        yield World(master, cluster, await cluster.master())


@asynccontextmanager
async def mirroring(world: World, said: list[str] | None = None) -> AsyncIterator[tuple[Mirror, OneTarget]]:
    """A mirror that follows until the end of the block; what ends it else is raised."""
    ours = await world.cluster.master()
    async with (
        OneTarget(ours.remoting.address) as target,
        Master(["127.0.0.1:1"], address=world.master.address) as master,
    ):
        await master.find(world.master.ha_address)
        say = print if said is None else said.append
        mirror = Mirror(master, target, world.master.ha_address, say, QUICK)
        following = asyncio.ensure_future(mirror.follow())
        try:
            yield mirror, target
            if following.done():
                following.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def ended(world: World) -> BrokerError:
    """What a mirror ends with."""
    ours = await world.cluster.master()
    async with (
        OneTarget(ours.remoting.address) as target,
        Master(["127.0.0.1:1"], address=world.master.address) as master,
    ):
        with pytest.raises(BrokerError) as caught:
            await Mirror(master, target, world.master.ha_address, print, QUICK).follow()
    return caught.value


def expected(store: StoreWriter, topic: str, queue_id: int) -> list[bytes]:
    """Records of a queue without their physical offsets, read off the log by what its queues say."""
    return [
        bytes(store.log[at - store.begin :][:28] + store.log[at - store.begin + 36 :][: size - 36])
        for at, size, _ in store.units.get((topic, queue_id), ())
    ]


async def mirrored(ours: BrokerProgram, topic: str, queue_id: int) -> list[bytes]:
    """The same, as they are here."""
    records: list[bytes] = []
    at = ours.files.bounds(topic, queue_id)[0]
    while (part := await ours.broker.read_queue(topic, queue_id, at)).records:
        records += part.records
        at += len(part.records)
    return [record[:28] + record[36:] for record in records]


async def check_equal(world: World) -> None:
    """Every queue that the master has: records, begins and ends."""
    ours, store = await world.cluster.master(), world.master.store
    for topic, queue_id in store.units:
        if topic in store.topics and topic not in LEFT:
            wanted = expected(store, topic, queue_id)
            assert await mirrored(ours, topic, queue_id) == wanted, (topic, queue_id)
            end = store.next[topic, queue_id]
            assert ours.files.bounds(topic, queue_id) == (end - len(wanted), end)


def caught_up(world: World, mirror: Mirror) -> bool:
    return mirror.figures.position == world.master.log_end


@contextmanager
def loading(master: FakeMaster, topic: str, queues: int) -> Iterator[None]:
    """A producer, until the end of the block."""
    loop, numbers = asyncio.get_running_loop(), itertools.count()
    timer: asyncio.TimerHandle | None = None

    def send() -> None:
        nonlocal timer
        number = next(numbers)
        master.put(topic, b"%d" % number * 7, number % queues)
        timer = loop.call_later(0.002, send)

    send()
    try:
        yield
    finally:
        assert timer is not None
        timer.cancel()


async def test_all_of_the_log_from_its_first_byte_on(world: World) -> None:
    master = world.master
    master.store.topic("t", 2)
    for number in range(120):  # several files, with blanks between them
        master.put("t", b"%d" % number * 9, number % 2, properties=f"UNIQ_KEY\x01{number}\x02")
    async with mirroring(world) as (mirror, _):
        await until(lambda: caught_up(world, mirror))
        assert master.requested == [1]
        await check_equal(world)
        master.put("t", b"later", 1)
        await until(lambda: master.acknowledged[-1] == master.log_end)
        await check_equal(world)
    config = next(one for one in world.ours.broker.topics() if one.name == "t")
    assert (config.perm, config.write_queues) == (0, 2)


async def test_a_log_that_retention_has_shortened(tmp_path: Path) -> None:
    async with (
        brokers(tmp_path / "nodes", 1, LISTEN) as cluster,
        fake_master(tmp_path / "store", begin=8_192) as master,
    ):
        world = World(master, cluster, await cluster.master())
        master.store.topic("t", 3)
        master.store.start_queue("t", 0, 200_000)
        master.store.start_queue("t", 2, 9)  # all of it is gone
        for number in range(20):
            master.put("t", b"%d" % number, number % 2)
        async with mirroring(world) as (mirror, _):
            await until(lambda: caught_up(world, mirror))
            assert master.requested == [8_192]
            await check_equal(world)
            master.put("t", b"the first here", 2)
            await until(lambda: caught_up(world, mirror))
            await check_equal(world)
        assert world.ours.files.bounds("t", 2) == (9, 10)


async def test_only_what_is_committed_here_is_acknowledged(world: World) -> None:
    master = world.master
    master.store.topic("t")
    master.put("t", b"one")
    async with mirroring(world) as (mirror, target):
        await until(lambda: caught_up(world, mirror))
        before = master.log_end
        target.fails = [(False, AnswerMissing(Status.ANSWER_MISSING, "away"))] * 3
        asked = target.batches
        master.put("t", b"two")
        await until(lambda: target.batches > asked + 1)
        assert master.acknowledged[-1] == before
        await until(lambda: master.acknowledged[-1] == master.log_end)
        await check_equal(world)


@pytest.mark.parametrize("is_ours", [False, True])
async def test_a_mirror_goes_on_where_it_was(world: World, is_ours: bool) -> None:
    """After connections that were cut, and after a new start of the nodes and of the mirror."""
    master = world.master
    master.store.topic("t", 3)
    for _ in range(3):
        with loading(master, "t", 3):
            async with mirroring(world) as (mirror, _):
                goal = master.log_end + 3_000
                await until(lambda goal=goal, mirror=mirror: mirror.figures.position > goal)
                if not is_ours:
                    master.cut()
                    await until(lambda mirror=mirror: mirror.figures.connections == 2)
        if is_ours:
            await world.cluster.stop()
            await world.cluster.start()
            await world.cluster.master()
    async with mirroring(world) as (mirror, _):
        await until(lambda: caught_up(world, mirror))
    await check_equal(world)
    assert all(begin > 1 for begin in master.requested[1:])


async def test_messages_that_are_in_no_queue_yet_are_not_missed(world: World) -> None:
    master = world.master
    master.store.topic("t", 2)
    for number in range(6):
        master.put("t", b"%d" % number, number % 2)
    async with mirroring(world) as (mirror, _):
        await until(lambda: caught_up(world, mirror))
    for number in range(6):
        master.put("t", b"more %d" % number, number % 2)
    master.behind = 500
    async with mirroring(world) as (mirror, _):
        await until(lambda: caught_up(world, mirror))
        await check_equal(world)


async def test_a_master_whose_queues_lag_has_lost_nothing(world: World) -> None:
    master = world.master
    master.store.topic("t")
    for number in range(6):
        master.put("t", b"%d" % number)
    async with mirroring(world) as (mirror, _):
        await until(lambda: caught_up(world, mirror))
    master.behind = 250
    asked = master.asked_for_figures
    async with mirroring(world) as (mirror, _):
        await until(lambda: master.asked_for_figures > asked + 4)
        assert not mirror.figures.connections
        master.behind = 0
        await until(lambda: caught_up(world, mirror))
        await check_equal(world)


async def test_topics_groups_and_offsets_follow(world: World) -> None:
    master, broker = world.master, world.ours.broker
    store = master.store
    store.topic("t")
    for _ in range(5):
        master.put("t", b"x")
    store.groups["g"] = {"groupName": "g", "retryMaxTimes": 5}
    store.offsets = {"t@g": {0: 4}, "t@bold": {0: 99}, "rmq_sys_x@g": {0: 1}}
    said: list[str] = []

    def offset(group: str) -> int | None:
        found = world.ours.metadata.group(group)
        return None if found is None else found.offsets.get(("t", 0))

    async with mirroring(world, said) as (mirror, _):
        await until(lambda: offset("g") == 4 and offset("bold") == 5)
        store.offsets = {"t@g": {0: 2}}  # somebody has reset it
        await until(lambda: offset("g") == 2)
        store.topic("new", 2)
        master.put("new", b"in a topic that is new", 1)
        await until(lambda: caught_up(world, mirror))
        await check_equal(world)
        store.topic("new", 1)  # it has shrunk, and keeps what it has
        del store.topics["t"]
        await until(lambda: any("topic t was deleted" in one for one in said))
    assert await broker.offsets("g") == [QueueOffset("t", 0, 2)]
    assert not any("connecting again" in one for one in said)
    assert {one.name: one.retry_max_times for one in broker.groups()}["g"] == 5
    await check_equal(world)


async def test_offsets_wait_for_the_messages_before_them(world: World) -> None:
    master = world.master
    master.store.topic("t")
    master.put("t", b"x")
    async with mirroring(world) as (mirror, target):
        await until(lambda: caught_up(world, mirror))
        target.fails = [(False, AnswerMissing(Status.ANSWER_MISSING, "away"))] * 4
        asked = target.batches
        for _ in range(3):
            master.put("t", b"y")
        await until(lambda: target.batches > asked)
        master.store.offsets = {"t@g": {0: 4}}
        await mirror.sync_metadata()
        found = world.ours.metadata.group("g")
        assert found is not None and found.offsets["t", 0] == 1
        await until(lambda: caught_up(world, mirror))
        await mirror.sync_metadata()
        found = world.ours.metadata.group("g")
        assert found is not None and found.offsets["t", 0] == 4


async def test_what_has_no_equal_here_is_left_and_counted(world: World) -> None:
    master = world.master
    master.store.topic("t")
    master.put("t", b"first")
    for name in (*LEFT, "SCHEDULE_TOPIC_XXXX"):
        master.store.topic(name)
        master.put(name, b"x")
    master.put("gone", b"of a deleted topic")
    master.put("t", b"rolled back", sys_flag=12)
    master.put("t", b"stays")
    async with mirroring(world) as (mirror, _):
        await until(lambda: caught_up(world, mirror))
        assert mirror.figures.left == dict.fromkeys((*LEFT, "gone"), 1)
    assert {one.name for one in world.ours.broker.topics()} == {"t"}
    records = (await world.ours.broker.read_queue("t", 0, 0)).records
    assert [decode(one).body for one in records] == [b"first", b"stays"]


async def made_anew(master: FakeMaster) -> None:
    """Its queues, with as many messages."""
    for key in list(master.store.next):
        count = len(master.store.units.pop(key))
        master.store.next[key] = 0
        for _ in range(count):
            master.put(key[0], b"other", key[1])


async def lost_some(master: FakeMaster) -> None:
    for key, units in master.store.units.items():
        units.pop()
        master.store.next[key] -= 1


async def opened(master: FakeMaster) -> None:
    """Here: the test does it."""


@pytest.mark.parametrize("change", [made_anew, lost_some, opened])
async def test_a_queue_that_is_not_the_masters_any_more_is_told(world: World, change: object) -> None:
    master = world.master
    master.store.topic("t")
    for number in range(3):
        master.put("t", b"%d" % number)
    async with mirroring(world) as (mirror, _):
        await until(lambda: caught_up(world, mirror))
    if change is opened:
        config = next(one for one in world.ours.broker.topics() if one.name == "t")
        await world.ours.broker.put_topic(config._replace(perm=6))
    else:
        await change(master)  # type: ignore[operator]
    error = await ended(world)
    assert error.status is Status.MASTER_DIFFERS and " t " in str(error)


async def test_a_topic_that_is_made_anew_while_it_is_mirrored(world: World) -> None:
    master = world.master
    master.store.topic("t")
    for number in range(3):
        master.put("t", b"%d" % number)
    following = asyncio.ensure_future(ended(world))
    await until(lambda: master.acknowledged[-1:] == [master.log_end])
    await made_anew(master)
    assert (await following).status is Status.MASTER_DIFFERS


async def test_what_is_no_log_ends_a_mirror(world: World) -> None:
    master = world.master
    master.store.topic("t")
    master.put("t", b"x")
    master.frame = lambda at, data: struct.pack(">qi", at + 1, len(data)) + data
    assert (await ended(world)).status is Status.HA_TRANSFER_REFUSED
    master.frame = lambda at, data: struct.pack(">qi", at, len(data)) + data
    master.store.log[record_size_at(master.store.log, 0) - 1] ^= 1
    master.store.log[90] ^= 1
    assert (await ended(world)).status.name.startswith("RECORD_")


async def test_a_port_that_is_none_of_slaves(world: World) -> None:
    async with Master(["127.0.0.1:1"], address=world.master.address) as master:
        with pytest.raises(BrokerError) as caught:
            await master.find("127.0.0.1:1")
    assert caught.value.status is Status.QUEUE_UNKNOWN and "no master with 1" in str(caught.value)


async def test_what_the_request_code_takes(world: World) -> None:
    async with asking(world.ours.remoting.address) as asker:
        answer = await asker.ask(910_003, topic="t", queueId=0, offset=0)
        assert "TOPIC_UNKNOWN" in (answer.remark or "")
        world.master.store.topic("t")
        for number in range(3):
            world.master.put("t", b"%d" % number)
        async with mirroring(world) as (mirror, _):
            await until(lambda: caught_up(world, mirror))
        for queue_id, offset, problem in (
            (1, 0, "QUEUE_UNKNOWN"),
            (-1, 0, "QUEUE_UNKNOWN"),
            (0, -2, "FIELD_OUT_OF_RANGE"),
        ):
            answer = await asker.ask(910_003, topic="t", queueId=queue_id, offset=offset)
            assert problem in (answer.remark or "")
        for offset, count in ((0, 3), (2, 1), (-1, 1), (3, 0), (9, 0)):
            answer = await asker.ask(910_003, topic="t", queueId=0, offset=offset)
            assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("0", "3")
            assert len(answer.body) * 3 == len(world.master.store.log) * count
