"""Group commit of delivery: what is asked for while a round is under way travels together in the next one.

A round is an append, and the application of its command on this broker. It goes when the loop has nothing
else to do, which is at once for a request that comes alone: there is no linger timer. Nor does the next one
go at the commit already. A round costs the three nodes as much as 15 calls do, and one that takes along the
calls which still lie in the loop is answered sooner for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from broker_adapter.commitlog.message_writer import LateCommand, MessageWriter, Placed, Together
from broker_adapter.commitlog.put_gathering import QueuedRecords
from broker_adapter.errors import BrokerError, Busy, PutIndeterminate, ReadFailed, Status
from broker_adapter.pop.commands import DELIVERY_TOPIC, Carried, Defer, Element, Outcome, Pop, SentId
from broker_adapter.pop.records import SENT_OVERHEAD, SENT_SIZE, encode, encode_sent

_log = structlog.get_logger(part="delivery")

ROUND_BYTES = 256 << 10
_ROUND_REQUESTS = 1024
#: A message of each request, and the command that they share.
ROUND_ENTRIES = 1 + _ROUND_REQUESTS
#: With fewer in one append no message can be stored under an id: it comes with the command that says so.
LEAST_ROUND_ENTRIES = 2
_ELEMENT_BYTES = 96
#: Nobody waits so long; a request ends by its own time-out, and by the end of the leadership.
_ROUND_TIMEOUT_MS = 600_000


class Done(NamedTuple):
    """What came of a request, once it is applied, or without elements once it is committed: the queue offset
    of the first message of each of its batches; the outcome of each of its elements; where else the messages
    are. `shortfall`: as in SendResult, of requests that keep a message."""

    offsets: Sequence[int]
    outcomes: list[Outcome]
    places: Sequence[Placed] = ()
    shortfall: Status | None = None


class Request:
    """Messages and elements that take effect together, or not at all.

    `digest` is that of the id of the first message. `done` is for who asked; `release` is called once, when
    it is certain what became of the request, or when this broker is no master any more. `applied` is what
    came of the elements, also if `done` has ended in doubt. `is_due` is asked when the request's append is
    made: by then its topic may have been deleted, and another one with its name may have come.
    """

    __slots__ = (
        "_release",
        "applied",
        "digest",
        "done",
        "elements",
        "is_due",
        "is_promised",
        "queued",
        "shortfall",
        "size",
        "stored",
    )

    def __init__(
        self,
        *,
        queued: Sequence[QueuedRecords] = (),
        elements: Sequence[Element] = (),
        digest: bytes = b"",
        release: Callable[[], None] = lambda: None,
        is_due: Callable[[], bool] | None = None,
    ) -> None:
        self.is_due = is_due
        self.queued = queued
        self.elements = elements
        self.digest = digest
        self.applied: Done | None = None
        self.stored: Sequence[Placed] | None = None
        self.shortfall: Status | None = None
        self.is_promised = False  # nothing is waited for any more but that it is applied
        self._release: Callable[[], None] | None = release
        self.done: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self.size = sum(sum(one.batch.sizes) for one in queued)
        for element in elements:
            self.size += _ELEMENT_BYTES
            if isinstance(element, Defer | Carried):
                defer = element if isinstance(element, Defer) else element.defer
                self.size += len(defer.body) + len(defer.properties)
            elif isinstance(element, Pop):
                self.size += 8 * len(element.fresh) + 16 * len(element.again)
                # Others have texts that many of one command share; every call has an attempt of its own.
                self.size += len(element.client_id.encode()) + len(element.attempt_id.encode())

    @property
    def places(self) -> list[tuple[str, int]]:
        """Topics and queues that it needs: of its messages, and of those that are to be deferred."""
        found = [(one.topic, one.queue_id) for one in self.queued]
        return found + [(one.topic, one.queue_id) for one in self.elements if isinstance(one, Defer)]

    @property
    def entries(self) -> int:
        """Of the append, but for the command that requests share."""
        return sum(len(one.batch.sizes) for one in self.queued) + self.is_deferral

    @property
    def keeps_message(self) -> bool:
        return bool(self.queued) or self.is_deferral

    @property
    def is_deferral(self) -> bool:
        """Then it has a command of its own, so that no command is larger than a message may be."""
        return bool(self.elements) and isinstance(self.elements[0], Defer | Carried)

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def settle_if_over(self) -> None:
        """It is applied, and if it has messages it is known where they are, and what is short of them."""
        if self.applied is not None and (self.is_promised or not self.keeps_message):
            places = self.stored or ()
            offsets = [one.queue_offset for one in places]
            self.settle(Done(offsets, self.applied.outcomes, places, self.shortfall))

    def settle(self, done: Done) -> None:
        if not self.done.done():
            self.done.set_result(done)

    def fail(self, error: BrokerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # marks it as seen, if nobody waits any more


class _Round:
    """Requests of one append, and which of its commands has the elements of each."""

    def __init__(self, requests: list[Request], new_request_id: Callable[[], bytes]) -> None:
        self.requests = requests
        self.queued = [one for request in requests for one in request.queued]
        self.by_id: dict[bytes, list[Request]] = {}
        self.commands: list[LateCommand] = []
        plain = [request for request in requests if not request.is_deferral]
        sent = [request for request in requests if request.queued and request.digest]
        elements = [element for request in plain for element in request.elements]
        if elements or sent:
            request_id = new_request_id()
            self.by_id[request_id] = plain
            self.commands.append(self._command(encode(elements, request_id), sent))
        for request in requests:
            if request.is_deferral:
                request_id = new_request_id()
                self.by_id[request_id] = [request]
                body = encode(request.elements, request_id)
                self.commands.append(LateCommand(len(body), lambda _, body=body: body))  # type: ignore[misc]

    def _command(self, body: bytes, sent: list[Request]) -> LateCommand:
        if not sent:
            return LateCommand(len(body), lambda _: body)
        places: list[tuple[Request, int]] = []
        at = 0
        for request in self.requests:
            if request.queued and request.digest:
                places.append((request, at))
            at += len(request.queued)

        def late(firsts: Sequence[int]) -> bytes:
            ids = [SentId(one.digest, one.queued[0].queue_id, firsts[place]) for one, place in places]
            return body + encode_sent(ids)

        return LateCommand(len(body) + SENT_OVERHEAD + SENT_SIZE * len(sent), late)


class Committer:
    """Everything but `on_outcomes` runs on the event loop."""

    def __init__(
        self,
        writer: MessageWriter,
        *,
        new_request_id: Callable[[], bytes],
        max_waiting_bytes: int,
        when_idle: Callable[[Callable[[], None]], None],
        max_round_bytes: int = ROUND_BYTES,
        max_round_entries: int = ROUND_ENTRIES,
    ) -> None:
        """`when_idle`: calls back, later, when the loop has nothing else to do. `new_request_id` gives 16
        bytes that are never given twice, on any node. `max_round_bytes`, `max_round_entries`: of one append,
        unless a single request has more."""
        self._writer = writer
        self._new_request_id = new_request_id
        self._max_waiting_bytes = max_waiting_bytes
        self._when_idle = when_idle
        self._max_round_bytes = max_round_bytes
        self._max_round_entries = max_round_entries
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        # By request id: committed or not, and not known to be applied here.
        self._under_way: dict[bytes, list[Request]] = {}
        self._round: asyncio.Task[None] | None = None
        self._is_asked = False
        self.rounds = 0

    def submit(self, request: Request) -> asyncio.Future[Done]:
        """Its `done`. NotMaster, Busy (TOO_MANY_PENDING_BYTES): it was not taken, and is not released."""
        self._writer.check_master()
        if self._waiting_bytes > self._max_waiting_bytes:
            text = f"{self._waiting_bytes} bytes wait to be appended; try again later"
            raise Busy(Status.TOO_MANY_PENDING_BYTES, text)
        self._waiting.append(request)
        self._waiting_bytes += request.size
        self._want_round()
        return request.done

    def on_outcomes(self, request_id: bytes, outcomes: list[Outcome]) -> None:
        """A command was applied: `DeliveryState` calls this, on its own thread, for those of all nodes."""
        if request_id in self._under_way and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._applied, request_id, outcomes)
            except RuntimeError:
                return  # the loop was closed: nobody is left to be told

    def abandon(self, error: BrokerError, doubt: BrokerError) -> None:
        """This broker is no master any more: `error` for what was not begun, `doubt` for the rest."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        under_way, self._under_way = self._under_way, {}
        for request in waiting:
            request.fail(error)
            request.release()
        for requests in under_way.values():
            for request in requests:
                request.fail(doubt)
                request.release()

    # -- inside -------------------------------------------------------------------------------------------

    def _want_round(self) -> None:
        if not self._may_begin():
            return
        if self._waiting_bytes >= self._max_round_bytes:
            self._begin()
        elif not self._is_asked:
            self._is_asked = True
            self._when_idle(self._idle)

    def _may_begin(self) -> bool:
        return bool(self._waiting) and self._round is None and not self._under_way

    def _idle(self) -> None:
        self._is_asked = False
        if self._may_begin():
            self._begin()

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        requests: list[Request] = []
        size, entries = 0, 1
        while self._waiting and len(requests) < _ROUND_REQUESTS:
            request = self._waiting[0]
            if requests and (
                size + request.size > self._max_round_bytes
                or entries + request.entries > self._max_round_entries
            ):
                break
            self._waiting.popleft()
            self._waiting_bytes -= request.size
            size += request.size
            entries += request.entries
            requests.append(request)
        if not requests:
            return
        self.rounds += 1
        self._round = self._loop.create_task(self._run(requests), name="delivery-append")
        self._round.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._round = None
        if not task.cancelled():
            task.result()  # a bug: the loop's handler reports it
        self._want_round()

    async def _run(self, requests: list[Request]) -> None:
        by_id: dict[bytes, list[Request]] = {}
        requests = [request for request in requests if self._is_possible(request)]
        if not requests:
            return
        # From here to the append nothing else runs on the loop, so what was found holds for it.
        try:
            one = _Round(requests, self._new_request_id)
            by_id = one.by_id
            # Known before the entries can be: they may be applied before the append returns.
            self._under_way.update(by_id)
            put = await self._writer.put_together(
                one.queued, DELIVERY_TOPIC, one.commands, timeout_ms=_ROUND_TIMEOUT_MS
            )
        except PutIndeterminate as error:
            # What it has to be applied for is released when it is, or when the leadership ends.
            for request in requests:
                if request.applied is not None:
                    request.settle(request.applied)
                request.fail(error)
                if not (request.elements or request.digest):
                    request.release()
        except Exception as error:
            if isinstance(error, BrokerError):
                reason = error
            else:  # a mistake: it costs this round, and not all that are to come
                _log.error("an append of delivery failed", exc_info=error)
                text = f"internal error: {type(error).__name__}"
                reason = PutIndeterminate(Status.OUTCOME_UNKNOWN, text)
            for request_id in by_id:
                self._under_way.pop(request_id, None)
            for request in requests:
                request.fail(reason)
                request.release()
        else:
            self._committed(requests, put)

    def _is_possible(self, request: Request) -> bool:
        """Whether it may still be appended; it has failed otherwise, and nothing is stored of it."""
        error: BrokerError | None = None
        if request.is_due is not None and not request.is_due():
            error = ReadFailed(Status.MESSAGE_NOT_FOUND, "it is gone: its topic was deleted")
        for topic, queue_id in request.places:
            error = error or self._writer.topics.refusal(topic, queue_id)
        if error is not None:
            request.fail(error)
            request.release()
        return error is None

    def _committed(self, requests: list[Request], put: Together) -> None:
        at = 0
        for request in requests:
            request.stored = put.places[at : at + len(request.queued)]
            at += len(request.queued)
        if put.shortfall is None:
            self._promised(requests, None)
        else:  # it may take long, and concerns nobody else: the next round goes
            put.shortfall.add_done_callback(partial(self._promised_or_not, requests))

    def _promised_or_not(self, requests: list[Request], shortfall: asyncio.Future[Status | None]) -> None:
        if shortfall.cancelled() or shortfall.exception() is not None:
            error = PutIndeterminate(Status.OUTCOME_UNKNOWN, "this broker stops, and no slave has answered")
            for request in requests:
                if request.keeps_message:
                    request.fail(error)
            self._promised(requests, None)
        else:
            self._promised(requests, shortfall.result())

    def _promised(self, requests: list[Request], shortfall: Status | None) -> None:
        """All that was promised of their append was done, but for `shortfall`."""
        for request in requests:
            request.shortfall, request.is_promised = shortfall, True
            if request.elements:
                request.settle_if_over()
            else:
                places = request.stored or ()
                request.settle(Done([place.queue_offset for place in places], [], places, shortfall))
                if not request.digest:
                    request.release()

    def _applied(self, request_id: bytes, outcomes: list[Outcome]) -> None:
        requests = self._under_way.pop(request_id, [])
        if len(outcomes) < sum(len(request.elements) for request in requests):
            self._not_applied(requests)
            requests = []
        at = 0
        for request in requests:
            count = len(request.elements)
            if count:
                request.applied = Done([], outcomes[at : at + count])
                request.settle_if_over()
                at += count
                request.release()
            elif request.digest:
                request.release()
        self._want_round()

    def _not_applied(self, requests: Sequence[Request]) -> None:
        """A command that was set aside: a mistake, which costs its round and not all that are to come."""
        _log.error("a command of delivery was committed and set aside", requests=len(requests))
        text = "internal error: the command was committed and set aside"
        for request in requests:
            if request.elements:
                request.fail(PutIndeterminate(Status.OUTCOME_UNKNOWN, text))
            if request.elements or request.digest:
                request.release()
