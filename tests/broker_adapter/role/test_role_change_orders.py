"""Any order of role events, with an adapter that is slow, raises and does not heed cancelling.

Whatever happens: the adapter is writable only while the newest event is LEADER with the same pair of term and
role_epoch and its barrier is committed and dispatched; calls never overlap; a change_to_slave lies between
two leaderships; and when all is quiet the adapter is what the newest event says. The mistakes that a handler
can make, those of the original among them, are planted and have to be found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from broker_adapter.role.role_change import RoleChangeHandler, _Superseded
from broker_adapter.role.role_status import RoleStep
from dledger import Role, RoleEvent
from tests.broker_adapter.role.role_world import AdapterFailed, HandAdapter, World

TURNS = st.sampled_from([0, 0, 1, 2, 3, 5, 20])
ACTIONS = st.one_of(
    st.tuples(st.just("lead"), TURNS),
    st.tuples(st.just("lead"), TURNS),
    st.tuples(st.just("follow"), TURNS, st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("stand"), TURNS),
    st.tuples(st.just("repeat"), TURNS, st.integers(1, 4)),
    st.tuples(st.just("commit"), TURNS),
    st.tuples(st.just("finish"), TURNS, st.sampled_from(["", "", "", "", "raise", "cancelled"])),
    st.tuples(st.just("finish"), TURNS, st.just("")),
    st.tuples(st.just("pass"), st.sampled_from([0.05, 0.2, 1.0, 4.0])),
    st.tuples(st.just("heed"), st.booleans()),
    st.tuples(st.just("at once"), st.booleans()),
)
#: How far a leadership has come when disorder begins: chance alone rarely gets as far as to a master.
BEGINNINGS = st.sampled_from(
    [
        [],
        [("at once", True), ("lead", 20), ("commit", 20), ("at once", False)],
        [("lead", 20), ("commit", 20), *[("finish", 20, "")] * 3],
        [("heed", False), ("lead", 20), ("commit", 20), *[("finish", 20, "")] * 3],
    ]
)
PLANS = st.builds(lambda begin, rest: [*begin, *rest], BEGINNINGS, st.lists(ACTIONS, max_size=30))
ENDINGS: dict[str, Callable[[], BaseException | None]] = {
    "": lambda: None,
    "raise": lambda: AdapterFailed("told to"),
    "cancelled": asyncio.CancelledError,
}

Plan = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Some 100,000 log lines otherwise."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


async def act(w: World, name: str, *how: Any) -> None:
    adapter = w.adapter
    match name, *how:
        case "lead", turns:
            await w.deliver(w.event(Role.LEADER), turns)
        case "follow", turns, leader:
            await w.deliver(w.event(Role.FOLLOWER, leader), turns)
        case "stand", turns:
            await w.deliver(w.event(Role.CANDIDATE), turns)
        case "repeat", turns, back if back <= len(w.delivered):
            await w.deliver(w.delivered[-back], turns)
        case "commit", turns:
            w.node.commit(w.newest.barrier_index if w.newest else -1)
            await w.turns(turns)
        case "finish", turns, ending if adapter.open is not None and not adapter.open.future.done():
            adapter.open.finish(ENDINGS[ending]())
            await w.turns(turns)
        case "pass", seconds:
            await w.pass_time(seconds)
        case "heed", heeds:
            adapter.heeds_cancelling = heeds
        case "at once", at_once:
            adapter.at_once = at_once


async def wrongs_of(
    plan: Plan, handler: type[RoleChangeHandler], adapter: type[HandAdapter] = HandAdapter
) -> list[str]:
    w = World(handler=handler, adapter=adapter(at_once=False))
    w.handler.start()
    try:
        for action in plan:
            await act(w, *action)
        await w.settle()
    finally:
        w.let_go()
        stopping = asyncio.ensure_future(w.handler.stop())
        await w.pass_time(10)
        await stopping
    if w.adapter.role == "master":
        w.wrongs.append("master after the handler was stopped")
    return w.wrongs


@pytest.mark.slow
@settings(max_examples=300)
@given(PLANS)
def test_the_adapter_is_never_more_than_the_newest_event_says_and_becomes_it_in_the_end(plan: Plan) -> None:
    assert not asyncio.run(wrongs_of(plan, RoleChangeHandler))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), ACTIONS), max_size=40))
def test_of_three_brokers_one_at_most_is_writable_in_a_term_and_only_its_node_takes_what_it_writes(
    plan: list[tuple[int, Any]],
) -> None:
    asyncio.run(three_brokers(plan))


async def three_brokers(plan: list[tuple[int, Any]]) -> None:
    """Terms are given out once over all, as elections do; each broker learns of its own node's role alone."""
    worlds = [World(at_once=False) for _ in range(3)]
    for w in worlds:
        w.handler.start()
    acknowledged: set[tuple[int, int]] = set()
    for number, action in plan:
        w = worlds[number]
        w.term = max(other.term for other in worlds)
        await act(w, *action)
        writable = [other for other in worlds if other.adapter.writable is not None]
        terms = [other.adapter.writable[0] for other in writable if other.adapter.writable is not None]
        assert len(terms) == len(set(terms)), "two brokers writable in one term"
        for other in worlds:
            if other.node.append(other.adapter.writable):
                newest = other.newest
                assert newest is not None and newest.role is Role.LEADER
                assert other.adapter.writable == newest.pair and other.adapter.role == "master"
                acknowledged.add((worlds.index(other), newest.term))
    assert len({term for _, term in acknowledged}) == len(acknowledged)
    for w in worlds:
        await w.settle()
        await w.handler.stop()
        assert not w.wrongs, w.wrongs


# -- planted mistakes -----------------------------------------------------------------------------------


class FencesLater(RoleChangeHandler):
    """The event is queued, and writes go on until its turn comes: behind a slow call, for ever."""

    def role_changed(self, event: RoleEvent) -> None:
        fence, self._fence = self._fence, lambda: None  # type: ignore[method-assign]
        try:
            super().role_changed(event)
        finally:
            self._fence = fence  # type: ignore[method-assign]


class NeverLooksAgain(RoleChangeHandler):
    """As the original: the role is not compared again after a wait."""

    async def _supersedable(self, call: Callable[[], Awaitable[None] | None]) -> None:
        returned = call()
        if returned is not None:
            await returned

    def _accept_writes(self, event: RoleEvent) -> None:
        self._adapter.accept_writes(event.term, event.role_epoch)


class OnlyLogsErrors(RoleChangeHandler):
    """As the original: an adapter that raises is left in the role it has."""

    async def _carry_out(
        self, event: RoleEvent, step: RoleStep, call: Any, *, then: Any = lambda: None
    ) -> None:
        self._enter(step)
        try:
            await self._supersedable(call)
        except AdapterFailed as error:
            self._failed(step, error)
        else:
            then()


class ForgetsToStepDown(RoleChangeHandler):
    """What a leadership left behind is not ended before the next one, if nobody looked in between."""

    async def _lead(self, event: RoleEvent) -> None:
        self._is_slave = True
        await super()._lead(event)


class DoesNotWaitForTheEnd(RoleChangeHandler):
    """A cancelled call is forgotten, whether it heeds that or not."""

    async def _supersedable(self, call: Callable[[], Awaitable[None] | None]) -> None:
        if self._newer.done():
            raise _Superseded
        task = asyncio.ensure_future(call() or asyncio.sleep(0))
        await asyncio.wait({task, self._newer}, return_when=asyncio.FIRST_COMPLETED)
        if self._newer.done():
            task.cancel()
            raise _Superseded
        task.result()


class FollowsThePast(RoleChangeHandler):
    """Whatever comes last is taken for the newest."""

    def role_changed(self, event: RoleEvent) -> None:
        self._newest = None
        super().role_changed(event)


class WaitsForNoCommit(RoleChangeHandler):
    async def _committed(self, index: int) -> None:
        return


class WaitsForNoDispatch(RoleChangeHandler):
    async def _carry_out(self, event: RoleEvent, step: RoleStep, *call: Any, **then: Any) -> None:
        if step is not RoleStep.WAITING_FOR_DISPATCH:
            await super()._carry_out(event, step, *call, **then)


class ChecksBeforeChangeToMasterOnly(RoleChangeHandler):
    """Writes are accepted although the role changed while change_to_master was under way."""

    async def _supersedable(self, call: Callable[[], Awaitable[None] | None]) -> None:
        if self._newer.done():
            raise _Superseded
        returned = call()
        if returned is not None:
            await returned

    def _accept_writes(self, event: RoleEvent) -> None:
        self._adapter.accept_writes(event.term, event.role_epoch)


class StopsWithoutAWord(RoleChangeHandler):
    async def stop(self) -> None:
        self._is_slave = True
        await super().stop()


class OpensByItself(HandAdapter):
    """An adapter that takes change_to_master for the permission to write."""

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        await super().change_to_master(term, role_epoch)
        self.writable = (term, role_epoch)


PLANTED = [
    FencesLater,
    NeverLooksAgain,
    OnlyLogsErrors,
    ForgetsToStepDown,
    DoesNotWaitForTheEnd,
    FollowsThePast,
    WaitsForNoCommit,
    WaitsForNoDispatch,
    ChecksBeforeChangeToMasterOnly,
    StopsWithoutAWord,
]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: type[RoleChangeHandler]) -> None:
    assert found(lambda plan: asyncio.run(wrongs_of(plan, mistake)))


def test_an_adapter_that_opens_by_itself_is_found() -> None:
    """Why accept_writes is a call of its own."""
    assert found(lambda plan: asyncio.run(wrongs_of(plan, RoleChangeHandler, OpensByItself)))


def found(wrongs: Callable[[Plan], list[str]]) -> Plan:
    """A plan under which something goes wrong; hypothesis.errors.NoSuchExample if there is none."""
    return find(
        PLANS,
        lambda plan: bool(wrongs(plan)),
        settings=settings(
            max_examples=3000, derandomize=True, database=None, deadline=None, phases=[Phase.generate]
        ),
    )
