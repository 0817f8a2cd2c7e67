"""LogService.Append and AppendStream: requests in, validated; answers out, in order of completion.

The stream is the hot path: one loop reads, one task writes, and an append in between is a slotted object,
not a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeAlias

import grpc.aio

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest, Overloaded
from dledger.rpc.convert_log import AppendResult, append_response
from dledger.rpc.ports import LogPort, ServiceLimits
from dledger.rpc.request_wire import request_head
from dledger.rpc.transport.call_limit import FirstMessages
from dledger.rpc.transport.field_count import has_too_many_fields
from dledger.rpc.transport.handlers import malformed, parser
from dledger.rpc.transport.outbox import Outbox
from dledger.shares import SharedPlaces, client_of, peer_host
from dledger.turns import LARGE_BYTES, large_turns
from dledger.v1 import log_pb2 as pb

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_parse = parser(pb.AppendRequest, most_fields=None, most_bytes=None)

#: Beside the bodies: group, number, session with its fields, time-out, and what newer clients add.
_OTHER_FIELDS = 16


def append_request_of(data: bytes, max_entries: int) -> pb.AppendRequest | None:
    """None for what is no request. One with too many bodies comes with just one too many, so that it is
    refused with its number: two million empty ones would take 0.3 s to parse."""
    if not has_too_many_fields(pb.AppendRequest, data, max_entries + _OTHER_FIELDS):
        return _parse(data)
    request = _parse(request_head(data) or b"")
    if request is not None:
        request.bodies.extend([b""] * (max_entries + 1))
    return request


def small_append_of(data: bytes) -> pb.AppendRequest | bytes | None:
    """As gRPC gives it to the service: what is large is read only when its turn of the event loop comes."""
    return data if len(data) >= LARGE_BYTES else _parse(data)


async def _read(given: Any, max_entries: int, caller: Hashable) -> Any:
    """What `small_append_of` gave, or the end of a stream; large requests take turns, one of each caller."""
    if not isinstance(given, bytes):
        return given
    await large_turns().turn(caller)
    return append_request_of(given, max_entries)


class AppendService:
    """The appending half of LogService."""

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._streams: set[_AppendStream] = set()
        self._places = SharedPlaces(
            port.limits.max_append_streams,
            "append streams are open",
            "close some, or raise limits.max_append_streams",
        )
        self._calls: set[_Call] = set()
        self._first_messages = FirstMessages(port.limit_hit)

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def stop(self) -> None:
        """Answer everything that waits: the node stops, and cannot say what becomes of it."""
        error = Indeterminate("the node is stopping", code=Code.INTERNAL_ERROR)
        for call in list(self._calls):
            call.answer(error)
        for stream in list(self._streams):
            stream.stop(error)

    async def append(self, given: pb.AppendRequest | bytes | None, context: _Context) -> pb.AppendResponse:
        request = await _read(given, self._port.limits.max_batch_entries, context.peer())
        if request is None:
            return append_response(0, malformed())
        call = _Call(self._port)
        self._calls.add(call)
        try:
            submit(self._port, call, request)
            outcome = await call.future
        finally:
            self._calls.discard(call)
        return append_response(request.request_id, outcome)

    async def append_stream(self, _: object, context: _Context) -> None:
        client = client_of(peer_host(context.peer()))
        if (refusal := self._places.refusal(client)) is not None:
            self._port.limit_hit("max_append_streams")
            await self._refuse_stream(context, Overloaded(refusal, code=Code.TOO_MANY_CONNECTIONS))
            return
        with self._places.taking(client):
            stream = _AppendStream(self._port)
            self._streams.add(stream)
            writer = asyncio.ensure_future(stream.outbox.run(context.write))
            try:
                await stream.read_all(context)
                await writer
            finally:
                self._streams.discard(stream)
                stream.closed = True
                writer.cancel()

    async def _refuse_stream(self, context: _Context, error: Overloaded) -> None:
        """The first request is answered, so that the client sees a number; the stream's end answers the rest.
        If none comes in time, the number comes without one."""
        request_id = 0
        with suppress(Overloaded):
            given = await self._first_messages.read(context)
            request = await _read(given, self._port.limits.max_batch_entries, self)
            request_id = request.request_id if isinstance(request, pb.AppendRequest) else 0
        await context.write(append_response(request_id, error))


def submit(port: LogPort, token: _Call | _Pending, request: pb.AppendRequest) -> None:
    """Check a request and hand it to the node; what is wrong with it is answered at once."""
    limits = port.limits
    bodies = list(request.bodies)
    error = check_append(request, bodies, port.group, limits)
    if error is not None:
        token.answer(error)
        return
    session = None
    if request.HasField("session"):
        session = (request.session.session_id, request.session.seq)
    timeout_ms = min(request.timeout_ms or limits.append_timeout_ms, limits.max_append_timeout_ms)
    port.append(token, bodies, session, request.open_session, timeout_ms)


def check_append(
    request: pb.AppendRequest, bodies: list[bytes], group: str, limits: ServiceLimits
) -> InvalidRequest | None:
    """Why this can be no append here, or None."""
    if request.group != group:
        return InvalidRequest(f"group {request.group!r}; this node serves {group!r}", code=Code.UNKNOWN_GROUP)
    if request.open_session:
        if bodies or request.HasField("session"):
            return InvalidRequest("open_session goes without bodies and without a session")
        return None
    if not bodies:
        return InvalidRequest("an append without bodies", code=Code.REQUEST_WITH_EMPTY_BODYS)
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
    size = sum(map(len, bodies)) + ENTRY_HEADER_SIZE * len(bodies)
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


class _Call:
    """One unary append."""

    __slots__ = ("_port", "_started", "future")

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._started = perf_counter()
        self.future: asyncio.Future[AppendResult | DLedgerError] = asyncio.get_running_loop().create_future()

    def answer(self, outcome: AppendResult | DLedgerError) -> None:
        if self.future.done():  # the caller went away, or the node stops
            return
        if not isinstance(outcome, DLedgerError):
            self._port.observe_append(perf_counter() - self._started)
        self.future.set_result(outcome)


class _Pending:
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

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._unanswered: set[_Pending] = set()
        self._ended = False  # the client sends no more
        self.outbox: Outbox[pb.AppendResponse] = Outbox()
        self.closed = False

    async def read_all(self, context: _Context) -> None:
        """Read until the client ends the stream or the node stops; then let the writer finish."""
        port, limits, unanswered = self._port, self._port.limits, self._unanswered
        most = limits.max_unanswered_per_stream
        while not self._ended:
            request = None  # or a stream that is idle kept its last one
            # The next one is read when this one has had its turn: a stream has one that waits.
            request = await _read(await context.read(), limits.max_batch_entries, self)
            if request is grpc.aio.EOF:
                self._end()
                return
            if request is None:
                self.outbox.put(append_response(0, malformed()))
                self._end()
                return
            pending = _Pending(self, request.request_id)
            if self._ended or len(unanswered) + len(self.outbox) >= most:
                self._refuse(pending, most)
                # Answers the client does not fetch pile up here: nothing more is read until it does.
                if len(self.outbox) >= 2 * most:
                    await self.outbox.drained()
                continue
            unanswered.add(pending)
            submit(port, pending, request)

    def answered(self, pending: _Pending, outcome: AppendResult | DLedgerError) -> None:
        if pending not in self._unanswered:  # answered by `stop` before
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

    def _refuse(self, pending: _Pending, most: int) -> None:
        self._port.limit_hit("max_unanswered_per_stream")
        error = Overloaded(f"{most} appends of this stream are unanswered")
        self.outbox.put(append_response(pending.request_id, error))
