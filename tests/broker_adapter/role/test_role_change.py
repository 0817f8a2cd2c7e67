"""The role change, case by case: what the adapter is asked for, when writes are accepted, what is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker_adapter.role.role_change import RoleChangeHandler, RoleChangeLimits
from broker_adapter.role.role_status import RoleStep, StepOutcome
from dledger import Code, ReadFailed, Refused, Role
from tests.broker_adapter.role.role_world import AdapterFailed, Event, HandAdapter, HandNode, World

MASTER_STEPS = ["change_to_slave", "wait_dispatched", "recover_topic_queue_table", "change_to_master"]


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    made = World(**options)
    made.handler.start()
    try:
        yield made
    finally:
        made.let_go()
        stopping = asyncio.ensure_future(made.handler.stop())
        await made.pass_time(10)
        await stopping
        assert not made.wrongs, made.wrongs


async def led_up_to(w: World, name: str) -> Event:
    """Elected, committed, and every call ended up to the one of this name, which is under way."""
    event = await w.lead()
    w.node.commit(event.barrier_index)
    await w.turns()
    while w.adapter.open is None or w.adapter.open.name != name:
        await w.finish()
    return event


# -- the way to master --------------------------------------------------------------------------------


async def test_an_idle_cluster_gets_a_master_as_soon_as_the_no_op_is_committed_and_dispatched() -> None:
    async with world() as w:
        event = await w.lead()
        assert w.handler.status.step is RoleStep.WAITING_FOR_COMMIT and not w.handler.status.writable
        assert w.handler.status.waits_for == f"commit of {event.barrier_index}; committed up to -1"
        w.node.commit(event.barrier_index)
        await w.turns()
        assert w.adapter.writable == event.pair
        assert w.adapter.names == MASTER_STEPS
        assert w.handler.status.step is RoleStep.MASTER and w.handler.status.writable


async def test_an_index_beyond_the_barrier_will_do() -> None:
    """The original waits for two moving numbers to be equal."""
    async with world() as w:
        w.node.commit(1000)
        event = await w.deliver(w.event(Role.LEADER)._replace(barrier_index=500))
        assert w.adapter.writable == event.pair


async def test_100_000_messages_that_are_not_dispatched_are_waited_for_with_the_handler_saying_so() -> None:
    async with world(at_once=False) as w:
        w.node.commit(100_000)
        w.adapter.dispatch_behind_bytes = 100_000 * 1024
        event = await w.lead()
        w.node.commit(event.barrier_index)
        await w.finish()  # change_to_slave
        await w.pass_time(10)
        status = w.handler.status
        assert status.step is RoleStep.WAITING_FOR_DISPATCH and status.waiting_ms == 10_000
        assert status.waits_for == (
            f"dispatch up to {event.barrier_index}; applied up to {event.barrier_index}, "
            f"dispatch_behind_bytes {100_000 * 1024}"
        )
        assert w.handler.metrics.overdue == {RoleStep.WAITING_FOR_DISPATCH: 3}
        assert w.node.hand_overs == 3, "somebody with less lag may take over; there is nobody"
        assert w.node.reports[-1] == (100_000 * 1024, True), "lagging is no failure of the adapter"
        assert w.adapter.writable is None
        for name in ("wait_dispatched", "recover_topic_queue_table", "change_to_master"):
            assert await w.finish() == name
        assert w.adapter.writable == event.pair
        assert w.handler.metrics.seconds[RoleStep.WAITING_FOR_DISPATCH] == pytest.approx(10)
        assert w.handler.metrics.elected_to_writable.sum == pytest.approx(10)
        assert w.handler.status.elected_to_writable_ms == 10_000


async def test_waits_that_end_with_not_yet_are_begun_again_and_are_no_failure() -> None:
    async with world(at_once=False) as w:
        w.node.impatient = 2
        event = await w.lead()
        await w.finish()
        await w.pass_time(1)
        w.node.commit(event.barrier_index)
        await w.turns()
        assert await w.finish(TimeoutError()) == "wait_dispatched"
        await w.pass_time(1)
        assert await w.finish(ReadFailed("not yet", code=Code.READ_NOT_CONFIRMED)) == "wait_dispatched"
        await w.pass_time(1)
        await w.settle()
        assert w.handler.status.failures == 0 and w.handler.is_fit


async def test_a_handler_that_ends_by_a_mistake_of_its_own_gives_leadership_away_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a leader without a master would stay for good: its heartbeats stay valid."""
    async with world() as w:

        async def lead(event: Event) -> None:
            raise ZeroDivisionError("a mistake")

        monkeypatch.setattr(w.handler, "_lead", lead)
        await w.lead()
        await w.turns()
        assert not w.handler.status.writable and not w.handler.is_fit
        assert "a mistake" in w.handler.status.last_failure
        assert w.node.reports[-1][1] is False and w.node.hand_overs == 1
        await w.pass_time(60)
        assert w.node.hand_overs > 10 and w.node.reports[-1][1] is False
        await w.deliver(w.event(Role.FOLLOWER))
        before = w.node.hand_overs
        await w.pass_time(60)
        assert w.node.hand_overs == before, "it does not lead"
        await w.lead()
        await w.pass_time(10)
        assert w.node.hand_overs > before


async def test_without_an_event_nothing_is_asked_of_the_adapter_but_to_refuse_writes() -> None:
    adapter = HandAdapter()
    adapter.writable = (1, 1)
    async with world(adapter=adapter) as w:
        await w.pass_time(60)
        assert adapter.calls == [] and adapter.writable is None
        assert w.handler.status.step is RoleStep.IDLE and w.handler.status.role == ""


# -- slave --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.UNKNOWN])
async def test_every_role_but_leader_is_slave(role: Role) -> None:
    async with world() as w:
        event = await w.deliver(w.event(role))
        assert w.adapter.calls == [("change_to_slave", *event.pair, None)]
        assert w.handler.status.step is RoleStep.SLAVE and w.handler.metrics.switches == {RoleStep.SLAVE: 1}


async def test_a_slave_is_told_of_another_leader() -> None:
    async with world() as w:
        events = [await w.follow(None), await w.follow("a"), await w.follow("b")]
        assert w.adapter.calls == [("change_to_slave", *e.pair, e.leader_id) for e in events]
        assert len({e.role_epoch for e in events}) == 1


async def test_the_same_event_again_changes_nothing() -> None:
    async with world() as w:
        event = await led(w)
        calls = list(w.adapter.calls)
        await w.deliver(event)
        assert w.adapter.calls == calls and w.adapter.writable == event.pair


async def led(w: World) -> Event:
    event = await w.lead()
    w.node.commit(event.barrier_index)
    await w.turns()
    assert w.adapter.writable == event.pair
    return event


async def test_an_event_of_the_past_changes_nothing() -> None:
    async with world() as w:
        old = await w.follow()
        event = await led(w)
        await w.deliver(old)
        assert w.adapter.writable == event.pair and w.handler.metrics.stale_events == 1
        new = await w.follow()
        await w.deliver(event)
        assert w.adapter.role == "slave" and w.handler.status.term == new.term


# -- leadership is lost -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
async def test_leadership_lost_while_the_commit_is_waited_for(role: Role) -> None:
    async with world() as w:
        event = await w.lead()
        lost = await w.deliver(w.event(role))
        assert w.adapter.calls[-1] == ("change_to_slave", *lost.pair, None)
        w.node.commit(event.barrier_index)
        await w.pass_time(60)
        assert "change_to_master" not in w.adapter.names and w.handler.status.step is RoleStep.SLAVE


@pytest.mark.parametrize("step", MASTER_STEPS)
async def test_leadership_lost_during_any_step_cancels_it_and_makes_a_slave(step: str) -> None:
    async with world(at_once=False) as w:
        await led_up_to(w, step)
        lost = await w.follow()
        assert w.adapter.open is not None and w.adapter.open.name == "change_to_slave"
        assert w.adapter.calls[-1] == ("change_to_slave", *lost.pair, "other")
        await w.finish()
        w.look_at_rest()
        assert w.handler.metrics.superseded == 1


@pytest.mark.parametrize("step", MASTER_STEPS)
async def test_a_call_that_cannot_be_cancelled_is_ended_before_anything_else_and_leads_to_nothing(
    step: str,
) -> None:
    async with world(at_once=False) as w:
        w.adapter.heeds_cancelling = False
        await led_up_to(w, step)
        lost = await w.follow()
        await w.pass_time(10)
        assert w.adapter.open is not None and w.adapter.open.name == step, "no other call beside it"
        assert w.handler.status.step is RoleStep.ENDING_CALL and w.node.reports[-1][1] is False
        await w.finish()
        assert w.adapter.writable is None
        assert w.adapter.calls[-1] == ("change_to_slave", *lost.pair, "other")
        await w.settle()


async def test_leadership_lost_in_the_turn_in_which_change_to_master_returns() -> None:
    async with world(at_once=False) as w:
        await led_up_to(w, "change_to_master")
        assert w.adapter.open is not None
        w.adapter.open.finish()
        await w.follow()
        assert w.adapter.writable is None and w.adapter.calls[-1][0] == "change_to_slave"
        await w.settle()


async def test_leadership_lost_right_after_change_to_master_refuses_writes_in_the_same_step() -> None:
    async with world() as w:
        event = await led(w)
        assert w.node.append(w.adapter.writable)
        w.say(w.event(Role.FOLLOWER, "other"))
        assert w.adapter.writable is None and not w.handler.status.writable
        assert not w.node.append(event.pair)
        await w.turns()
        w.look_at_rest()


async def test_the_fence_does_not_wait_for_a_hanging_call() -> None:
    async with world(at_once=False) as w:
        await led_up_to(w, "change_to_master")
        await w.finish()
        w.adapter.heeds_cancelling = False
        w.say(w.event(Role.FOLLOWER, "other"))
        await w.turns()
        assert w.adapter.open is not None and w.adapter.open.name == "change_to_slave"
        w.adapter.writable = (1, 1)  # as if something had opened it
        w.say(w.event(Role.FOLLOWER, "another"))
        assert w.adapter.writable is None
        w.adapter.open.finish()
        await w.settle()


async def test_leadership_lost_and_won_again_before_anybody_looked_still_passes_through_slave() -> None:
    async with world() as w:
        await led(w)
        w.say(w.event(Role.FOLLOWER))
        again = w.event(Role.LEADER)
        w.say(again)
        assert w.adapter.writable is None
        w.node.commit(again.barrier_index)
        await w.turns()
        assert w.adapter.names == MASTER_STEPS * 2
        assert w.adapter.writable == again.pair


# -- adapters that raise ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [*MASTER_STEPS, "accept_writes"])
async def test_an_adapter_that_raises_once_is_asked_again(step: str) -> None:
    async with world() as w:
        w.adapter.fail_next = [step]
        event = await w.lead()
        w.node.commit(event.barrier_index)
        await w.pass_time(0.06)
        assert w.adapter.writable == event.pair
        assert w.node.hand_overs == 0
        assert w.handler.status.failures == 1 and "AdapterFailed" in w.handler.status.last_failure
        assert w.node.reports[-1][1] is False
        await w.pass_time(30)
        assert w.node.reports[-1][1] is True, "a failure is forgiven after 30 s"


async def test_a_call_that_ends_as_cancelled_by_itself_is_a_failure() -> None:
    async with world(at_once=False) as w:
        event = await led_up_to(w, "change_to_master")
        await w.finish(asyncio.CancelledError())
        assert w.handler.metrics.failures == {RoleStep.CHANGING_TO_MASTER: 1}
        await w.pass_time(0.1)
        assert await w.finish() == "change_to_master"
        assert w.adapter.writable == event.pair


@pytest.mark.parametrize("step", [*MASTER_STEPS, "accept_writes"])
async def test_leadership_moves_on_from_an_adapter_that_always_raises(step: str) -> None:
    async with world() as w:
        w.adapter.failing = {step}
        w.node.fitter = True
        w.node.on_hand_over = lambda: w.say(w.event(Role.FOLLOWER, "other"))
        event = await w.lead()
        w.node.commit(event.barrier_index)
        await w.pass_time(1)
        assert w.node.hand_overs == 1 and (0, False) in w.node.reports
        assert w.handler.metrics.hand_overs == {"done": 1}
        await w.settle()
        assert w.adapter.role == "slave"


async def test_with_nobody_fitter_it_is_tried_on_with_bounded_pauses() -> None:
    async with world() as w:
        w.adapter.failing = {"change_to_master"}
        event = await w.lead()
        w.node.commit(event.barrier_index)
        await w.pass_time(60)
        assert 55 <= w.adapter.names.count("change_to_master") <= 75
        assert 55 <= w.node.hand_overs <= 100 and w.handler.metrics.hand_overs["failed"] == w.node.hand_overs
        assert w.handler.status.step is RoleStep.CHANGING_TO_MASTER
        assert len(w.handler.status.history) == RoleChangeLimits().history
        w.adapter.failing.clear()
        await w.pass_time(1)
        assert w.adapter.writable == event.pair


async def test_change_to_slave_that_raises_is_repeated_until_it_returns_and_writes_stay_refused() -> None:
    async with world() as w:
        await led(w)
        w.adapter.failing = {"change_to_slave"}
        await w.follow()
        await w.pass_time(20)
        assert w.adapter.writable is None and w.handler.status.step is RoleStep.CHANGING_TO_SLAVE
        assert w.node.hand_overs == 0, "a follower has nothing to hand over"
        await w.settle()
        assert w.handler.status.step is RoleStep.SLAVE


async def test_a_fence_that_raises_harms_neither_the_node_nor_the_change() -> None:
    async with world() as w:
        await led(w)
        w.adapter.fail_next = ["refuse_writes"]
        await w.follow()
        assert w.handler.status.failures == 1
        w.look_at_rest()


async def test_change_to_master_that_hangs_makes_the_node_unfit_and_leadership_moves_on() -> None:
    async with world(at_once=False) as w:
        w.node.fitter = True
        w.node.on_hand_over = lambda: w.say(w.event(Role.FOLLOWER, "other"))
        await led_up_to(w, "change_to_master")
        await w.pass_time(3)
        assert w.node.hand_overs == 1 and (0, False) in w.node.reports
        await w.settle()


async def test_a_hand_over_that_fails_disturbs_nothing() -> None:
    def refuse() -> None:
        raise Refused("nobody has room", code=Code.DISK_FULL)

    async with world() as w:
        w.node.fitter, w.node.on_hand_over = True, refuse
        event = await w.lead()
        await w.pass_time(10)
        assert w.node.hand_overs == 3 and w.handler.metrics.hand_overs == {"failed": 3}
        w.node.commit(event.barrier_index)
        await w.turns()
        assert w.adapter.writable == event.pair


async def test_fitness_is_reported_all_the_time_and_an_adapter_that_cannot_tell_is_survived() -> None:
    class Mute(HandAdapter):
        mute = False

        @property
        def dispatch_behind_bytes(self) -> int:
            if self.mute:
                raise RuntimeError("no number")
            return 42

        @dispatch_behind_bytes.setter
        def dispatch_behind_bytes(self, value: int) -> None: ...

    adapter = Mute()
    async with world(adapter=adapter) as w:
        await w.follow()
        await w.pass_time(1)
        assert w.node.reports[-4:] == [(42, True)] * 4
        adapter.mute = True
        adapter.fail_next = ["change_to_slave"]
        await w.follow("another")
        await w.pass_time(1)
        w.look_at_rest()
        adapter.mute = False
        await w.pass_time(1)
        assert w.node.reports[-1] == (42, False)


# -- restarts and the end -----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["stopped", "killed", "gone"])
@pytest.mark.parametrize("role", [Role.LEADER, Role.FOLLOWER])
async def test_a_restart_begins_from_nothing(ending: str, role: Role) -> None:
    """The handler stopped; killed without a word while its adapter lives; or the whole process gone."""
    first = World()
    first.handler.start()
    await led(first)
    if ending == "stopped":
        await first.handler.stop()
        assert first.adapter.role == "slave"
    else:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert first.adapter.writable is not None, "nobody was left to fence it"
    adapter = HandAdapter() if ending == "gone" else first.adapter
    async with world(adapter=adapter, node=HandNode()) as second:
        assert adapter.writable is None
        second.term, second.epoch = first.term, 8 << 32  # the next incarnation
        second.node.committed_index = first.node.committed_index
        if role is Role.FOLLOWER:
            await second.follow()
            second.look_at_rest()
        event = await led(second)
        assert event.pair > first.delivered[-1].pair
        await second.follow()
        second.look_at_rest()


async def test_a_handler_that_starts_late_follows_the_present_role() -> None:
    node = HandNode()
    node.commit(10)
    node.deliver(Event(Role.LEADER, 3, 5, "me", 9))
    async with world(node=node) as w:
        w.delivered.append(node.event or pytest.fail("no event"))
        await w.turns()
        assert w.adapter.writable == (3, 5)


async def test_stop_refuses_writes_at_once_and_makes_a_slave() -> None:
    w = World()
    w.handler.start()
    await led(w)
    stopping = asyncio.ensure_future(w.handler.stop())
    await asyncio.sleep(0)
    assert w.adapter.writable is None
    await stopping
    assert w.adapter.role == "slave" and w.handler.status.step is RoleStep.STOPPED
    assert w.node.reports[-1][1] is False, "leadership must not come here any more"
    calls = list(w.adapter.calls)
    await w.lead()
    await w.pass_time(10)
    assert w.adapter.calls == calls and w.adapter.writable is None
    assert w.timers.next_due() is None, "nothing is left running"
    await w.handler.stop()


async def test_stop_retries_a_change_to_slave_that_raises() -> None:
    w = World()
    w.handler.start()
    await led(w)
    w.adapter.fail_next = ["change_to_slave"]
    stopping = asyncio.ensure_future(w.handler.stop())
    await w.pass_time(0.1)
    await stopping
    assert w.adapter.role == "slave"


@pytest.mark.parametrize("heeds_cancelling", [True, False])
async def test_stop_is_bounded(heeds_cancelling: bool) -> None:
    w = World(at_once=False)
    w.adapter.heeds_cancelling = heeds_cancelling
    w.handler.start()
    await led_up_to(w, "change_to_master")
    stopping = asyncio.ensure_future(w.handler.stop())
    await w.pass_time(4.9)
    in_time = stopping.done()
    await w.pass_time(0.2)
    still_open, ended = w.adapter.open is not None, stopping.done()
    w.let_go()
    await w.turns()
    assert not in_time and ended
    assert still_open is not heeds_cancelling
    assert w.handler.status.step is RoleStep.STOPPED and w.adapter.writable is None, "whatever ends later"


async def test_stop_in_the_middle_of_a_wait_ends_it() -> None:
    w = World()
    w.handler.start()
    await w.lead()
    await w.handler.stop()
    assert w.adapter.role == "slave" and w.handler.status.step is RoleStep.STOPPED


async def test_stop_before_any_event_asks_nothing_of_the_adapter() -> None:
    w = World()
    w.handler.start()
    await w.handler.stop()
    assert w.adapter.calls == []
    await World().handler.stop()  # one that was never started


# -- what is shown ------------------------------------------------------------------------------------


async def test_history_has_one_record_for_each_step_and_the_status_is_json() -> None:
    async with world() as w:
        w.adapter.fail_next = ["recover_topic_queue_table"]
        event = await w.lead()
        await w.pass_time(3.5)
        w.node.commit(event.barrier_index)
        await w.pass_time(1)
        steps = [(record.step, record.outcome) for record in w.handler.status.history]
        assert steps == [
            (RoleStep.CHANGING_TO_SLAVE, StepOutcome.DONE),
            (RoleStep.WAITING_FOR_COMMIT, StepOutcome.OVERDUE),
            (RoleStep.WAITING_FOR_COMMIT, StepOutcome.DONE),
            (RoleStep.WAITING_FOR_DISPATCH, StepOutcome.DONE),
            (RoleStep.RECOVERING, StepOutcome.FAILED),
            (RoleStep.RECOVERING, StepOutcome.DONE),
            (RoleStep.CHANGING_TO_MASTER, StepOutcome.DONE),
            (RoleStep.MASTER, StepOutcome.DONE),
        ]
        shown = json.loads(json.dumps(w.handler.status.as_dict()))
        assert shown["step"] == "MASTER" and shown["writable"] and shown["waits_for"] == ""
        assert shown["history"][1]["detail"] == f"commit of {event.barrier_index}; committed up to -1"
        assert shown["elected_to_writable_ms"] == 3550
        assert shown["last_switch_unix_ms"] == 1_700_000_000_000


@pytest.mark.parametrize(
    "wrong", [{"patience_s": 0}, {"stop_s": -1}, {"tries_before_hand_over": 0}, {"history": 0}]
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RoleChangeLimits(**wrong)


async def test_an_error_of_the_handler_itself_leaves_writes_refused() -> None:
    class Broken(RoleChangeHandler):
        def _switched(self, role: RoleStep) -> None:
            raise AdapterFailed("a bug")

    w = World(handler=Broken)
    w.handler.start()
    event = await w.lead()
    w.node.commit(event.barrier_index)
    await w.turns()
    assert w.adapter.writable is None
    await w.handler.stop()
