"""LogService.Append and AppendStream. Requests are validated and passed to the node; responses are sent in
order of completion.

The stream is the hot path: one loop reads, one task writes, and each append in progress is a slotted object,
not a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import grpc.aio

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest, Overloaded
from dledger.infra.loops.turns import LARGE_BYTES, large_turns
from dledger.infra.quotas import Quota, client_of, peer_host
from dledger.infra.transport.field_count import has_too_many_fields
from dledger.infra.transport.first_messages import FirstMessages
from dledger.infra.transport.handlers import malformed, parser
from dledger.infra.transport.outbox import Outbox
from dledger.rpc.convert_log import AppendResult, append_response
from dledger.rpc.ports import AppendToken, LogPort, ServiceLimits
from dledger.rpc.request_wire import request_head
from dledger.v1 import log_pb2 as pb

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_parse = parser(pb.AppendRequest, max_fields=None, max_bytes=None)

#: Maximum number of fields besides the bodies: group, number, session with its fields, timeout, and fields
#: that newer clients add.
_OTHER_FIELDS = 16


def append_request_of(data: bytes, max_entries: int) -> pb.AppendRequest | None:
    """Parse a request, or return None if it is invalid. If a request has too many bodies, they are not parsed
    but replaced with empty bodies, one more than the limit, so that it is refused with the proper code: two
    million empty bodies would take 0.3 s to parse."""
    if not has_too_many_fields(pb.AppendRequest, data, max_entries + _OTHER_FIELDS):
        return _parse(data)
    request = _parse(request_head(data) or b"")
    if request is not None:
        request.bodies.extend([b""] * (max_entries + 1))
    return request


def small_append_of(data: bytes) -> pb.AppendRequest | bytes | None:
    """Deserialize a request. A large request is returned as bytes, to be parsed in a later turn of the event
    loop."""
    return data if len(data) >= LARGE_BYTES else _parse(data)


async def _read(received: Any, max_entries: int, context: _Context) -> Any:
    """Return the request of `small_append_of`, or the end of a stream. Addresses take turns with
    large requests."""
    if not isinstance(received, bytes):
        return received
    await large_turns().turn(client_of(peer_host(context.peer())))
    return append_request_of(received, max_entries)


class AppendService:
    """The append part of LogService."""

    def __init__(self, port: LogPort, first_messages: FirstMessages | None = None) -> None:
        self._port = port
        self._streams: set[_AppendStream] = set()
        self._stream_quota = Quota(
            port.limits.max_append_streams,
            "append streams are open",
            "close some, or raise limits.max_append_streams",
        )
        self._pending_quota = Quota(
            port.limits.max_pending_bytes, "bytes are waiting for a commit", "try again later"
        )
        self._calls: set[_UnaryAppend] = set()
        self._first_messages = first_messages or FirstMessages()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def stop(self) -> None:
        """Complete all pending appends with Indeterminate, because the node is stopping."""
        error = Indeterminate("the node is stopping", code=Code.INTERNAL_ERROR)
        for call in list(self._calls):
            call.answer(error)
        for stream in list(self._streams):
            stream.stop(error)

    async def append(self, received: pb.AppendRequest | bytes | None, context: _Context) -> pb.AppendResponse:
        request = await _read(received, self._port.limits.max_batch_entries, context)
        if request is None:
            return append_response(0, malformed())
        call = _UnaryAppend(self._port)
        self._calls.add(call)
        try:
            self._submit(call, request, client_of(peer_host(context.peer())))
            outcome = await call.future
        finally:
            self._calls.discard(call)
        return append_response(request.request_id, outcome)

    async def append_stream(self, _: object, context: _Context) -> None:
        client = client_of(peer_host(context.peer()))
        if (refusal := self._stream_quota.refusal(client)) is not None:
            self._port.limit_hit("max_append_streams")
            await self._refuse_stream(context, Overloaded(refusal, code=Code.TOO_MANY_CONNECTIONS))
            return
        with self._stream_quota.holding(client):
            stream = _AppendStream(self._port, partial(self._submit, client=client))
            self._streams.add(stream)
            writer = asyncio.ensure_future(stream.outbox.run(context.write))
            try:
                await stream.read_all(context)
                await writer
            finally:
                self._streams.discard(stream)
                stream.closed = True
                writer.cancel()

    def _submit(self, token: AppendToken, request: pb.AppendRequest, client: str) -> None:
        """Validate a request and pass it to the node. A request that is invalid or exceeds the share of its
        address is refused immediately.
        """
        bodies, port, limits = list(request.bodies), self._port, self._port.limits
        if (error := check_append(request, bodies, port.group, limits)) is not None:
            token.answer(error)
            return
        # Small ones also count for `max_pending_appends`.
        size = max(_size_of(bodies), limits.max_pending_bytes // limits.max_pending_appends)
        if (refusal := self._pending_quota.refusal(client, size)) is not None:
            port.limit_hit("max_pending_bytes")
            token.answer(Overloaded(refusal, code=Code.LEADER_PENDING_FULL))
            return
        self._pending_quota.acquire(client, size)
        session = None
        if request.HasField("session"):
            session = (request.session.session_id, request.session.seq)
        timeout_ms = min(request.timeout_ms or limits.append_timeout_ms, limits.max_append_timeout_ms)
        pending = _PendingAppend(token, self._pending_quota, client, size)
        port.append(pending, bodies, session, request.open_session, timeout_ms)

    async def _refuse_stream(self, context: _Context, error: Overloaded) -> None:
        """Respond to the first request, so that the client receives the error code, and end the stream. If no
        request arrives in time, the response has no request number."""
        request_id = 0
        with suppress(Overloaded):
            received = await self._first_messages.read(context)
            request = await _read(received, self._port.limits.max_batch_entries, context)
            request_id = request.request_id if isinstance(request, pb.AppendRequest) else 0
        await context.write(append_response(request_id, error))


def check_append(
    request: pb.AppendRequest, bodies: list[bytes], group: str, limits: ServiceLimits
) -> InvalidRequest | None:
    """Return why the request is not a valid append, or None."""
    if request.group != group:
        return InvalidRequest(f"group {request.group!r}; this node serves {group!r}", code=Code.UNKNOWN_GROUP)
    if request.open_session:
        if bodies or request.HasField("session"):
            return InvalidRequest("open_session excludes bodies and a session")
        return None
    if not bodies:
        return InvalidRequest("an append needs at least one body", code=Code.REQUEST_WITH_EMPTY_BODYS)
    if len(bodies) > limits.max_batch_entries:
        return InvalidRequest(
            f"{len(bodies)} bodies; a batch holds at most {limits.max_batch_entries}",
            code=Code.BATCH_TOO_LARGE,
        )
    largest = max(map(len, bodies))
    if largest > limits.max_body_bytes:
        return InvalidRequest(
            f"a body of {largest} bytes; at most {limits.max_body_bytes}", code=Code.BODY_TOO_LARGE
        )
    size = _size_of(bodies)
    if size > limits.max_batch_bytes:
        return InvalidRequest(
            f"a batch of {size} bytes with headers; at most {limits.max_batch_bytes}",
            code=Code.BATCH_TOO_LARGE,
        )
    if request.HasField("session") and (request.session.session_id < 0 or request.session.seq < 1):
        return InvalidRequest(
            f"session ({request.session.session_id}, {request.session.seq}): ids start at 0, seq at 1"
        )
    return None


def _size_of(bodies: list[bytes]) -> int:
    return sum(map(len, bodies)) + ENTRY_HEADER_SIZE * len(bodies)


class _PendingAppend:
    """An append that the node has accepted. Its bytes count as pending until it is answered."""

    __slots__ = ("_client", "_quota", "_size", "_token")

    def __init__(self, token: AppendToken, quota: Quota, client: str, size: int) -> None:
        self._token, self._quota, self._client, self._size = token, quota, client, size

    def answer(self, outcome: AppendResult | DLedgerError) -> None:
        self._quota.release(self._client, self._size)
        self._token.answer(outcome)


class _UnaryAppend:
    """One unary append."""

    __slots__ = ("_port", "_started", "future")

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._started = perf_counter()
        self.future: asyncio.Future[AppendResult | DLedgerError] = asyncio.get_running_loop().create_future()

    def answer(self, outcome: AppendResult | DLedgerError) -> None:
        if self.future.done():  # the caller is gone, or the node is stopping
            return
        if not isinstance(outcome, DLedgerError):
            self._port.observe_append(perf_counter() - self._started)
        self.future.set_result(outcome)


class _StreamedAppend:
    """One append of a stream."""

    __slots__ = ("request_id", "started", "stream")

    def __init__(self, stream: _AppendStream, request_id: int) -> None:
        self.stream = stream
        self.request_id = request_id
        self.started = perf_counter()

    def answer(self, outcome: AppendResult | DLedgerError) -> None:
        self.stream.answered(self, outcome)


class _AppendStream:
    """One client's stream of appends."""

    def __init__(self, port: LogPort, submit: Callable[[AppendToken, pb.AppendRequest], None]) -> None:
        self._port = port
        self._submit = submit
        self._unanswered: set[_StreamedAppend] = set()
        self._ended = False  # the client has finished sending
        self.outbox: Outbox[pb.AppendResponse] = Outbox()
        self.closed = False

    async def read_all(self, context: _Context) -> None:
        """Read until the client ends the stream or the node stops; then let the writer finish."""
        limits, unanswered = self._port.limits, self._unanswered
        limit = limits.max_unanswered_per_stream
        while not self._ended:
            request = None  # otherwise an idle stream would keep its last request
            # The next request is read after the turn of this one, so that each stream has at most one waiting
            # request.
            request = await _read(await context.read(), limits.max_batch_entries, context)
            if request is grpc.aio.EOF:
                self._end()
                return
            if request is None:
                self.outbox.put(append_response(0, malformed()))
                self._end()
                return
            pending = _StreamedAppend(self, request.request_id)
            if self._ended or len(unanswered) + len(self.outbox) >= limit:
                self._refuse(pending, limit)
                # Unread responses accumulate: stop reading until the client receives them.
                if len(self.outbox) >= 2 * limit:
                    await self.outbox.drained()
                continue
            unanswered.add(pending)
            self._submit(pending, request)

    def answered(self, pending: _StreamedAppend, outcome: AppendResult | DLedgerError) -> None:
        if pending not in self._unanswered:  # already answered by `stop`
            return
        self._unanswered.discard(pending)
        if self.closed:
            return
        if not isinstance(outcome, DLedgerError):
            self._port.observe_append(perf_counter() - pending.started)
        self.outbox.put(append_response(pending.request_id, outcome))
        if self._ended and not self._unanswered:
            self.outbox.finish()

    def stop(self, error: DLedgerError) -> None:
        for pending in list(self._unanswered):
            self.answered(pending, error)
        self._end()

    def _end(self) -> None:
        self._ended = True
        if not self._unanswered:
            self.outbox.finish()

    def _refuse(self, pending: _StreamedAppend, limit: int) -> None:
        self._port.limit_hit("max_unanswered_per_stream")
        error = Overloaded(f"{limit} appends of this stream are unanswered")
        self.outbox.put(append_response(pending.request_id, error))
