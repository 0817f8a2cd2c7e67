"""Receives on the master: choose messages, propose a pop, and deliver the messages that the state machine
grants.

A receive has exclusive use of a queue until it has proposed its pop. The proposals of later receives follow
in the log, so these can continue after its messages while the append is in flight. Messages are delivered
only after the state machine has granted them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from broker_adapter.api import GetMessageResult, GroupConfig
from broker_adapter.delivery.api import Delivery, Filter, ReceivedBatch
from broker_adapter.delivery.reading import QueueReadPlan, QueueReadResult, read_plans
from broker_adapter.delivery.receive_queues import GroupTopic, ReceiveQueue, ReceiveQueues
from broker_adapter.delivery_state.commands import (
    ChangeKind,
    ChangeVisibility,
    Drop,
    Element,
    Pop,
    PopOutcome,
    QueueKey,
)
from broker_adapter.delivery_state.handles import receipt_handle
from broker_adapter.delivery_state.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError, ReadFailed, Status
from broker_adapter.put.committer import Committer, PutRequest, RequestOutcome
from broker_adapter.store.queue_reader import MAX_SMALL_READ, QueueReader
from dledger.infra.loops.turns import wake_queue
from dledger.infra.quotas import FairQueue

_log = structlog.get_logger(part="delivery")

T = TypeVar("T")

#: Minimum delay before a message is examined again that became visible while another receive used its queue.
_MIN_WAIT_S = 0.01
#: Cluster time may step, so a wait for an invisible message checks the time at least this often.
_MAX_WAIT_S = 1.0
#: Delay before another attempt to move a dead letter. Other messages are delivered in the meantime.
_MOVE_RETRY_S = 1.0
#: Number of pending messages that a group may always have, however many messages other groups have abandoned.
#: Beyond this number, a group may use at most half of the shared limit that other groups leave free.
_MIN_PER_GROUP = 32


class ReceiveLimits(NamedTuple):
    max_pending_per_queue: int
    max_pending: int
    renewed_ms: int  # for messages popped without an explicit time
    max_given_bytes: int = 64 << 20  # in flight from the log to consumers


class QueueBounds(Protocol):
    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...


class DeadLetterMover(Protocol):
    def move(self, key: QueueKey, offset: int, popped: PoppedMessage, record: bytes) -> asyncio.Future[bool]:
        """Move a message to `%DLQ%group` atomically.

        The result is False if the message is no longer pending under this pop. The move continues if the
        caller is canceled.
        """


@dataclass(frozen=True, slots=True)
class Receive:
    """One receive call."""

    who: GroupTopic
    group: GroupConfig  # consume_orderly also if only this call receives in order
    queues: int
    first_offsets: Callable[[int], int]  # start of a queue that is new to the group
    client_id: str
    wanted: Filter
    max_messages: int
    max_bytes: int
    invisible_ms: int
    attempt_id: str
    address: str = ""  # client address, "" if unknown
    only_fitting: bool = False  # never exceed max_bytes

    def key(self, queue_id: int) -> QueueKey:
        return QueueKey(self.who.group, self.who.topic, queue_id)


_UNTOUCHED = ReceiveQueue()
#: Queues examined per event-loop step: 2.5 ms.
_QUEUES_PER_STEP = 256


#: Memory that each receive may use regardless of others.
SMALL_BYTES = 64 << 10


class _PopUnderWay(NamedTuple):
    """One Pop of a request. `place`: the index of the Pop among the elements of the request."""

    queue: ReceiveQueue
    chain: int
    place: int


class _DoesNotFit(Exception):
    """There are messages, but the first one is too large."""


class Receiver:
    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        reader: QueueReader,
        files: QueueBounds,
        receive_queues: ReceiveQueues,
        dead_letters: DeadLetterMover,
        *,
        now_ms: Callable[[], int],
        steps_ms: Callable[[], int],
        run: Callable[[Callable[[], Any], str], Awaitable[Any]],
        read: Callable[[Callable[[], Any], str], Awaitable[Any]],
        run_filter: Callable[[Callable[[], Any], str], Awaitable[Any]],
        limits: ReceiveLimits,
    ) -> None:
        """`run` executes blocking work on behalf of an address, `read` small reads, and `run_filter` filters.
        `now_ms` returns cluster time without its steps, and `steps_ms` the total of the steps.
        """
        # number of times that the pending limits kept a receive from new messages of a queue
        self.refused_fresh = 0
        self._state = state
        self._committer = committer
        self._reader = reader
        self._files = files
        self._receive_queues = receive_queues
        self._dead_letters = dead_letters
        self._now_ms = now_ms
        self._steps_ms = steps_ms
        self._run, self._read, self._run_filter = run, read, run_filter
        self._limits = limits
        self.room = FairQueue(limits.max_given_bytes)

    async def receive(self, call: Receive, deadline: float, check: Callable[[], object]) -> ReceivedBatch:
        """Receive messages. Returns an empty result at `deadline` (loop time).

        `check` raises an error when waiting has become pointless, for example after a change of master or the
        deletion of the topic or group.
        """
        loop = asyncio.get_running_loop()
        if call.attempt_id and self._popped_in_attempt(call):
            again = await self._in_room(call, deadline, self._repeat)
            if again:
                return again
        while True:
            # Register as waiting first, so that no arrival is missed in between.
            woken = self._receive_queues.enter(call.who)
            found = ReceivedBatch()
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
                    # Wake another receive, because possibly only this one was notified of the arrival or
                    # expiry.
                    self._receive_queues.wake_one(call.who)

    async def _in_room(
        self,
        call: Receive,
        deadline: float,
        give: Callable[[Receive], Awaitable[list[Delivery]]],
        woken: asyncio.Future[None] | None = None,
    ) -> ReceivedBatch:
        """Reserve memory and return the result of `give`.

        Returns an empty result if no memory becomes free before the deadline, or before `woken` is done.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline) as limit:

                def give_up(_: object) -> None:
                    with suppress(RuntimeError):  # it has already ended
                        limit.reschedule(loop.time())

                if woken is not None:
                    woken.add_done_callback(give_up)
                await self.room.acquire(call.address, call.max_bytes)
        except TimeoutError:
            return ReceivedBatch()
        finally:
            if woken is not None:
                woken.remove_done_callback(give_up)
        return await self._given_room(call, give)

    async def _given_room(
        self, call: Receive, give: Callable[[Receive], Awaitable[list[Delivery]]]
    ) -> ReceivedBatch:
        size = 0
        try:
            given = await give(call)
            size = sum(len(one.record) for one in given)
            return ReceivedBatch(given, partial(self.room.release, call.address, size) if size else None)
        finally:
            self.room.release(call.address, call.max_bytes - size)

    async def _small_or_in_room(
        self,
        call: Receive,
        deadline: float,
        give: Callable[[Receive], Awaitable[list[Delivery]]],
        woken: asyncio.Future[None],
    ) -> ReceivedBatch:
        """Like `_in_room`, but small results need no reservation.

        A client that does not read its response holds memory indefinitely, because gRPC cannot revoke the
        response. Only large messages wait for such memory.
        """
        if self.room.try_acquire(call.address, call.max_bytes):
            return await self._given_room(call, give)
        small = replace(call, max_bytes=min(call.max_bytes, SMALL_BYTES), only_fitting=True)
        try:
            return ReceivedBatch(await give(small))
        except _DoesNotFit:
            return await self._in_room(call, deadline, give, woken)

    async def record(self, key: QueueKey, offset: int) -> bytes:
        """Return the message at an offset. Raises ReadFailed (MESSAGE_NOT_FOUND)."""
        read = partial(
            self._reader.read,
            key.topic,
            key.queue_id,
            offset,
            max_messages=1,
            max_bytes=1,
            tags=frozenset(),
        )
        result: GetMessageResult = await self._read(read, "")
        if not result.records:
            raise ReadFailed(
                Status.MESSAGE_NOT_FOUND,
                f"queue {key.topic}-{key.queue_id} has no message at offset {offset}",
            )
        return result.records[0]

    # -- choosing -----------------------------------------------------------------------------------------

    async def _try(self, call: Receive, deadline: float, check: Callable[[], object]) -> list[Delivery]:
        """Return the messages that can be delivered now.

        Raises _DoesNotFit if messages are available but none fits.
        """
        loop = asyncio.get_running_loop()
        while True:
            is_stuck = False
            plans: list[QueueReadPlan] = []
            try:
                await self._plan(call, plans, check)
                if not plans:
                    return []
                work = partial(
                    read_plans,
                    self._reader,
                    plans,
                    call.wanted,
                    call.max_messages,
                    call.max_bytes,
                    only_fitting=call.only_fitting,
                )
                found: list[QueueReadResult] = await self._run_of(call)(work, call.address)
                await wake_queue().turn(call.who.topic)
                request = self._propose(call, found)
                is_nothing = request is None and not any(self._worn_out(call, one) for one in found)
                if is_nothing and any(one.does_not_fit for one in found):
                    is_stuck = True
                    raise _DoesNotFit
            finally:
                for plan in plans:
                    self._receive_queues.queue(plan.key).is_read = False
                # if no message fits, the woken receive would only wake this one again
                if plans and not is_stuck:
                    self._receive_queues.wake_one(call.who)  # for the remaining messages
            if is_nothing:
                return []
            moves = self._bury(call, found)
            if request is not None and (given := await self._given(call, found, request)):
                return given
            await asyncio.shield(moves)
            if loop.time() >= deadline:
                return []

    def _run_of(self, call: Receive) -> Callable[[Callable[[], Any], str], Awaitable[Any]]:
        """Return the function that runs the read of a receive."""
        if call.wanted.matches is not None:
            return self._run_filter
        return self._read if call.max_messages <= MAX_SMALL_READ else self._run

    async def _plan(self, call: Receive, plans: list[QueueReadPlan], check: Callable[[], object]) -> None:
        """Reserve queues until they are likely to contain enough messages.

        A topic may have a thousand queues, so each event-loop step examines only some of them.
        """
        left, turn = call.max_messages, self._receive_queues.turn(call.who)
        for first in range(turn, turn + call.queues, _QUEUES_PER_STEP):
            await wake_queue().turn(call.who.topic)
            check()
            some = range(first, min(first + _QUEUES_PER_STEP, turn + call.queues))
            left = self._plan_some(call, [call.key(i % call.queues) for i in some], plans, left)
            if left <= 0:
                return

    def _plan_some(
        self, call: Receive, keys: Sequence[QueueKey], plans: list[QueueReadPlan], left: int
    ) -> int:
        """Plan some queues. Return the number of messages that are still needed."""
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

    def plan_queue(
        self, call: Receive, key: QueueKey, end: int, left: int, now_ms: int
    ) -> QueueReadPlan | None:
        """Plan the read of one queue, up to `end`. Return None if the queue has no message to deliver.

        The caller must hold the state's lock.
        """
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
        return QueueReadPlan(key, again, begin, fresh) if again or fresh > 0 else None

    def _room(self, group: str) -> int:
        """Return how many more messages the group may have pending."""
        pending = self._state.pending_of(group)
        free = self._limits.max_pending - self._state.pending_count
        return max((free - pending) // 2, _MIN_PER_GROUP - pending)

    def _worn_out(self, call: Receive, found: QueueReadResult) -> list[tuple[int, PoppedMessage]]:
        """Return the messages that have reached the maximum number of attempts."""
        most = call.group.retry_max_times
        return [] if most < 0 else [one for one in found.again if one[1].attempts > most]

    # -- proposing ----------------------------------------------------------------------------------------

    def _propose(self, call: Receive, found: Sequence[QueueReadResult]) -> PutRequest | None:
        """Propose the pops. Must be called in the event-loop step in which the reads ended."""
        elements: list[Element] = []
        popped: list[_PopUnderWay] = []
        for one in found:
            dead = {offset for offset, _ in self._worn_out(call, one)}
            if call.group.consume_orderly and dead:  # later messages wait until the dead letter has moved
                one.again = [(at, popped) for at, popped in one.again if at < min(dead) or at in dead]
            again = tuple((offset, popped.pop) for offset, popped in one.again if offset not in dead)
            receives = self._receive_queues.queue(one.plan.key)
            # These include messages that become dead letters. They are released after the move.
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
            for one in popped:  # a later leadership has other queue objects
                one.queue.end_pop(one.chain, is_taken=_is_taken(request, one.place))
            self._release(call.who, found, dead_of)

        request = PutRequest(elements=elements, release=release)
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

    def _pop(self, call: Receive, one: QueueReadResult, again: tuple[tuple[int, int], ...]) -> Pop:
        return Pop(
            one.plan.key,
            call.client_id,
            call.attempt_id,
            call.invisible_ms or self._limits.renewed_ms,
            False,  # renewal starts when the message has reached the client
            call.group.consume_orderly,
            False,
            one.plan.begin,
            one.end,
            tuple(one.fresh),
            again,
            first_from_state=True,
        )

    def _dead_of(self, call: Receive, found: Sequence[QueueReadResult]) -> dict[QueueKey, set[int]]:
        return {one.plan.key: {offset for offset, _ in self._worn_out(call, one)} for one in found}

    def _release(
        self,
        who: GroupTopic,
        found: Sequence[QueueReadResult],
        dead: dict[QueueKey, set[int]],
    ) -> None:
        for one in found:
            kept = dead[one.plan.key]
            receives = self._receive_queues.queue(one.plan.key)
            receives.reserved -= {offset for offset, _ in (*one.again, *one.unwanted) if offset not in kept}
        self._receive_queues.wake_one(who)

    def _bury(self, call: Receive, found: Sequence[QueueReadResult]) -> asyncio.Future[list[bool]]:
        """Start moving dead letters.

        The move continues if the client disconnects; otherwise offsets would remain reserved. The move raises
        no errors: if it fails for a message, it is tried again later.
        """
        moves = [
            self._bury_one(call.who, one.plan.key, at, popped, one.records[at])
            for one in found
            for at, popped in self._worn_out(call, one)
        ]
        return asyncio.gather(*moves)

    async def _bury_one(
        self, who: GroupTopic, key: QueueKey, offset: int, popped: PoppedMessage, record: bytes
    ) -> bool:
        reserved, pause_s = self._receive_queues.queue(key).reserved, 0.0

        def end_move() -> None:
            reserved.discard(offset)
            self._receive_queues.wake_one(who)

        try:
            return await self._dead_letters.move(key, offset, popped, record)
        except Exception as error:
            pause_s = _MOVE_RETRY_S
            mistake = None if isinstance(error, BrokerError) else error
            _log.warning("a dead letter could not be moved", reason=str(error), exc_info=mistake)
            return False
        finally:
            if pause_s:
                asyncio.get_running_loop().call_later(pause_s, end_move)
            else:
                end_move()

    # -- delivering ---------------------------------------------------------------------------------------

    async def _given(
        self, call: Receive, found: Sequence[QueueReadResult], request: PutRequest
    ) -> list[Delivery]:
        try:
            done = await asyncio.shield(request.done)
            await wake_queue().turn(call.who.topic)  # all requests of an append end at the same time
        except asyncio.CancelledError:
            request.done.add_done_callback(partial(self._return_undelivered, request.elements))
            raise
        records = {one.plan.key: one.records for one in found}
        given, steps_ms = [], self._steps_ms()
        for element, outcome in zip(request.elements, done.outcomes, strict=True):
            if isinstance(element, Pop) and isinstance(outcome, PopOutcome):
                for at, attempt in outcome.given:
                    record, invisible_until_ms = (
                        records[element.key][at],
                        outcome.invisible_until_ms + steps_ms,
                    )
                    given.append(
                        _delivery(call, element, record, at, attempt, outcome.pop, invisible_until_ms)
                    )
        return given

    def _return_undelivered(self, elements: Sequence[Element], done: asyncio.Future[RequestOutcome]) -> None:
        """Return the messages of a canceled receive, which did not reach any client."""
        if done.cancelled() or done.exception() is not None:
            return
        back = [
            not_passed_on(element.key, offset, outcome.pop, is_repeated=element.repeats)
            for element, outcome in zip(elements, done.result().outcomes, strict=True)
            if isinstance(element, Pop) and isinstance(outcome, PopOutcome)
            for offset, _ in outcome.given
        ]
        if back:
            self.give_back(GroupTopic(back[0].key.group, back[0].key.topic), back)

    def give_back(self, who: GroupTopic, back: Sequence[ChangeVisibility]) -> None:
        """Make undelivered messages visible again as soon as the changes are committed."""
        request = PutRequest(elements=back, release=partial(self._receive_queues.wake_one, who))
        try:
            self._committer.submit(request)
        except BrokerError:
            return  # without renewal, the messages become visible after their time

    def _popped_in_attempt(self, call: Receive) -> list[tuple[QueueKey, int, PoppedMessage]]:
        with self._state.lock:
            return self._state.popped_in_attempt(*call.who, call.attempt_id)

    async def _repeat(self, call: Receive) -> list[Delivery]:
        """Deliver again the messages that an earlier call with the same attempt id received, and that are
        still pending.
        """
        popped = self._popped_in_attempt(call)
        by_queue: dict[QueueKey, list[tuple[int, PoppedMessage]]] = {}
        for key, offset, was in popped:
            by_queue.setdefault(key, []).append((offset, was))
        plans = [QueueReadPlan(key, again, 0, 0) for key, again in by_queue.items()]
        if not plans:
            return []
        work = partial(read_plans, self._reader, plans, Filter(), len(popped), call.max_bytes)
        found: list[QueueReadResult] = await self._run(work, call.address)
        elements: list[Element] = []
        for one in found:
            again = tuple((offset, was.pop) for offset, was in one.again)
            elements.append(self._pop(call, one, again)._replace(repeats=True, begin=0, end=0))
        request = PutRequest(elements=elements)
        self._committer.submit(request)
        return await self._given(call, found, request)

    # -- waiting ------------------------------------------------------------------------------------------

    async def wait(self, call: Receive, woken: asyncio.Future[None], deadline: float) -> None:
        """Wait for `woken`, the deadline, or the expiry of a popped message."""
        loop = asyncio.get_running_loop()
        expiry_ms = await self._next_expiry(call)
        least = loop.time() + _MIN_WAIT_S
        timer: asyncio.TimerHandle

        def arm() -> None:
            nonlocal timer
            at, now = deadline, loop.time()
            if expiry_ms is not None:
                at = min(at, max(least, now + (expiry_ms - self._now_ms()) / 1000))
            if expiry_ms is not None and at > now + _MAX_WAIT_S:
                timer = loop.call_at(now + _MAX_WAIT_S, arm)
            else:
                timer = loop.call_at(at, self._receive_queues.wake, call.who, woken)

        arm()
        try:
            await woken
        finally:
            timer.cancel()

    async def _next_expiry(self, call: Receive) -> int | None:
        """Return the earliest time at which a popped message may be redelivered."""
        times: list[int] = []
        for first in range(0, call.queues, _QUEUES_PER_STEP):
            if first:
                await wake_queue().turn(call.who.topic)
            with self._state.lock:
                for queue_id in range(first, min(first + _QUEUES_PER_STEP, call.queues)):
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
            return None  # the receive that uses the queue wakes the next receive
        return queue.next_expiry()


def _is_taken(request: PutRequest, place: int) -> bool:
    """Return True if the Pop at this index obtained its new messages."""
    pop = request.elements[place]
    if isinstance(pop, Pop) and pop.begin == pop.end:
        return True  # it requested none, so its successors in the chain are not affected
    outcome = None if request.applied is None else request.applied.outcomes[place]
    return isinstance(outcome, PopOutcome) and outcome.is_fresh_given


def not_passed_on(key: QueueKey, offset: int, pop: int, *, is_repeated: bool) -> ChangeVisibility:
    """Return the change that makes an undelivered message visible again.

    The first response of a repeated call may have reached its client, so its message still counts as an
    attempt.
    """
    return ChangeVisibility(key, offset, pop, 0, ChangeKind.RELEASE if is_repeated else ChangeKind.RETURN)


def _delivery(
    call: Receive, pop: Pop, record: bytes, offset: int, attempt: int, number: int, invisible_until_ms: int
) -> Delivery:
    key = pop.key
    handle = receipt_handle(key.topic, key.queue_id, offset, number)
    return Delivery(
        record,
        key.queue_id,
        offset,
        attempt,
        handle,
        invisible_until_ms,
        is_renewed=not call.invisible_ms,
        is_repeated=pop.repeats,
    )
