"""A group of ours takes over from a live master."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import cast

import pytest

from broker_adapter.api import QueueOffset
from broker_adapter.cli.mirror_command import run_until_signal, take_over_while_following
from broker_adapter.errors import AnswerMissing, BrokerError, Status
from broker_adapter.migration.master import BrokerAdmission, Master
from broker_adapter.migration.mirror import Mirror
from broker_adapter.migration.several import to_its_end
from broker_adapter.migration.takeover import Takeover, TakeoverSettings
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.cluster import BrokerCluster
from tests.broker_adapter.migration.fake_master import FakeMaster, fake_master
from tests.broker_adapter.migration.test_import import OneTarget
from tests.broker_adapter.migration.test_mirror import QUICK, World, check_equal, loading, world
from tests.broker_adapter.v4.asker import asking
from tests.node.local import until

__all__ = ["world"]

SHORT = TakeoverSettings(drain_s=30, consume_s=0, linger_s=0.2, settle_s=0)


async def take_over(
    world: World, settings: TakeoverSettings = SHORT, said: list[str] | None = None
) -> Takeover:
    ours = await world.cluster.master()
    async with (
        OneTarget(ours.remoting.address) as target,
        Master(["127.0.0.1:1"], address=world.master.address) as master,
    ):
        say = print if said is None else said.append
        mirror = Mirror(master, target, world.master.ha_address, say, QUICK)
        takeover = Takeover(mirror, master, target, say, settings)
        if await takeover.was_interrupted():
            await takeover.finish()
            return takeover
        following = asyncio.ensure_future(mirror.follow())
        moving = asyncio.ensure_future(takeover.run())
        try:
            await asyncio.wait([following, moving], return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            await moving
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        return takeover


def filled(master: FakeMaster) -> None:
    master.store.topic("t", 2)
    master.store.topic("closed", perm=4)
    master.store.groups["g"] = {"groupName": "g"}
    for number in range(20):
        master.put("t", b"%d" % number, number % 2)
    master.store.offsets = {"t@g": {0: 7, 1: 99}}


def permissions(world: World) -> dict[str, int]:
    return {one.name: one.perm for one in world.ours.broker.topics()}


async def test_all_is_here_and_goes_on_here(world: World) -> None:
    master = world.master
    filled(master)
    refusing = asyncio.Event()

    async def producers() -> None:
        with loading(master, "t", 2):
            await until(lambda: not master.takes_messages)
        refusing.set()

    load = asyncio.ensure_future(producers())
    takeover = await take_over(world)
    await load
    assert master.permissions == [6, 4, 0] and set(takeover.pauses) == {"send", "receive"}
    assert permissions(world) == {"t": 6, "closed": 4, "SCHEDULE_TOPIC_XXXX": 4}
    await check_equal(world)
    end, beyond = master.store.next["t", 0], min(99, master.store.next["t", 1])
    wanted = [QueueOffset("t", 0, 7), QueueOffset("t", 1, beyond)]
    assert await world.ours.broker.offsets("g") == wanted
    async with asking(world.ours.remoting.address) as asker:
        assert (await asker.send("t", b"new", 0))["queueOffset"] == str(end)


@pytest.mark.slow
async def test_a_send_that_the_master_had_admitted_is_here(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored when all that there was is here already."""
    master, look = world.master, Takeover._unequal
    filled(master)
    under_way = [b"late"]

    async def looking(takeover: Takeover) -> list[str]:
        unequal = await look(takeover)
        if unequal:
            master.grown()
        elif under_way:
            master.store.put("t", under_way.pop(), 1)
        return unequal

    monkeypatch.setattr(Takeover, "_unequal", looking)
    await take_over(world)
    assert not under_way
    await check_equal(world)


async def test_messages_that_wait_for_their_time_wait_here_each_once(world: World) -> None:
    await delayed_are_taken_over(world, "SCHEDULE_TOPIC_XXXX")


class _Alone:
    """A cluster of one."""

    def __init__(self, program: BrokerProgram) -> None:
        self._program = program

    async def master(self) -> BrokerProgram:
        return self._program


async def test_a_broker_on_a_classic_log_takes_over_what_waits(tmp_path: Path) -> None:
    """It has SCHEDULE_TOPIC_XXXX itself, and keeps its account elsewhere."""
    async with (
        classic_pair(tmp_path / "nodes", file_size=4 << 20) as pair,
        fake_master(tmp_path / "store") as master,
    ):
        await pair.start("n1", broker_role="ASYNC_MASTER", waits_for_slaves=False)
        ours = await pair.writable("n1")
        await delayed_are_taken_over(
            World(master, cast("BrokerCluster", _Alone(ours)), ours), "SCHEDULE_TOPIC_TAKEN_OVER"
        )
        assert ours.files.bounds("SCHEDULE_TOPIC_XXXX", 1) == (0, 0)


async def delayed_are_taken_over(world: World, account: str) -> None:
    master, schedule = world.master, "SCHEDULE_TOPIC_XXXX"
    filled(master)
    master.store.topic(schedule, 18)
    far_ms = time.time_ns() // 1_000_000 + 3_600_000
    text = "UNIQ_KEY\x01%s\x02DELAY\x012\x02REAL_TOPIC\x01%s\x02REAL_QID\x010\x02"
    for body, topic, due_ms in (
        (b"was delivered", "t", 5),
        (b"is late", "t", 5),
        (b"of a deleted topic", "gone", 5),
        (b"waits", "t", far_ms),
    ):
        master.put(schedule, body, 1, tag_code=due_ms, properties=text % (body.hex(), topic))
    master.store.delays = {2: 1}
    end = master.store.next["t", 0]
    await take_over(world)
    await until(lambda: world.ours.files.bounds("t", 0)[1] == end + 1)
    (late,) = (await world.ours.broker.read_queue("t", 0, -1)).records
    assert decode(late).body == b"is late"
    assert world.ours.delivery.figures().held_messages == 1
    assert world.ours.files.bounds(account, 1) == (1, 4)


async def stays_behind(master: FakeMaster) -> None:
    master.behind = 150


async def has_half_messages(master: FakeMaster) -> None:
    master.store.topic("RMQ_SYS_TRANS_HALF_TOPIC")
    master.put("RMQ_SYS_TRANS_HALF_TOPIC", b"open")
    master.store.offsets["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] = {0: 0}


async def has_timers(master: FakeMaster) -> None:
    master.timers = 3


@pytest.mark.parametrize(
    ("obstacle", "word", "seen"),
    [
        (stays_behind, "ends at", [6, 4, 6]),
        (has_half_messages, "1 half", [6]),
        (has_timers, "3 mes", [6]),
    ],
)
async def test_what_is_in_the_way_leaves_the_master_as_it_was(
    world: World, obstacle: object, word: str, seen: list[int]
) -> None:
    master = world.master
    filled(master)
    await obstacle(master)  # type: ignore[operator]
    with pytest.raises(BrokerError) as caught:
        await take_over(world, SHORT._replace(drain_s=0.2))
    assert caught.value.status is Status.TAKEOVER_BLOCKED and word in str(caught.value)
    assert master.permissions == seen and not permissions(world)["t"]
    master.behind = 0
    await take_over(world, SHORT._replace(leave_pending=True))
    assert permissions(world)["t"] == 6
    await check_equal(world)


async def test_groups_consume_first_what_the_master_has(world: World) -> None:
    master = world.master
    filled(master)
    master.groups.add("g")
    moving = asyncio.ensure_future(take_over(world, SHORT._replace(consume_s=60)))
    await until(lambda: permissions(world).get("t") == 2)
    assert master.permissions == [6, 4]
    master.store.offsets = {"t@g": {0: 10, 1: 10}}
    await moving
    assert master.permissions == [6, 4, 0] and permissions(world)["t"] == 6
    assert await world.ours.broker.offsets("g") == [QueueOffset("t", 0, 10), QueueOffset("t", 1, 10)]


async def test_a_takeover_that_was_interrupted_goes_on(world: World, tmp_path: Path) -> None:
    """Both have got messages of their own since. No group may skip one of ours."""
    master = world.master
    filled(master)
    master.groups.add("g")
    moving = asyncio.ensure_future(take_over(world, SHORT._replace(consume_s=60)))
    await until(lambda: permissions(world).get("t") == 2)
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)
    async with asking(world.ours.remoting.address) as asker:
        for number in range(5):
            await asker.send("t", b"ours %d" % number, 0)
    for number in range(3):
        master.put("t", b"theirs %d" % number, 0)
    master.store.offsets = {"t@g": {0: 13, 1: 10}}
    said: list[str] = []
    await take_over(world, said=said)
    assert master.permissions == [6, 4, 0] and permissions(world)["t"] == 6
    assert await world.ours.broker.offsets("g") == [QueueOffset("t", 0, 10), QueueOffset("t", 1, 10)]
    assert world.ours.files.bounds("t", 0) == (0, 15)


async def test_a_takeover_that_is_cancelled_early_leaves_the_master_as_it_was(world: World) -> None:
    master = world.master
    filled(master)
    master.behind = 150
    moving = asyncio.ensure_future(take_over(world))
    await until(lambda: master.permissions[-1] == 4)
    assert not master.takes_messages
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)
    assert master.takes_messages
    assert master.permissions == [6, 4, 6] and not permissions(world)["t"]


async def test_a_lost_response_to_the_fence_leaves_the_master_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, change = world.master, Master.set_admission
    filled(master)

    async def lost(live: Master, admission: BrokerAdmission) -> None:
        await change(live, admission)
        if not admission.permission & 2:
            raise AnswerMissing(Status.ANSWER_MISSING, "no response")

    monkeypatch.setattr(Master, "set_admission", lost)
    with pytest.raises(AnswerMissing):
        await take_over(world)
    assert master.permissions == [6, 4, 6] and master.takes_messages


async def test_the_error_of_a_call_that_runs_to_its_end_reaches_the_caller() -> None:
    async def fail() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await to_its_end(fail())


async def test_a_second_signal_does_not_keep_the_master_from_serving_again(world: World) -> None:
    master = world.master
    filled(master)
    master.behind = 150
    reopening = asyncio.Event()

    class SlowMaster(Master):
        async def set_admission(self, admission: BrokerAdmission) -> None:
            if admission.permission & 2:
                reopening.set()
                for _ in range(100):
                    await asyncio.sleep(0)
            await super().set_admission(admission)

    async with (
        OneTarget(world.ours.remoting.address) as target,
        SlowMaster(["127.0.0.1:1"], address=master.address) as live,
    ):
        mirror = Mirror(live, target, master.ha_address, print, QUICK)
        takeover = Takeover(mirror, live, target, print, SHORT)
        running = asyncio.ensure_future(run_until_signal(take_over_while_following(mirror, takeover)))
        await until(lambda: master.permissions[-1] == 4)
        os.kill(os.getpid(), signal.SIGTERM)
        await reopening.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await running
        assert master.permissions == [6, 4, 6] and master.takes_messages


async def test_a_cancellation_does_not_keep_a_blocked_takeover_from_reopening_the_master(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, change = world.master, Master.set_admission
    filled(master)
    master.behind = 150
    reopening = asyncio.Event()

    async def slowly(live: Master, admission: BrokerAdmission) -> None:
        if admission.permission & 2:
            reopening.set()
            for _ in range(100):
                await asyncio.sleep(0)
        await change(live, admission)

    monkeypatch.setattr(Master, "set_admission", slowly)
    moving = asyncio.ensure_future(take_over(world, SHORT._replace(drain_s=0.2)))
    await reopening.wait()
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)
    assert master.permissions == [6, 4, 6] and master.takes_messages
