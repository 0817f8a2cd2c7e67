"""Attempts of a send that arrive after its message was recalled or rolled back do not store it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.commands import EndDeferred, Ending, RecordAttempt
from broker_adapter.delivery_state.duplicate_filter import MAX_AGE_MS
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Busy, IllegalMessage, PutIndeterminate, Status
from broker_adapter.put.committer import PutRequest, RequestOutcome
from broker_adapter.scheduled.deferring import (
    DeferRequest,
    Resolution,
    StoredDelayed,
    StoredHalf,
    TransactionEnd,
)
from tests.broker_adapter.scheduled.deferred_world import START, TOPIC, World

TIMEOUT_MS = 1_000
DUE_MS = START + 60_000


def request(born_ms: int) -> DeferRequest:
    return DeferRequest(TOPIC, OutgoingMessage(b"x", born_timestamp=born_ms), "id", timeout_ms=TIMEOUT_MS)


async def delay(world: World, born_ms: int) -> StoredDelayed:
    return await world.deferred.delay(request(born_ms), DUE_MS, 0)


async def half(world: World, born_ms: int) -> StoredHalf:
    return await world.deferred.half(request(born_ms), "producer", 0)


async def recall(world: World, stored: StoredDelayed | StoredHalf) -> None:
    assert isinstance(stored, StoredDelayed)
    assert await world.deferred.recall("t", stored.recall_handle, TIMEOUT_MS) == "id"


async def roll_back(world: World, stored: StoredDelayed | StoredHalf) -> None:
    assert isinstance(stored, StoredHalf)
    end = TransactionEnd("t", stored.transaction_id, Resolution.ROLLBACK)
    await world.deferred.end_transaction(end, TIMEOUT_MS)


Store = Callable[[World, int], Awaitable[StoredDelayed | StoredHalf]]
End = Callable[[World, StoredDelayed | StoredHalf], Awaitable[None]]
both_kinds = pytest.mark.parametrize(("store", "end"), [(delay, recall), (half, roll_back)])


async def assert_ended(world: World, store: Store, born_ms: int) -> None:
    before = len(world.state.deferred)
    with pytest.raises(IllegalMessage) as refused:
        await store(world, born_ms)
    assert refused.value.status is Status.SEND_ENDED
    assert len(world.state.deferred) == before


def restarted(world: World) -> None:
    """Replace the state with its image, as a node that starts or receives an image does."""
    found = DeliveryState()
    image.load(found, image.save(world.state))
    assert image.save(found) == image.save(world.state)
    world.state.adopt_contents(found)


@both_kinds
async def test_an_attempt_born_before_the_one_that_ended_does_not_bring_the_message_back(
    store: Store, end: End
) -> None:
    """A client's first attempt is held up, the second one is stored, and its message is recalled."""
    world = World()
    await end(world, await store(world, START + 3_000))
    for _ in range(2):
        await assert_ended(world, store, START)
        await assert_ended(world, store, START + 3_000)
        restarted(world)
    assert len(world.state.deferred) == 0


@both_kinds
async def test_a_send_after_the_end_is_a_new_message_and_so_are_its_attempts(store: Store, end: End) -> None:
    world = World()
    await end(world, await store(world, START))
    again = await store(world, START + 1)
    assert not again.is_repeated and len(world.state.deferred) == 1
    assert (await store(world, START + 2)).is_repeated
    await end(world, again)
    await assert_ended(world, store, START + 2)
    assert not (await store(world, START + 3)).is_repeated


@both_kinds
async def test_an_attempt_born_before_an_answered_one_does_not_bring_the_message_back(
    store: Store, end: End
) -> None:
    """The first attempt is stored, the second one is held up, and the third one is answered."""
    world = World()
    await store(world, START)
    third = await store(world, START + 6_000)
    assert third.is_repeated
    restarted(world)
    await end(world, third)
    restarted(world)
    await assert_ended(world, store, START + 3_000)
    assert not (await store(world, START + 6_001)).is_repeated


async def test_only_later_attempts_are_recorded() -> None:
    world = World()
    for born_ms in (START, START, START - 5, START + 7, START + 6, START + 7):
        await delay(world, born_ms)
    (recorded,) = [one for one in world.elements if isinstance(one, RecordAttempt)]
    assert recorded.identity.born_ms == START + 7
    assert len(world.state.deferred) == 1


async def test_an_attempt_that_is_recorded_behind_the_end_is_a_new_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message ends in the round before the one that records the attempt."""
    world = World()
    submit = world.submit
    first = await delay(world, START)
    (number,) = world.state.deferred

    def end_first(request: PutRequest) -> asyncio.Future[RequestOutcome]:
        monkeypatch.undo()
        world.apply([EndDeferred(number, Ending.RECALLED)])
        return submit(request)

    monkeypatch.setattr(world, "submit", end_first)
    again = await delay(world, START + 1)
    assert not again.is_repeated and again != first
    assert len(world.state.deferred) == 1


async def test_an_attempt_that_cannot_be_recorded_is_in_doubt() -> None:
    """Its message is stored. A client that is told otherwise would report a message that was not sent."""
    world = World()
    await delay(world, START)
    world.refuses = RecordAttempt
    with pytest.raises(PutIndeterminate):
        await delay(world, START + 1)
    world.is_full = True
    with pytest.raises(PutIndeterminate) as doubt:
        await delay(world, START + 1)
    assert isinstance(doubt.value.__cause__, Busy)


async def test_a_message_of_the_same_id_far_away_in_time_is_not_a_late_attempt() -> None:
    world = World()
    await recall(world, await delay(world, START + 15_000))
    await assert_ended(world, delay, START)
    assert not (await delay(world, START - 1)).is_repeated


async def test_an_ended_send_is_forgotten_a_minute_after_its_end() -> None:
    world = World()
    stored = await delay(world, START)
    world.now_ms += 30_000
    await recall(world, stored)
    world.now_ms += MAX_AGE_MS
    await assert_ended(world, delay, START)
    world.now_ms += 1
    assert not (await delay(world, START)).is_repeated
