"""A node, an adapter and a clock that do what a test tells them, one turn of the event loop at a time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from broker_adapter.role.role_change import RoleChangeHandler, RoleChangeLimits
from dledger import Code, ReadFailed, Role
from dledger.node.setup.trace import NodeTrace

Pair = tuple[int, int]


class Event(NamedTuple):
    role: Role
    term: int
    role_epoch: int
    leader_id: str | None = None
    barrier_index: int = -1

    @property
    def pair(self) -> Pair:
        return self.term, self.role_epoch


class HandTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class HandTimers:
    """Implements broker_adapter.role.adapter.Timers; time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, HandTimer]] = []
        self._asked = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object], /) -> HandTimer:
        timer = HandTimer(callback)
        self._asked += 1
        heapq.heappush(self._heap, (self.now + delay, self._asked, timer))
        return timer

    def next_due(self) -> float | None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire_next(self) -> None:
        when, _, timer = heapq.heappop(self._heap)
        self.now = max(self.now, when)
        assert timer.callback is not None
        timer.callback()


class HandNode:
    """Implements broker_adapter.role.adapter.RoleSource."""

    def __init__(self) -> None:
        self.event: Event | None = None
        self.committed_index = -1
        self.listener: Callable[[Event], None] = lambda event: None
        self.reports: list[tuple[int, bool]] = []  # (lag_bytes, fit)
        self.hand_overs = 0
        self.fitter = False  # whether there is somebody to hand over to
        self.on_hand_over: Callable[[], None] = lambda: None
        self.impatient = 0  # so many waits end with ReadFailed
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def applied_index(self) -> int:
        return self.committed_index

    def on_role(self, listener: Callable[[Event], None]) -> None:
        self.listener = listener
        if self.event is not None:
            listener(self.event)

    def deliver(self, event: Event) -> None:
        self.event = event
        self.listener(event)

    def commit(self, index: int) -> None:
        self.committed_index = max(self.committed_index, index)
        for wanted, future in self._waiting:
            if wanted <= self.committed_index and not future.done():
                future.set_result(None)

    async def wait_committed(self, index: int, timeout: float) -> None:
        if self.impatient:
            self.impatient -= 1
            raise ReadFailed("not yet", code=Code.READ_NOT_CONFIRMED)
        if self.committed_index < index:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((index, future))
            await future

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None:
        self.reports.append((lag_bytes, fit))

    async def hand_over(self) -> bool:
        self.hand_overs += 1
        if self.fitter:
            self.on_hand_over()
        return self.fitter

    def append(self, expected: Pair | None) -> bool:
        """As append_batch: only in the leadership that the caller means."""
        event = self.event
        return event is not None and event.role is Role.LEADER and expected == event.pair


class AdapterFailed(Exception):
    pass


class Call:
    """A call of the handler that is under way."""

    def __init__(self, name: str, *, heeds_cancelling: bool) -> None:
        self.name = name
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.heeds_cancelling = heeds_cancelling

    async def end(self) -> None:
        while True:
            try:
                await (self.future if self.heeds_cancelling else asyncio.shield(self.future))
                return
            except asyncio.CancelledError:
                if self.heeds_cancelling or self.future.cancelled():
                    raise

    def finish(self, error: BaseException | None = None) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.future.cancel()
        elif error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(None)


class HandAdapter:
    """Implements broker_adapter.role.adapter.BrokerAdapter. Each call waits until the test ends it, unless
    `at_once`. Notes whatever a handler must not do in `wrongs`."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.heeds_cancelling = True
        self.failing: set[str] = set()  # calls that always raise
        self.fail_next: list[str] = []  # ... that raise the next time
        self.calls: list[tuple[object, ...]] = []  # all that were begun, in order
        self.open: Call | None = None  # the last of those under way; a good handler has no others
        self.under_way: list[Call] = []
        self.role = ""  # that the last change brought
        self.writable: Pair | None = None
        self.master_of: Pair | None = None  # since the last change_to_slave that returned
        self.dispatched_index = -1
        self.dispatch_behind_bytes = 0
        self.wrongs: list[str] = []

    @property
    def names(self) -> list[object]:
        return [name for name, *_ in self.calls]

    def refuse_writes(self) -> None:
        self.writable = None
        self._fail_if_told("refuse_writes")

    def accept_writes(self, term: int, role_epoch: int) -> None:
        self._fail_if_told("accept_writes")
        if self.role != "master" or self.master_of != (term, role_epoch):
            self.wrongs.append("writes accepted by one that is not master")
        self.writable = (term, role_epoch)

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        pair = (term, role_epoch)
        if self.master_of not in (None, pair):
            self.wrongs.append(f"master of {pair} without having given up {self.master_of}")
        self.master_of, self.role = pair, "changing"
        await self._call("change_to_master", term, role_epoch)
        self.role = "master"

    async def change_to_slave(self, term: int, role_epoch: int, leader_id: str | None) -> None:
        self.role = "changing"
        await self._call("change_to_slave", term, role_epoch, leader_id)
        self.role, self.master_of = "slave", None

    async def wait_dispatched(self, index: int) -> None:
        await self._call("wait_dispatched", index)
        self.dispatched_index = max(self.dispatched_index, index)

    def recover_topic_queue_table(self) -> Awaitable[None]:
        return self._call("recover_topic_queue_table")

    async def _call(self, *call: object) -> None:
        name = str(call[0])
        if self.open is not None:
            self.wrongs.append(f"{name} while {self.open.name} is under way")
        self.calls.append(call)
        self._fail_if_told(name)
        if self.at_once:
            return
        mine = self.open = Call(name, heeds_cancelling=self.heeds_cancelling)
        self.under_way.append(mine)
        try:
            await mine.end()
        finally:
            self.under_way.remove(mine)
            self.open = self.under_way[-1] if self.under_way else None

    def _fail_if_told(self, name: str) -> None:
        if name in self.fail_next:
            self.fail_next.remove(name)
            raise AdapterFailed(name)
        if name in self.failing:
            raise AdapterFailed(name)


class World:
    """One handler between a node and an adapter. After each turn it looks whether all is well."""

    def __init__(
        self,
        *,
        at_once: bool = True,
        limits: RoleChangeLimits | None = None,
        handler: type[RoleChangeHandler] = RoleChangeHandler,
        adapter: HandAdapter | None = None,
        node: HandNode | None = None,
        trace: NodeTrace | None = None,
    ) -> None:
        self.timers = HandTimers()
        self.node = node or HandNode()
        self.adapter = adapter or HandAdapter(at_once=at_once)
        self.handler = handler(
            self.node,
            self.adapter,
            limits=limits,
            timers=self.timers,
            wall_ms=lambda: 1_700_000_000_000,
            trace=trace,
        )
        self.term, self.epoch = 0, 7 << 32
        self.delivered: list[Event] = []
        self.wrongs = self.adapter.wrongs

    @property
    def newest(self) -> Event | None:
        """Of what was delivered: node and adapter can lag behind it, the truth cannot."""
        return max(self.delivered, key=lambda e: (e.role_epoch, e.term), default=None)

    def event(self, role: Role, leader_id: str | None = None) -> Event:
        """The node's next event: a new role, or the same one under another leader or in another term."""
        last = self.newest
        if last is None or last.role is not role or role is Role.LEADER:
            self.epoch += 1
        if role is not Role.FOLLOWER or leader_id is not None:
            self.term += 1
        barrier = self.node.committed_index + 5 if role is Role.LEADER else -1
        return Event(role, self.term, self.epoch, "me" if role is Role.LEADER else leader_id, barrier)

    async def lead(self) -> Event:
        return await self.deliver(self.event(Role.LEADER))

    async def follow(self, leader_id: str | None = "other") -> Event:
        return await self.deliver(self.event(Role.FOLLOWER, leader_id))

    async def deliver(self, event: Event, turns: int = 20) -> Event:
        self.say(event)
        await self.turns(turns)
        return event

    def say(self, event: Event) -> None:
        newest = self.newest
        self.delivered.append(event)
        if newest is None or (event.role_epoch, event.term) >= (newest.role_epoch, newest.term):
            self.node.deliver(event)
        else:
            self.node.listener(event)
        self.look()

    async def turns(self, count: int = 20) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.look()

    async def pass_time(self, seconds: float) -> None:
        await self.turns()
        end = self.timers.now + seconds
        while (due := self.timers.next_due()) is not None and due <= end:
            self.timers.fire_next()
            await self.turns()
        self.timers.now = end

    async def finish(self, error: BaseException | None = None, turns: int = 20) -> str:
        """End the call that is under way; its name."""
        call = self.adapter.open
        assert call is not None, f"nothing is under way; it is at {self.handler.status.step}"
        call.finish(error)
        await self.turns(turns)
        return call.name

    def look(self) -> None:
        newest, writable = self.newest, self.adapter.writable
        if writable is None:
            return
        if newest is None or newest.role is not Role.LEADER or newest.pair != writable:
            self.wrongs.append(f"writable as {writable} while the node is {newest}")
        elif self.node.committed_index < newest.barrier_index:
            self.wrongs.append("writable before the barrier is committed")
        elif self.adapter.dispatched_index < newest.barrier_index:
            self.wrongs.append("writable before the barrier is dispatched")

    def look_at_rest(self) -> None:
        """When nothing is left to do the adapter is what the newest event says."""
        newest = self.newest
        role, writable = "", None
        if newest is not None:
            leads = newest.role is Role.LEADER
            role, writable = ("master", newest.pair) if leads else ("slave", None)
        if (self.adapter.role, self.adapter.writable) != (role, writable):
            self.wrongs.append(
                f"at rest {self.adapter.role!r}, writable {self.adapter.writable}; the node is {newest}"
            )

    def let_go(self) -> None:
        """From now on no call waits for the test or fails."""
        self.adapter.at_once = True
        self.adapter.failing.clear()
        self.adapter.fail_next.clear()
        for call in self.adapter.under_way:
            if not call.future.done():
                call.finish()

    async def settle(self) -> None:
        """Let everything succeed from now on, and wait for the end."""
        self.let_go()
        if self.newest is not None:
            self.node.commit(self.newest.barrier_index)
        await self.pass_time(10)
        self.look_at_rest()
