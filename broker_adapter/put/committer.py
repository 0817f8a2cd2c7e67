"""Batches sends and delivery commands into appends to the log.

All requests that arrive during a round share the next one. A round is one append plus the application of its
command on this broker. It starts when the event loop is idle, or immediately with at least ROUND_BYTES
waiting. There is no linger timer, so a single request is appended immediately if the loop is idle. Unless
ROUND_BYTES are waiting, the next round, too, waits for an idle loop instead of starting right after the
commit. A round costs the three nodes as much as 15 calls do, so including the calls that are still queued in
the loop serves all of them sooner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from broker_adapter.delivery_state.commands import (
    DELIVERY_TOPIC,
    Carry,
    Defer,
    Element,
    Outcome,
    Pop,
    StoredId,
    StoredIds,
)
from broker_adapter.delivery_state.duplicate_filter import DEFERRED, SendIdentity
from broker_adapter.delivery_state.records import (
    STORED_ID_SIZE,
    STORED_IDS_OVERHEAD,
    encode,
    encode_stored_ids,
)
from broker_adapter.errors import BrokerError, Busy, PutIndeterminate, ReadFailed, Status
from broker_adapter.put.message_writer import (
    AppendedBatch,
    LateCommand,
    MessageWriter,
    QueuedRecords,
    StoredAt,
)
from dledger.infra.quotas import Quota

_log = structlog.get_logger(part="delivery")

ROUND_BYTES = 256 << 10
_ROUND_REQUESTS = 1024
#: One message per request, plus the command that the requests share.
ROUND_ENTRIES = 1 + _ROUND_REQUESTS
#: Minimum number of entries per append: a message with an id needs a second entry that records the id.
LEAST_ROUND_ENTRIES = 2
_ELEMENT_BYTES = 96
#: Longer than the timeout of any request. A request ends at its own timeout or at the end of the term as
#: master.
_ROUND_TIMEOUT_MS = 600_000


class RequestOutcome(NamedTuple):
    """The outcome of a request. It is available once the request is applied or, if it has no elements,
    committed.

    `offsets`: the queue offset of the first message of each batch. `outcomes`: one per element. `places`: the
    positions of each batch, in the log and in its queue. `put_status`: the result of
    `AppendLog.put_status`; only for requests that store a message.
    """

    offsets: Sequence[int]
    outcomes: list[Outcome]
    places: Sequence[StoredAt] = ()
    put_status: Status | None = None


class PutRequest:
    """Messages and elements that take effect together or not at all.

    `identity` belongs to the send whose messages are the first batch. It is recorded under `id_queue_id`, or
    under the queue of the batch if that is None. The caller waits for `done`. `release` is called once, when
    the outcome of the request is certain or this broker is no longer master. `applied` contains the outcome
    of the elements, even if `done` failed with an indeterminate error. `is_due` is evaluated when the append
    is built, because after the request arrived, the topic may have been deleted and another one created under
    its name. `client`: the address whose share of waiting bytes the request uses, or "" for none.
    """

    __slots__ = (
        "_release",
        "applied",
        "client",
        "done",
        "elements",
        "has_put_status",
        "id_queue_id",
        "identity",
        "is_due",
        "put_status",
        "queued",
        "size",
        "stored",
    )

    def __init__(
        self,
        *,
        queued: Sequence[QueuedRecords] = (),
        elements: Sequence[Element] = (),
        identity: SendIdentity | None = None,
        id_queue_id: int | None = None,
        release: Callable[[], None] = lambda: None,
        is_due: Callable[[], bool] | None = None,
        client: str = "",
    ) -> None:
        self.client = client
        self.is_due = is_due
        self.queued = queued
        self.elements = elements
        self.identity = identity
        self.id_queue_id = id_queue_id
        self.applied: RequestOutcome | None = None
        self.stored: Sequence[StoredAt] | None = None
        self.put_status: Status | None = None
        self.has_put_status = False  # the put status is known
        self._release: Callable[[], None] | None = release
        self.done: asyncio.Future[RequestOutcome] = asyncio.get_running_loop().create_future()
        self.size = sum(sum(one.batch.sizes) for one in queued)
        for element in elements:
            self.size += _ELEMENT_BYTES
            if isinstance(element, Defer | Carry):
                defer = element if isinstance(element, Defer) else element.defer
                self.size += len(defer.body) + len(defer.properties)
            elif isinstance(element, Pop):
                self.size += 8 * len(element.fresh) + 16 * len(element.again)
                # The elements of a command share the texts of groups and topics, but each receive has its own
                # attempt id.
                self.size += len(element.client_id.encode()) + len(element.attempt_id.encode())

    @property
    def places(self) -> list[tuple[str, int]]:
        """Return the (topic, queue id) pairs of the request's messages, including deferred messages."""
        found = [(one.topic, one.queue_id) for one in self.queued]
        return found + [(one.topic, one.queue_id) for one in self.elements if isinstance(one, Defer)]

    @property
    def recorded_queue_id(self) -> int:
        """Return the queue under which the identity is recorded."""
        return self.queued[0].queue_id if self.id_queue_id is None else self.id_queue_id

    @property
    def entries(self) -> int:
        """Return the number of entries that the request adds to the append, not counting the shared
        command.
        """
        return sum(len(one.batch.sizes) for one in self.queued) + self.is_deferral

    @property
    def keeps_message(self) -> bool:
        return bool(self.queued) or self.is_deferral

    @property
    def is_deferral(self) -> bool:
        """Return True if the request is a deferral.

        A deferral has its own command, so that no command exceeds the size limit of a message.
        """
        return bool(self.elements) and isinstance(self.elements[0], Defer | Carry)

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def settle_if_over(self) -> None:
        """Complete `done` if the request is applied and, if it stores messages, its put status is known."""
        if self.applied is not None and (self.has_put_status or not self.keeps_message):
            places = self.stored or ()
            offsets = [one.queue_offset for one in places]
            self.settle(RequestOutcome(offsets, self.applied.outcomes, places, self.put_status))

    def settle(self, done: RequestOutcome) -> None:
        if not self.done.done():
            self.done.set_result(done)

    def fail(self, error: BrokerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # mark the exception as retrieved, in case the waiter was canceled


class _Round:
    """The requests of one append, and the elements of each request by command."""

    def __init__(self, requests: list[PutRequest], new_request_id: Callable[[], bytes]) -> None:
        self.requests = requests
        self.queued = [one for request in requests for one in request.queued]
        self.by_id: dict[bytes, list[PutRequest]] = {}
        self.commands: list[LateCommand] = []
        plain = [request for request in requests if not request.is_deferral]
        sent = [request for request in requests if request.queued and request.identity]
        elements = [element for request in plain for element in request.elements]
        if elements or sent:
            request_id = new_request_id()
            self.by_id[request_id] = plain
            self.commands.append(self._command(encode(elements, request_id), sent))
        for request in requests:
            if request.is_deferral:
                request_id = new_request_id()
                self.by_id[request_id] = [request]
                self.commands.append(_deferral(encode(request.elements, request_id), request.identity))

    def _command(self, body: bytes, sent: list[PutRequest]) -> LateCommand:
        """Build the shared command.

        Every command contains the total of the clock steps up to its stamp, even if it records no ids.
        """
        places: list[tuple[SendIdentity, int, int]] = []
        at = 0
        for request in self.requests:
            if request.queued and request.identity is not None:
                places.append((request.identity, request.recorded_queue_id, at))
            at += len(request.queued)

        def late(firsts: Sequence[int], steps_ms: int) -> bytes:
            ids = [StoredId(identity, queue_id, firsts[place]) for identity, queue_id, place in places]
            return body + encode_stored_ids(StoredIds(tuple(ids), steps_ms))

        return LateCommand(len(body) + STORED_IDS_OVERHEAD + STORED_ID_SIZE * len(sent), late)


def _deferral(body: bytes, identity: SendIdentity | None) -> LateCommand:
    """Build the command of one deferred message, the first element in `body`."""
    stored = () if identity is None else (StoredId(identity, DEFERRED, 0),)
    return LateCommand(
        len(body) + STORED_IDS_OVERHEAD + STORED_ID_SIZE * len(stored),
        lambda _, steps_ms: body + encode_stored_ids(StoredIds(stored, steps_ms)),
    )


class Committer:
    """Batches requests into rounds. All methods except `on_outcomes` run on the event loop."""

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
        """`when_idle` schedules a callback for the next time the loop is idle.

        `new_request_id` returns 16 bytes that are unique across all nodes. `max_round_bytes` and
        `max_round_entries` limit one append, unless a single request exceeds them.
        """
        self._writer = writer
        self._new_request_id = new_request_id
        self._room = Quota(max_waiting_bytes, "bytes wait to be appended", "try again later")
        self._when_idle = when_idle
        self._max_round_bytes = max_round_bytes
        self._max_round_entries = max_round_entries
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[PutRequest] = deque()
        # Requests that were sent to the log but are not known to be applied on this node yet, by request id.
        self._under_way: dict[bytes, list[PutRequest]] = {}
        self._round: asyncio.Task[None] | None = None
        self._is_round_scheduled = False
        self.rounds = 0

    def submit(self, request: PutRequest) -> asyncio.Future[RequestOutcome]:
        """Queue the request and return its `done`.

        Raises NotMaster or Busy (TOO_MANY_PENDING_BYTES) if the request is not accepted; in that case
        `release` is not called.
        """
        self._writer.check_master()
        if (refusal := self._room.refusal(request.client, request.size)) is not None:
            raise Busy(Status.TOO_MANY_PENDING_BYTES, refusal)
        self._room.acquire(request.client, request.size)
        self._waiting.append(request)
        self._request_round()
        return request.done

    def on_outcomes(self, request_id: bytes, outcomes: list[Outcome]) -> None:
        """Handle an applied command.

        `DeliveryState` calls this on its own thread, for the commands of all nodes.
        """
        if request_id in self._under_way and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._applied, request_id, outcomes)
            except RuntimeError:
                return  # the loop is closed: no waiter remains

    def abandon(self, error: BrokerError, doubt: BrokerError) -> None:
        """Fail all requests because this broker is no longer master.

        Requests that are not yet part of an append fail with `error`, the others with `doubt`.
        """
        waiting, self._waiting = self._waiting, deque()
        under_way, self._under_way = self._under_way, {}
        for request in waiting:
            self._room.release(request.client, request.size)
            request.fail(error)
            request.release()
        for requests in under_way.values():
            for request in requests:
                request.fail(doubt)
                request.release()

    # -- internal -----------------------------------------------------------------------------------------

    def _request_round(self) -> None:
        if not self._can_start_round():
            return
        if self._room.used >= self._max_round_bytes:
            self._start_round()
        elif not self._is_round_scheduled:
            self._is_round_scheduled = True
            self._when_idle(self._idle)

    def _can_start_round(self) -> bool:
        return bool(self._waiting) and self._round is None and not self._under_way

    def _idle(self) -> None:
        self._is_round_scheduled = False
        if self._can_start_round():
            self._start_round()

    def _start_round(self) -> None:
        self._loop = asyncio.get_running_loop()
        requests: list[PutRequest] = []
        size, entries = 0, 1
        while self._waiting and len(requests) < _ROUND_REQUESTS:
            request = self._waiting[0]
            if requests and (
                size + request.size > self._max_round_bytes
                or entries + request.entries > self._max_round_entries
            ):
                break
            self._waiting.popleft()
            self._room.release(request.client, request.size)
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
            task.result()  # an exception is a bug; the loop's handler logs it
        self._request_round()

    async def _run(self, requests: list[PutRequest]) -> None:
        by_id: dict[bytes, list[PutRequest]] = {}
        requests = [request for request in requests if self._is_possible(request)]
        if not requests:
            return
        # No other code runs on the loop from here to the append, so the checks above still hold in it.
        try:
            append_round = _Round(requests, self._new_request_id)
            by_id = append_round.by_id
            # Register the ids before the append: the entries may be applied before it returns.
            self._under_way.update(by_id)
            put = await self._writer.put_together(
                append_round.queued, DELIVERY_TOPIC, append_round.commands, timeout_ms=_ROUND_TIMEOUT_MS
            )
        except PutIndeterminate as error:
            # Requests that await application are released when applied, or when the leadership ends.
            for request in requests:
                if request.applied is not None:
                    request.settle(request.applied)
                request.fail(error)
                if not (request.elements or request.identity):
                    request.release()
        except Exception as error:
            if isinstance(error, BrokerError):
                reason = error
            else:  # a bug, which must not end later rounds
                _log.error("an append of delivery commands failed", exc_info=error)
                text = f"internal error: {type(error).__name__}"
                reason = PutIndeterminate(Status.OUTCOME_UNKNOWN, text)
            for request_id in by_id:
                self._under_way.pop(request_id, None)
            for request in requests:
                request.fail(reason)
                request.release()
        else:
            self._committed(requests, put)

    def _is_possible(self, request: PutRequest) -> bool:
        """Return True if the request may still be appended.

        Otherwise the request has failed and none of its messages are stored.
        """
        error: BrokerError | None = None
        if request.is_due is not None and not request.is_due():
            error = ReadFailed(
                Status.MESSAGE_NOT_FOUND, "the message no longer exists: its topic was deleted"
            )
        for topic, queue_id in request.places:
            error = error or self._writer.topics.refusal(topic, queue_id)
        if error is not None:
            request.fail(error)
            request.release()
        return error is None

    def _committed(self, requests: list[PutRequest], put: AppendedBatch) -> None:
        at = 0
        for request in requests:
            request.stored = put.places[at : at + len(request.queued)]
            at += len(request.queued)
        if put.put_status is None:
            self._set_put_status(requests, None)
        else:  # replication may take long; start the next round meanwhile
            put.put_status.add_done_callback(partial(self._on_put_status, requests))

    def _on_put_status(self, requests: list[PutRequest], put_status: asyncio.Future[Status | None]) -> None:
        if put_status.cancelled() or put_status.exception() is not None:
            error = PutIndeterminate(
                Status.OUTCOME_UNKNOWN, "this broker is stopping, and no slave has acknowledged the message"
            )
            for request in requests:
                if request.keeps_message:
                    request.fail(error)
            self._set_put_status(requests, None)
        else:
            self._set_put_status(requests, put_status.result())

    def _set_put_status(self, requests: list[PutRequest], put_status: Status | None) -> None:
        """Record the put status of an append in its requests.

        None means that the message is as durable as promised.
        """
        for request in requests:
            request.put_status, request.has_put_status = put_status, True
            if request.elements:
                request.settle_if_over()
            else:
                places = request.stored or ()
                request.settle(
                    RequestOutcome([place.queue_offset for place in places], [], places, put_status)
                )
                if request.identity is None:
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
                request.applied = RequestOutcome([], outcomes[at : at + count])
                request.settle_if_over()
                at += count
                request.release()
            elif request.identity is not None:
                request.release()
        self._request_round()

    def _not_applied(self, requests: Sequence[PutRequest]) -> None:
        """Fail the requests of a command that was set aside.

        Such a command is a bug. It fails its own round but no later one.
        """
        _log.error("a delivery command was committed and set aside", requests=len(requests))
        text = "internal error: the command was committed and set aside"
        for request in requests:
            if request.elements:
                request.fail(PutIndeterminate(Status.OUTCOME_UNKNOWN, text))
            if request.elements or request.identity:
                request.release()
