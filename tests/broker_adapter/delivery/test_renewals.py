"""Who is heard of keeps what it holds; who went, and who is silent, does not."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery import renewals as renewals_module
from broker_adapter.delivery.receive_queues import ReceiveQueues
from broker_adapter.delivery.renewals import Renewals
from broker_adapter.delivery_state.commands import (
    Ack,
    ChangeKind,
    ChangeVisibility,
    ConfirmReceipt,
    Element,
    Pop,
    QueueKey,
)
from broker_adapter.delivery_state.records import encode
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import PutIndeterminate, Status, error_for
from broker_adapter.put.committer import PutRequest

KEY = QueueKey("g", "t", 0)
START = 1_000_000


class World:
    """A state whose commands are applied as soon as they are asked for, at a time that the test sets."""

    def __init__(self) -> None:
        self.state = DeliveryState()
        self.now_ms = START
        self.refusals: list[bool] = []  # of what is asked for next: whether it was taken before
        self.changes: list[ChangeVisibility] = []
        self.told: list[ConfirmReceipt] = []
        self.popped = 0  # the newest pop
        settings = DeliverySettings(invisible_ms=1000, heard_ms=500, release_ms=10, max_renewed_ms=5000)
        self.renewals = Renewals(
            self.state,
            self,  # type: ignore[arg-type]
            ReceiveQueues(),
            now_ms=lambda: self.now_ms,
            settings=settings,
        )
        self._index = 0

    def submit(self, request: PutRequest) -> asyncio.Future[object]:
        if self.refusals:
            busy = error_for(Status.TOO_MANY_PENDING_BYTES, "no room")
            if not self.refusals.pop():
                raise busy
            request.fail(busy)
            return request.done  # type: ignore[return-value]
        self.changes += [one for one in request.elements if isinstance(one, ChangeVisibility)]
        self.told += [one for one in request.elements if isinstance(one, ConfirmReceipt)]
        self.apply(*request.elements)
        return request.done  # type: ignore[return-value]

    def apply(self, *elements: Element) -> None:
        self._index += 1
        self.state.apply(self._index, self.now_ms, encode(elements))

    def pop(self, client: str, *, renews: bool = True, key: QueueKey = KEY) -> None:
        at = queue.cursor if (queue := self.state.queue(key)) else 0
        self.apply(Pop(key, client, "", 1000, renews, False, False, at, at + 1, (at,), ()))
        self.popped = self._index << 16

    def until(self, offset: int, key: QueueKey = KEY) -> int:
        return self.state.queues[key].pending[offset].invisible_until_ms - START


async def test_only_who_is_heard_of_is_renewed_and_only_when_half_is_over() -> None:
    world = World()
    world.renewals.start()
    world.pop("lives")
    world.pop("silent")
    world.pop("lives", renews=False)
    world.now_ms += 499
    world.renewals.heard_of("lives", "")
    world.renewals.renew()
    assert world.changes == []
    world.now_ms += 2
    world.renewals.renew()
    assert [world.until(at) for at in range(3)] == [1501, 1000, 1000]
    world.renewals.stop()


async def test_a_new_master_gives_everybody_one_period() -> None:
    world = World()
    world.pop("c")
    world.now_ms += 600
    world.renewals.start()
    world.renewals.renew()
    assert world.until(0) == 1600
    world.now_ms += 600
    world.renewals.renew()
    assert world.until(0) == 1600
    world.renewals.stop()


async def test_of_messages_that_were_taken_up_again_nothing_is_told_to_the_log() -> None:
    """What reached a client under an earlier pop says nothing of the newest one."""
    world = World()
    world.renewals.start()
    world.pop("c")
    earlier = world.popped
    world.now_ms += 1001
    world.apply(Pop(KEY, "d", "", 1000, False, False, False, 1, 1, (), ((0, earlier),)))
    world.renewals.passed_on([(KEY, 0, earlier)])
    world.renewals.record()
    assert world.told == [] and not world.state.queues[KEY].pending[0].renews
    # Nor would the state believe it.
    world.apply(ConfirmReceipt(KEY, earlier, (0,)))
    assert not world.state.queues[KEY].pending[0].renews
    world.renewals.stop()


async def test_what_could_not_be_passed_on_is_no_more_of_its_attempt() -> None:
    """The same call once more is given it as anybody is: for the first time."""
    world = World()
    again = ((0, 1 << 16),)
    world.apply(Pop(KEY, "c", "attempt", 1000, False, False, False, 0, 1, (0,), ()))
    assert len(world.state.popped_in_attempt("g", "t", "attempt")) == 1
    world.apply(ChangeVisibility(KEY, 0, 1 << 16, 0, ChangeKind.RETURN))
    assert world.state.popped_in_attempt("g", "t", "attempt") == []
    world.apply(Pop(KEY, "c", "attempt", 1000, False, False, True, 0, 0, (), again))
    assert world.state.queues[KEY].pending[0].attempts == 0, "there is nothing to be given again"
    world.apply(Pop(KEY, "c", "attempt", 1000, False, False, False, 1, 1, (), again))
    assert world.state.queues[KEY].pending[0].attempts == 1


async def test_renewals_have_an_end() -> None:
    world = World()
    world.renewals.start()
    world.pop("c")
    for _ in range(40):  # ten seconds
        if world.until(0) > world.now_ms - START:
            world.now_ms += 250
            world.renewals.heard_of("c", "")
            world.renewals.renew()
    assert 5000 <= world.until(0) <= 6000
    world.renewals.stop()


async def test_what_a_client_held_that_went_is_visible_soon_and_not_renewed() -> None:
    world = World()
    world.renewals.start()
    world.pop("c")
    world.pop("c", renews=False)
    world.renewals.release_client("c", "other group")
    assert world.changes == []
    world.renewals.release_client("c", "g")
    assert [one.kind for one in world.changes] == [ChangeKind.RELEASE] * 2
    assert [world.until(at) for at in range(2)] == [10, 10]
    world.renewals.heard_of("c", "")
    world.renewals.renew()
    assert [world.until(at) for at in range(2)] == [10, 10]
    world.renewals.stop()


async def test_a_client_that_went_is_not_taken_for_heard_of_by_a_new_master() -> None:
    """What it held is visible so soon that it is left alone."""
    world = World()
    world.pop("c")
    world.now_ms += 995
    world.renewals.start()
    world.renewals.release_client("c", "g")
    world.now_ms += 1
    world.renewals.renew()
    assert world.until(0) == 1000
    world.renewals.stop()


async def test_only_what_has_reached_its_client_is_renewed() -> None:
    world = World()
    world.renewals.start()
    pops = []
    for _ in range(3):
        world.pop("c", renews=False)
        pops.append(world.popped)
    world.renewals.passed_on([(KEY, 0, pops[0]), (KEY, 2, pops[2])])
    world.apply(Ack(KEY, 2, pops[2]))
    world.renewals.record()
    # Of what is done by then the log hears nothing.
    assert world.told == [ConfirmReceipt(KEY, pops[0], (0,))]
    world.now_ms += 501
    world.renewals.heard_of("c", "")
    world.renewals.renew()
    assert [world.until(at) for at in (0, 1)] == [1501, 1000]
    world.renewals.stop()


async def test_what_has_reached_its_client_the_next_master_knows_from_the_log() -> None:
    world = World()
    world.renewals.start()
    for _ in range(2):
        world.pop("c", renews=False)
    world.renewals.passed_on([(KEY, 0, world.popped - (1 << 16))])
    world.renewals.record()
    world.renewals.stop()
    world.now_ms += 501
    world.renewals.start()
    world.renewals.renew()
    assert [world.until(at) for at in (0, 1)] == [1501, 1000]
    world.renewals.stop()


async def finished(world: World) -> None:
    """Steps that are to come are done now."""
    while world.renewals._step_timers:
        await asyncio.sleep(0)


@pytest.mark.parametrize("clients", [1, 100])
async def test_what_clients_hold_is_gone_through_in_steps_of_a_bounded_size(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it belongs to one client, or to many, in one queue."""
    monkeypatch.setattr(renewals_module, "MAX_PER_STEP", 10)
    world = World()
    world.renewals.start()
    for number in range(100):
        world.pop(f"c{number % clients}")
    world.now_ms += 501
    for number in range(clients):
        world.renewals.heard_of(f"c{number}", "")
    steps: list[int] = []

    def submit(request: PutRequest) -> asyncio.Future[object]:
        steps.append(len(request.elements))
        return World.submit(world, request)

    monkeypatch.setattr(world, "submit", submit)
    world.renewals.renew()
    assert 0 < sum(steps) <= 10
    await finished(world)
    assert max(steps) <= 10
    assert {world.until(at) for at in range(100)} == {1501}
    world.renewals.stop()


async def test_what_is_gone_through_already_is_not_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else rounds that take longer than their period would pile up."""
    monkeypatch.setattr(renewals_module, "MAX_PER_STEP", 10)
    world = World()
    world.renewals.start()
    for _ in range(100):
        world.pop("c")
    world.now_ms += 501
    world.renewals.heard_of("c", "")
    for _ in range(5):
        world.renewals.renew()
    assert len(world.changes) == 10
    await finished(world)
    assert len(world.changes) == 100
    world.renewals.stop()


async def test_so_are_the_messages_of_a_client_that_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "MAX_PER_STEP", 10)
    world = World()
    world.renewals.start()
    for _ in range(35):
        world.pop("c")
    ended = world.renewals.release_client("c", "")
    assert len(world.changes) == 10
    await finished(world)
    assert len(world.changes) == 35
    assert not ended.done()  # the log has what it was told; nobody has answered
    world.renewals.stop()


async def test_what_somebody_else_was_given_meanwhile_is_not_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "MAX_PER_STEP", 1)
    world = World()
    world.renewals.start()
    for _ in range(2):
        world.pop("c")
    second = world.popped
    world.renewals.release_client("c", "")
    world.now_ms += 1001  # before the next step
    world.apply(Pop(KEY, "d", "", 1000, False, False, False, 2, 2, (), ((1, second),)))
    await finished(world)
    assert [world.until(at) for at in (0, 1)] == [10, 2001]
    world.renewals.stop()


async def test_what_has_reached_clients_is_told_in_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "MAX_PER_STEP", 10)
    world = World()
    world.renewals.start()
    for at in range(35):
        world.pop("c", renews=False)
        world.renewals.passed_on([(KEY, at, world.popped)])
    world.renewals.record()
    assert len(world.told) == 5  # each pop counts, and each message of it
    for _ in range(6):
        world.renewals.record()
    assert len(world.told) == 35
    world.renewals.stop()


OTHER = QueueKey("other", "t", 0)


async def test_who_is_heard_of_in_one_group_keeps_nothing_of_another() -> None:
    """Whoever knows a client id may speak for it in groups in which he may consume."""
    world = World()
    world.renewals.start()
    for key in (KEY, OTHER):
        world.pop("c", key=key)
    world.now_ms += 501
    world.renewals.heard_of("c", "other")
    world.renewals.renew()
    assert (world.until(0), world.until(0, OTHER)) == (1000, 1501)
    world.renewals.heard_of("c", "g")
    world.renewals.renew()
    assert world.until(0) == 1501
    world.renewals.stop()


async def test_a_client_that_went_from_one_group_keeps_what_it_holds_of_another() -> None:
    world = World()
    world.renewals.start()
    for key in (KEY, OTHER):
        world.pop("c", key=key)
    world.now_ms += 300
    world.renewals.heard_of("c", "")
    world.renewals.release_client("c", "other")
    world.now_ms += 201
    world.renewals.renew()
    assert (world.until(0), world.until(0, OTHER)) == (1501, 310)
    world.renewals.stop()


async def test_who_is_heard_of_in_all_groups_is_heard_of_in_those_that_it_named_before() -> None:
    world = World()
    world.renewals.start()
    world.renewals.receives("c", "g")
    world.now_ms += 500
    world.pop("c")
    world.now_ms += 501
    world.renewals.heard_of("c", "")
    world.renewals.renew()
    assert world.until(0) == 2001
    world.renewals.stop()


async def test_who_receives_is_heard_of_in_that_group() -> None:
    world = World()
    world.renewals.start()
    world.now_ms += 501
    world.renewals.receives("c", "g")
    for key in (KEY, OTHER):
        world.pop("c", key=key)
    world.now_ms += 499
    world.renewals.heard_of("c", "g")
    world.now_ms += 2
    world.renewals.renew()
    assert (world.until(0), world.until(0, OTHER)) == (2002, 1501)
    world.renewals.stop()


async def test_made_up_clients_and_groups_take_no_memory() -> None:
    world = World()
    world.renewals.start()
    world.pop("c")
    for number in range(100):
        world.renewals.heard_of(f"made up {number}", "g")
        world.renewals.heard_of("c", f"made up {number}")
    assert world.renewals._last_seen == {}
    world.renewals.heard_of("c", "g")
    assert list(world.renewals._last_seen) == ["c"]
    world.renewals.stop()


@pytest.mark.parametrize("is_taken", [False, True])
async def test_what_the_log_does_not_take_of_passed_on_answers_is_told_again(is_taken: bool) -> None:
    """Nothing of them was renewed ever after, though their client lived."""
    world = World()
    world.renewals.start()
    world.pop("c", renews=False)
    world.refusals.append(is_taken)
    world.renewals.passed_on([(KEY, 0, world.popped)])
    world.renewals.record()
    assert world.told == []
    await asyncio.sleep(0)
    world.renewals.record()
    assert world.told == [ConfirmReceipt(KEY, world.popped, (0,))]
    world.now_ms += 501
    world.renewals.heard_of("c", "")
    world.renewals.renew()
    assert world.until(0) == 1501
    world.renewals.stop()


async def test_who_waits_for_what_a_client_held_is_told_when_the_leadership_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewals_module, "MAX_PER_STEP", 1)
    world = World()
    world.renewals.start()
    for _ in range(3):
        world.pop("c")
    ended = world.renewals.release_client("c", "g")
    world.renewals.stop()
    with pytest.raises(PutIndeterminate):
        await asyncio.wait_for(ended, 60)
