"""Delayed messages are carried along with the log: when, how many, and that each is still put once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from broker_adapter.delivery_state.commands import Carry, EndDeferred, Ending
from broker_adapter.errors import Busy, ReadFailed
from broker_adapter.put.committer import Committer, PutRequest
from broker_adapter.scheduled import carrier as carrier_module
from broker_adapter.scheduled.carrier import Carrier
from tests.broker_adapter.scheduled.deferred_world import World, delayed
from tests.node.local import until


def carrier_of(world: World, begin_pos: int, wanted_begin_pos: int) -> Carrier:
    log = SimpleNamespace(begin_pos=begin_pos, wanted_begin_pos=wanted_begin_pos)
    return Carrier(world.state, cast(Committer, world), world.deferred.whole, log, run=world.run, look_ms=1)


async def test_what_stands_between_the_log_and_its_purge_is_carried_along_and_nothing_else() -> None:
    world = World()
    handles = await delayed(world, 6)  # the first ones at 1000, 2000 and so on
    carrier = carrier_of(world, 0, 4000)
    before = dict(world.state.deferred)
    await carrier.carry_if_worthwhile()
    assert [one.deferred_id for one in world.elements if isinstance(one, Carry)] == list(before)[:3]
    assert carrier.carried == 3 and carrier.kept_bytes == 4000
    assert world.state.deferred.first_pos() == 4000
    assert world.state.deferred.in_log() == [*list(before)[3:], *list(before)[:3]]
    assert {n: one.due_ms for n, one in world.state.deferred.items()} == {
        n: one.due_ms for n, one in before.items()
    }
    assert await world.deferred.recall("t", handles[0], 1000) == ""  # the handle is that of the message
    world.now_ms += 1000
    await world.look()
    await until(lambda: not world.state.deferred)
    ends = [one.deferred_id for one in world.elements if isinstance(one, EndDeferred)]
    assert sorted(ends) == sorted(before)
    world.deferred.stop()


async def test_a_stretch_of_the_log_that_is_mostly_waited_for_stays() -> None:
    world = World()
    await delayed(world, 3, 300)
    size = sum(one.place.size for one in world.state.deferred.values())
    carrier = carrier_of(world, 4000 - 2 * size + 1, 4000)
    await carrier.carry_if_worthwhile()
    assert not any(isinstance(one, Carry) for one in world.elements)
    assert world.state.deferred.first_pos() == 1000
    await carrier_of(world, 4000 - 2 * size, 4000).carry_if_worthwhile()
    assert world.state.deferred.first_pos() == 4000
    world.deferred.stop()


async def test_what_ends_meanwhile_is_not_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await delayed(world, 2)
    under_way: list[PutRequest] = []
    settle, world.settle = world.settle, under_way.append  # type: ignore[method-assign,assignment]
    carrying = asyncio.ensure_future(carrier_of(world, 0, 9000).carry_if_worthwhile())
    await until(lambda: len(under_way) == 2)
    world.apply([EndDeferred(next(iter(world.state.deferred)), Ending.MOVED)])
    assert [request.is_due is not None and request.is_due() for request in under_way] == [False, True]
    for request in under_way:
        settle(request)
    await carrying
    assert len(world.state.deferred) == 1
    world.deferred.stop()


async def test_one_that_cannot_be_read_is_left_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "_STEP_MESSAGES", 4)
    world = World()
    await delayed(world, 10)
    world.unreadable.add(3000)
    carrier = carrier_of(world, 0, 10_500)
    await carrier.carry_if_worthwhile()
    assert carrier.carried == 9 and world.state.deferred.first_pos() == 3000
    world.deferred.stop()


async def test_without_room_it_is_tried_again_later() -> None:
    world = World()
    await delayed(world, 2)
    carrier = carrier_of(world, 0, 9000)
    world.is_full = True
    with pytest.raises(Busy):
        await carrier.carry_if_worthwhile()
    carrier.start()
    await asyncio.sleep(0)
    world.is_full = False
    await until(lambda: carrier.carried >= 2)
    carrier.stop()
    world.deferred.stop()


async def test_a_message_that_is_carried_while_it_is_read_is_read_where_it_is_then() -> None:
    world = World()
    (handle,) = await delayed(world, 1)
    world.unreadable.add(1000)
    recalling = asyncio.ensure_future(world.deferred.recall("t", handle, 1000))
    await asyncio.sleep(0)
    number, message = next(iter(world.state.deferred.items()))
    world.unreadable.clear()
    world.apply([Carry(number, (await world.deferred.whole([(number, message)]))[0])])
    world.unreadable.add(1000)
    try:
        assert await recalling == ""
    except ReadFailed:
        pytest.fail("it was looked for where it was before")
    assert not world.state.deferred
    world.deferred.stop()
