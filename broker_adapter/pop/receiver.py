"""Receives on the master: choose, propose, give out what was granted.

A receive has a queue for itself from choosing to proposing. What others propose comes behind it in the log,
so they can go on from there while the append is under way. What was chosen is given out only when the state
has granted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from broker_adapter.api import GroupConfig, PullResult
from broker_adapter.errors import BrokerError, ReadFailed, Status
from broker_adapter.pop.api import Delivery, Filter
from broker_adapter.pop.commands import (
    Change,
    ChangeKind,
    Drop,
    Element,
    Pop,
    Popped,
    QueueKey,
)
from broker_adapter.pop.committer import Committer, Done, Request
from broker_adapter.pop.handles import receipt_handle
from broker_adapter.pop.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.pop.reading import Found, Plan, look
from broker_adapter.pop.receive_queues import GroupTopic, ReceiveQueue, ReceiveQueues
from broker_adapter.pop.room import Received, Room
from broker_adapter.pop.state import DeliveryState
from broker_adapter.store.queue_reader import QueueReader
from dledger.platform import wake_queue

_log = structlog.get_logger(part="delivery")

T = TypeVar("T")

#: A message that became visible while somebody was at it is looked at again after this.
_LEAST_WAIT_S = 0.01
#: What could not be moved to the dead letters waits so long aside: others are given meanwhile.
_ASIDE_S = 1.0
#: Of the limit that all groups share, a group takes no more than it leaves; and so many messages each group
#: may always have, however many others are abandoned with all that they could take.
_EACH_GROUP = 32


class ReceiveLimits(NamedTuple):
    max_pending_per_queue: int
    max_pending: int
    renewed_ms: int  # what was popped without a time of its own
    max_given_bytes: int = 64 << 20  # on their way from the log to consumers


class Bounds(Protocol):
    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...


class DeadLetters(Protocol):
    def move(self, key: QueueKey, offset: int, pop: int, record: bytes) -> asyncio.Future[bool]:
        """To `%DLQ%group`, atomically; False: it is not pending under this pop any more. It goes on whoever
        waits for it."""


@dataclass(frozen=True, slots=True)
class Receive:
    """One call."""

    who: GroupTopic
    group: GroupConfig
    queues: int
    first_offsets: Callable[[int], int]  # where a queue that is new to the group begins, by what is known
    client_id: str
    wanted: Filter
    max_messages: int
    max_bytes: int
    invisible_ms: int
    attempt_id: str
    address: str = ""  # of the client, "" if it is not known
    only_fitting: bool = False  # not one byte more than max_bytes

    def key(self, queue_id: int) -> QueueKey:
        return QueueKey(self.who.group, self.who.topic, queue_id)


_UNTOUCHED = ReceiveQueue()
#: Queues that one step of the loop looks at: 2.5 ms.
_QUEUES_AT_ONCE = 256


#: So much each receive may have in memory, whatever others hold.
SMALL_BYTES = 64 << 10


class _PopUnderWay(NamedTuple):
    """One Pop of a request: its queue, the number of its chain, its place among the elements."""

    queue: ReceiveQueue
    chain: int
    place: int


class _DoesNotFit(Exception):
    """There are messages, and the first ones are too large."""


class Receiver:
    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        reader: QueueReader,
        files: Bounds,
        receive_queues: ReceiveQueues,
        dead_letters: DeadLetters,
        *,
        now_ms: Callable[[], int],
        run: Callable[[Callable[[], Any], str], Awaitable[Any]],
        run_filter: Callable[[Callable[[], Any], str], Awaitable[Any]],
        limits: ReceiveLimits,
    ) -> None:
        """`run` does what blocks, for an address, `run_filter` what evaluates its filter; `now_ms` is cluster
        time."""
        self.refused_fresh = 0  # how often nothing fresh was given, as too much is pending
        self._state = state
        self._committer = committer
        self._reader = reader
        self._files = files
        self._receive_queues = receive_queues
        self._dead_letters = dead_letters
        self._now_ms = now_ms
        self._run, self._run_filter = run, run_filter
        self._limits = limits
        self.room = Room(limits.max_given_bytes)

    async def receive(self, call: Receive, deadline: float, check: Callable[[], object]) -> Received:
        """Empty at `deadline`, of the loop's clock. `check` raises when there is nothing to
        wait for any more: another master, no such topic."""
        loop = asyncio.get_running_loop()
        if call.attempt_id and self._popped_in_attempt(call):
            again = await self._in_room(call, deadline, self._repeat)
            if again:
                return again
        while True:
            # Known as waiting before it looks: nothing can come unnoticed in between.
            woken = self._receive_queues.enter(call.who)
            found = Received()
            is_over = True
            try:
                give = partial(self._try, deadline=deadline, check=check)
                found = await self._small_or_in_room(call, deadline, give, woken)
                if found or loop.time() >= deadline:
                    return found
                await self.wait(call, woken, deadline)
                is_over = False
            finally:
                self._receive_queues.leave(call.who, woken)
                if is_over and (woken.done() or not found):
                    # What woke this one, or the time that it alone may know of, is for the next one.
                    self._receive_queues.wake_one(call.who)

    async def _in_room(
        self,
        call: Receive,
        deadline: float,
        give: Callable[[Receive], Awaitable[list[Delivery]]],
        woken: asyncio.Future[None] | None = None,
    ) -> Received:
        """What `give` gives, and room in memory for it; empty if there is none by the deadline, or until
        `woken`: something else has come."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline) as limit:

                def give_up(_: object) -> None:
                    with suppress(RuntimeError):  # it is over already
                        limit.reschedule(loop.time())

                if woken is not None:
                    woken.add_done_callback(give_up)
                await self.room.take(call.max_bytes, call.address)
        except TimeoutError:
            return Received()
        finally:
            if woken is not None:
                woken.remove_done_callback(give_up)
        return await self._given_room(call, give)

    async def _given_room(
        self, call: Receive, give: Callable[[Receive], Awaitable[list[Delivery]]]
    ) -> Received:
        size = 0
        try:
            given = await give(call)
            size = sum(len(one.record) for one in given)
            return Received(given, partial(self.room.give, size, call.address))
        finally:
            self.room.give(call.max_bytes - size, call.address)

    async def _small_or_in_room(
        self,
        call: Receive,
        deadline: float,
        give: Callable[[Receive], Awaitable[list[Delivery]]],
        woken: asyncio.Future[None],
    ) -> Received:
        """As `_in_room`, but what is small needs none. A client that does not read keeps its room for as long
        as it likes, as gRPC takes back nothing: only large messages wait for that."""
        if self.room.take_now(call.max_bytes, call.address):
            return await self._given_room(call, give)
        small = replace(call, max_bytes=min(call.max_bytes, SMALL_BYTES), only_fitting=True)
        try:
            return Received(await give(small))
        except _DoesNotFit:
            return await self._in_room(call, deadline, give, woken)

    async def record(self, key: QueueKey, offset: int) -> bytes:
        """The message at an offset. ReadFailed (MESSAGE_NOT_FOUND)."""
        read = partial(
            self._reader.read,
            key.topic,
            key.queue_id,
            offset,
            max_messages=1,
            max_bytes=1,
            tags=frozenset(),
        )
        result: PullResult = await self._run(read, "")
        if not result.records:
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, f"no message {offset} in {key.topic}-{key.queue_id}")
        return result.records[0]

    # -- choosing -----------------------------------------------------------------------------------------

    async def _try(self, call: Receive, deadline: float, check: Callable[[], object]) -> list[Delivery]:
        """What can be given now. _DoesNotFit: something, but nothing that fits."""
        loop = asyncio.get_running_loop()
        while True:
            is_stuck = False
            plans: list[Plan] = []
            try:
                await self._plan(call, plans, check)
                if not plans:
                    return []
                work = partial(
                    look,
                    self._reader,
                    plans,
                    call.wanted,
                    call.max_messages,
                    call.max_bytes,
                    only_fitting=call.only_fitting,
                )
                is_sql = call.wanted.matches is not None
                looked = self._run_filter(work, call.address) if is_sql else self._run(work, call.address)
                found: list[Found] = await looked
                await wake_queue().turn(call.who.topic)
                request = self._propose(call, found)
                is_nothing = request is None and not any(self._worn_out(call, one) for one in found)
                if is_nothing and any(one.does_not_fit for one in found):
                    is_stuck = True
                    raise _DoesNotFit
            finally:
                for plan in plans:
                    self._receive_queues.queue(plan.key).is_read = False
                if plans and not is_stuck:  # nor does it fit for others, which would wake this one in turn
                    self._receive_queues.wake_one(call.who)  # for what was left
            if is_nothing:
                return []
            moves = self._bury(call, found)
            if request is not None and (given := await self._given(call, found, request)):
                return given
            await asyncio.shield(moves)
            if loop.time() >= deadline:
                return []

    async def _plan(self, call: Receive, plans: list[Plan], check: Callable[[], object]) -> None:
        """Queues that have something, until it may be enough; nobody else reads these from now on. Topics may
        have a thousand queues: a turn of the loop looks at some of them."""
        left, turn = call.max_messages, self._receive_queues.turn(call.who)
        for first in range(turn, turn + call.queues, _QUEUES_AT_ONCE):
            await wake_queue().turn(call.who.topic)
            check()
            some = range(first, min(first + _QUEUES_AT_ONCE, turn + call.queues))
            left = self._plan_some(call, [call.key(i % call.queues) for i in some], plans, left)
            if left <= 0:
                return

    def _plan_some(self, call: Receive, keys: Sequence[QueueKey], plans: list[Plan], left: int) -> int:
        """How many messages more may be given."""
        now_ms = self._now_ms()
        ends = [self._files.bounds(key.topic, key.queue_id)[1] for key in keys]
        with self._state.lock:
            for key, end in zip(keys, ends, strict=True):
                plan = self.plan_queue(call, key, end, left, now_ms)
                if plan is not None:
                    self._receive_queues.queue(key).is_read = True
                    plans.append(plan)
                    left -= len(plan.again) + plan.most_fresh
                    if left <= 0:
                        break
        return left

    def plan_queue(self, call: Receive, key: QueueKey, end: int, left: int, now_ms: int) -> Plan | None:
        """What may be given of a queue that ends at `end`; None: nothing. Under the state's lock."""
        receives, queue = self._receive_queues.find(key) or _UNTOUCHED, self._state.queue(key)
        if receives.is_read:
            return None
        pending = len(queue.pending) if queue is not None else 0
        again: list[tuple[int, PoppedMessage]] = []
        if call.group.consume_orderly:
            if receives.under_way or receives.reserved or (queue is not None and queue.has_invisible(now_ms)):
                return None
            again = sorted(queue.pending.items())[:left] if queue is not None else []
        elif queue is not None:
            again = queue.expired(now_ms, left, receives.reserved)
        begin = receives.next_offset(queue, call.first_offsets(key.queue_id))
        fresh = min(left - len(again), end - begin)
        if call.group.consume_orderly and len(again) < pending:
            fresh = 0
        if fresh > 0:
            room = min(
                self._room(key.group), self._limits.max_pending_per_queue - pending - len(receives.reserved)
            )
            self.refused_fresh += room <= 0
            fresh = min(fresh, room)
        return Plan(key, again, begin, fresh) if again or fresh > 0 else None

    def _room(self, group: str) -> int:
        """For how many messages more there is room in the share of this group."""
        pending = self._state.pending_of(group)
        free = self._limits.max_pending - self._state.pending_count
        return max((free - pending) // 2, _EACH_GROUP - pending)

    def _worn_out(self, call: Receive, found: Found) -> list[tuple[int, PoppedMessage]]:
        """Those that were given as often as they may be."""
        most = call.group.retry_max_times
        return [] if most < 0 else [one for one in found.again if one[1].attempts > most]

    # -- proposing ----------------------------------------------------------------------------------------

    def _propose(self, call: Receive, found: Sequence[Found]) -> Request | None:
        """In the step in which the reads have ended."""
        elements: list[Element] = []
        popped: list[_PopUnderWay] = []
        for one in found:
            dead = {offset for offset, _ in self._worn_out(call, one)}
            if call.group.consume_orderly and dead:  # what is behind one of them waits until it is moved
                one.again = [(at, popped) for at, popped in one.again if at < min(dead) or at in dead]
            again = tuple((offset, popped.pop) for offset, popped in one.again if offset not in dead)
            receives = self._receive_queues.queue(one.plan.key)
            # Also those that are to be moved: they are let go of when that is done.
            reserved = {offset for offset, _ in (*one.again, *one.unwanted)}
            receives.reserved |= reserved
            elements += [Drop(one.plan.key, offset, popped.pop) for offset, popped in one.unwanted]
            if again or one.end > one.plan.begin:
                popped.append(_PopUnderWay(receives, receives.begin_pop(one.end), len(elements)))
                elements.append(self._pop(call, one, again))
        if not elements:
            return None
        dead_of = self._dead_of(call, found)

        def release() -> None:
            for one in popped:  # of this leadership: a later one has other queues
                one.queue.end_pop(one.chain, is_taken=_is_taken(request, one.place))
            self._release(call.who, found, dead_of)

        request = Request(elements=elements, release=release)
        try:
            self._committer.submit(request)
        except BrokerError:
            request.release()
            for one in found:
                self._receive_queues.queue(one.plan.key).reserved -= {
                    at for at, _ in self._worn_out(call, one)
                }
            raise
        return request

    def _pop(self, call: Receive, one: Found, again: tuple[tuple[int, int], ...]) -> Pop:
        return Pop(
            one.plan.key,
            call.client_id,
            call.attempt_id,
            call.invisible_ms or self._limits.renewed_ms,
            False,  # not before it has reached the client
            call.group.consume_orderly,
            False,
            one.plan.begin,
            one.end,
            tuple(one.fresh),
            again,
            first_from_state=True,
        )

    def _dead_of(self, call: Receive, found: Sequence[Found]) -> dict[QueueKey, set[int]]:
        return {one.plan.key: {offset for offset, _ in self._worn_out(call, one)} for one in found}

    def _release(
        self,
        who: GroupTopic,
        found: Sequence[Found],
        dead: dict[QueueKey, set[int]],
    ) -> None:
        for one in found:
            kept = dead[one.plan.key]
            receives = self._receive_queues.queue(one.plan.key)
            receives.reserved -= {offset for offset, _ in (*one.again, *one.unwanted) if offset not in kept}
        self._receive_queues.wake_one(who)

    def _bury(self, call: Receive, found: Sequence[Found]) -> asyncio.Future[list[bool]]:
        """Begin to move those that were given too often. That goes on if the client goes, as places would
        stay reserved otherwise. Never fails: what could not be moved waits aside."""
        moves = [
            self._bury_one(call.who, one.plan.key, at, popped.pop, one.records[at])
            for one in found
            for at, popped in self._worn_out(call, one)
        ]
        return asyncio.gather(*moves)

    async def _bury_one(self, who: GroupTopic, key: QueueKey, offset: int, pop: int, record: bytes) -> bool:
        reserved, pause_s = self._receive_queues.queue(key).reserved, 0.0

        def let_go() -> None:
            reserved.discard(offset)
            self._receive_queues.wake_one(who)

        try:
            return await self._dead_letters.move(key, offset, pop, record)
        except Exception as error:
            pause_s = _ASIDE_S
            mistake = None if isinstance(error, BrokerError) else error
            _log.warning("a dead letter could not be moved", reason=str(error), exc_info=mistake)
            return False
        finally:
            if pause_s:
                asyncio.get_running_loop().call_later(pause_s, let_go)
            else:
                let_go()

    # -- giving -------------------------------------------------------------------------------------------

    async def _given(self, call: Receive, found: Sequence[Found], request: Request) -> list[Delivery]:
        try:
            done = await asyncio.shield(request.done)
            await wake_queue().turn(call.who.topic)  # what was asked for together is done together
        except asyncio.CancelledError:
            request.done.add_done_callback(partial(self._take_back, request.elements))
            raise
        records = {one.plan.key: one.records for one in found}
        given = []
        for element, outcome in zip(request.elements, done.outcomes, strict=True):
            if isinstance(element, Pop) and isinstance(outcome, Popped):
                for at, attempt in outcome.given:
                    given.append(_delivery(call, element, records[element.key][at], at, attempt, outcome))
        return given

    def _take_back(self, elements: Sequence[Element], done: asyncio.Future[Done]) -> None:
        """The client has gone: what it was given reached nobody."""
        if done.cancelled() or done.exception() is not None:
            return
        back = [
            not_passed_on(element.key, offset, outcome.pop, is_repeated=element.repeats)
            for element, outcome in zip(elements, done.result().outcomes, strict=True)
            if isinstance(element, Pop) and isinstance(outcome, Popped)
            for offset, _ in outcome.given
        ]
        if back:
            self.give_back(GroupTopic(back[0].key.group, back[0].key.topic), back)

    def give_back(self, who: GroupTopic, back: Sequence[Change]) -> None:
        """What could not be passed on is visible again as soon as the log has these."""
        request = Request(elements=back, release=partial(self._receive_queues.wake_one, who))
        try:
            self._committer.submit(request)
        except BrokerError:
            return  # visible again when its time is over: nobody renews it

    def _popped_in_attempt(self, call: Receive) -> list[tuple[QueueKey, int, PoppedMessage]]:
        with self._state.lock:
            return self._state.popped_in_attempt(*call.who, call.attempt_id)

    async def _repeat(self, call: Receive) -> list[Delivery]:
        """What a call with the same attempt id holds, once more."""
        popped = self._popped_in_attempt(call)
        by_queue: dict[QueueKey, list[tuple[int, PoppedMessage]]] = {}
        for key, offset, was in popped:
            by_queue.setdefault(key, []).append((offset, was))
        plans = [Plan(key, again, 0, 0) for key, again in by_queue.items()]
        if not plans:
            return []
        work = partial(look, self._reader, plans, Filter(), len(popped), call.max_bytes)
        found: list[Found] = await self._run(work, call.address)
        elements: list[Element] = []
        for one in found:
            again = tuple((offset, was.pop) for offset, was in one.again)
            elements.append(self._pop(call, one, again)._replace(repeats=True, begin=0, end=0))
        request = Request(elements=elements)
        self._committer.submit(request)
        return await self._given(call, found, request)

    # -- waiting ------------------------------------------------------------------------------------------

    async def wait(self, call: Receive, woken: asyncio.Future[None], deadline: float) -> None:
        """Until `woken`, the deadline, or a popped message may be given again."""
        loop = asyncio.get_running_loop()
        expiry_ms = await self._next_expiry(call)
        at = deadline
        if expiry_ms is not None:
            at = min(deadline, loop.time() + max(_LEAST_WAIT_S, (expiry_ms - self._now_ms()) / 1000))
        timer = loop.call_at(at, self._receive_queues.wake, call.who, woken)
        try:
            await woken
        finally:
            timer.cancel()

    async def _next_expiry(self, call: Receive) -> int | None:
        """When something that is popped may be given again."""
        times: list[int] = []
        for first in range(0, call.queues, _QUEUES_AT_ONCE):
            if first:
                await wake_queue().turn(call.who.topic)
            with self._state.lock:
                for queue_id in range(first, min(first + _QUEUES_AT_ONCE, call.queues)):
                    queue = self._state.queue(call.key(queue_id))
                    if queue is not None and queue.pending:
                        expiry = self._expiry_of(call, queue)
                        times += () if expiry is None else (expiry,)
        return min(times, default=None)

    def _expiry_of(self, call: Receive, queue: QueueDelivery) -> int | None:
        if call.group.consume_orderly:
            return queue.latest_expiry()
        receives = self._receive_queues.find(queue.key)
        if receives is not None and (receives.is_read or receives.reserved):
            return None  # whoever is at it wakes the next one
        return queue.next_expiry()


def _is_taken(request: Request, place: int) -> bool:
    """Whether the Pop at this place among the elements has got the fresh messages that it is for."""
    pop = request.elements[place]
    if isinstance(pop, Pop) and pop.begin == pop.end:
        return True  # it is for none, so pops behind it lose nothing
    outcome = None if request.applied is None else request.applied.outcomes[place]
    return isinstance(outcome, Popped) and outcome.is_fresh_given


def not_passed_on(key: QueueKey, offset: int, pop: int, *, is_repeated: bool) -> Change:
    """Of what a call was given. One that repeats another may have reached its client the first time: that
    stays an attempt."""
    return Change(key, offset, pop, 0, ChangeKind.RELEASE if is_repeated else ChangeKind.RETURN)


def _delivery(call: Receive, pop: Pop, record: bytes, offset: int, attempt: int, outcome: Popped) -> Delivery:
    key = pop.key
    handle = receipt_handle(key.topic, key.queue_id, offset, outcome.pop)
    return Delivery(
        record,
        key.queue_id,
        offset,
        attempt,
        handle,
        outcome.invisible_until_ms,
        is_renewed=not call.invisible_ms,
        is_repeated=pop.repeats,
    )
