"""The end of a stream on the calling node: sends calls to the master, receives responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

import grpc.aio
from google.protobuf.message import DecodeError

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.forwarding.frames import (
    MAX_PART_BYTES,
    METHOD,
    AddTo,
    FrameQueue,
    client_to_pb,
    context_to_pb,
    error_from_pb,
)
from broker_adapter.endpoints.forwarding.members import Members
from broker_adapter.endpoints.lists.calls import ListedCall, ListResults
from broker_adapter.endpoints.v5.clients import ClientStreams
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, Busy, PutIndeterminate, PutRefused, Status, error_for
from broker_adapter.v1 import forward_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.logs import get_logger
from dledger.infra.loops.polling import when_idle
from dledger.infra.loops.turns import LARGE_BYTES, WakeQueue, wake_queue
from dledger.infra.quotas import Quota, client_of
from dledger.infra.transport.channels import open_channel

#: A batch of this size is sent immediately (bytes).
_MUCH: Final = 256 << 10
#: Maximum delay of a batch, because the outstanding response may be slow for other reasons (seconds).
_LONGEST_S: Final = 0.02


class Timer(Protocol):
    def cancel(self) -> None: ...


class CallBatcher:
    """Batches calls that append before they are sent to the master. As in the log, the next batch starts when
    the previous one completes.

    A frame costs both nodes a wake-up, and on a busy machine a frame with few calls leads to an append with
    few calls. While a frame is unanswered, later calls therefore wait for the next frame; at the master, they
    would wait for the next append anyway. A single call is sent when the loop is idle, which is immediately.

    `put` queues a part for the stream, given its size and a function that adds it to a frame. `later`
    schedules a callback after a number of seconds, and `when_idle` schedules one for the next time the loop
    is idle.
    """

    def __init__(
        self,
        put: Callable[[int, AddTo], None],
        *,
        later: Callable[[float, Callable[[], None]], Timer],
        when_idle: Callable[[Callable[[], None]], None],
    ) -> None:
        self._put = put
        self._later = later
        self._when_idle = when_idle
        self._waiting: list[tuple[int, int, AddTo]] = []
        self._bytes = 0
        self._is_scheduled = False
        self._first_under_way = 0  # id of the first call in the newest frame; 0: no frame is outstanding
        self._timer: Timer | None = None

    def add(self, call_id: int, size: int, add: AddTo) -> None:
        """Add a call. Call ids must increase."""
        self._waiting.append((call_id, size, add))
        self._bytes += size
        if self._bytes >= _MUCH:
            self._send_batch()
        elif not self._first_under_way and not self._is_scheduled:
            self._is_scheduled = True
            self._when_idle(self._idle)

    def answered(self, call_id: int) -> None:
        """Handle a response.

        The first response to any call of the newest frame shows that the frame's append is complete.
        """
        if self._first_under_way and call_id >= self._first_under_way:
            self._on_end()

    def stop(self) -> None:
        """Drop the calls that have not been sent."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _idle(self) -> None:
        self._is_scheduled = False
        if not self._first_under_way:
            self._send_batch()

    def _on_end(self) -> None:
        self._first_under_way = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send_batch()

    def _send_batch(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        self._first_under_way = waiting[0][0]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._later(_LONGEST_S, self._on_end)
        for _, size, add in waiting:
            self._put(size, add)


_log = get_logger("forwarding")


class LinkRefused(Exception):
    """The master does not accept this node as a member, which only an operator can correct."""


class _Waiter:
    """A task that waits for responses to one or more calls. A frame with many of them wakes it once."""

    __slots__ = ("_arrived",)

    def __init__(self) -> None:
        self._arrived: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        self._arrived = asyncio.get_running_loop().create_future()
        await self._arrived

    def wake(self, wakes: WakeQueue) -> bool:
        """Wake the task if it waits. A frame may contain responses to thousands of calls, and a broken
        stream fails as many.
        """
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            return False
        wakes.settle("answers", arrived)
        return True


class _Call:
    """A call that has not received its last response.

    `client`: address of the client. `size`: bytes of the request. `waiting`: bytes of responses that are not
    consumed yet.
    """

    __slots__ = ("answers", "client", "error", "is_complete", "is_sent", "size", "waiter", "waiting")

    def __init__(self, client: str, waiter: _Waiter) -> None:
        self.client = client
        self.waiter = waiter
        self.size = 0
        self.waiting = 0
        self.is_sent = False
        self.answers: deque[bytes] = deque()
        self.error: BrokerError | None = None
        self.is_complete = False

    async def next(self) -> bytes | None:
        """Return the next response, or None after the last one. Raises BrokerError."""
        while not self.answers:
            if self.error is not None:
                raise self.error
            if self.is_complete:
                return None
            await self.waiter.wait()
        return self.answers.popleft()

    def fail(self, error: BrokerError, wakes: WakeQueue) -> bool:
        """Fail the call. Return True if that wakes a task."""
        self.error = error
        return self.waiter.wake(wakes)


def _add_end(call_id: int, is_passed_on: bool, frame: pb.FromNode) -> None:
    (frame.passed_on if is_passed_on else frame.cancelled).append(call_id)


class MasterLink:
    """Implements Answering while `is_writable` is True. There is one object per stream, and `run` serves it
    until it ends.

    `on_change` is called whenever `is_writable` changes. When the stream ends, calls in progress raise
    PutRefused (NOT_CONNECTED) if they were not sent, and PutIndeterminate otherwise.
    """

    def __init__(
        self,
        node_id: str,
        members: Members,
        clients: ClientStreams,
        *,
        max_calls: int,
        max_bytes: int,
        on_change: Callable[[], None],
    ) -> None:
        self.node_id = node_id
        self.is_writable = False
        self.waiting_bytes = 0  # of responses that are not consumed yet
        self._members = members
        self._clients = clients
        self._max_bytes = max_bytes
        self._places = Quota(max_calls, "calls are on their way to the master")
        self._room = Quota(max_bytes, "bytes of requests are on their way to the master")
        self._on_change = on_change
        self._ids = count(1)
        self._calls: dict[int, _Call] = {}
        self._outbox = FrameQueue(pb.FromNode)
        self._wakes = wake_queue()
        loop = asyncio.get_running_loop()
        self._batcher = CallBatcher(self._outbox.put, later=loop.call_later, when_idle=when_idle)
        self._last_context: tuple[CallContext | None, pb.CallerContext] = None, pb.CallerContext()
        self._is_open = self._is_over = False

    def __len__(self) -> int:
        """Return the number of calls in progress."""
        return len(self._calls)

    @property
    def sent_bytes(self) -> int:
        """Return the number of bytes in unanswered requests."""
        return self._room.used

    # -- Answering ----------------------------------------------------------------------------------------

    async def unary(self, request: Request, context: CallContext) -> bytes:
        call = _Call(client_of(context.remote), _Waiter())
        call_id = self._register(call, request, context)
        try:
            answer = await call.next()
        finally:
            self._end_call(call_id, call)
        if answer is None:
            raise self._nothing()
        return answer

    async def unary_list(self, calls: Sequence[ListedCall]) -> AsyncGenerator[ListResults, None]:
        """Forward calls together. Yields their results in groups, as frames with responses arrive.

        If it is closed early, the master completes the calls.
        """
        waiter, pending = _Waiter(), dict[int, tuple[int, _Call]]()
        results: list[tuple[int, bytes | BrokerError]] = []
        try:
            for number, (request, context) in enumerate(calls):
                call = _Call(client_of(context.remote), waiter)
                try:
                    pending[self._register(call, request, context)] = number, call
                except BrokerError as error:
                    results.append((number, error))
            while pending or results:
                if results:
                    yield results
                else:
                    await waiter.wait()
                results = self._collect(pending)
        finally:
            for call_id, (_, call) in pending.items():
                self._end_call(call_id, call)

    def _collect(self, pending: dict[int, tuple[int, _Call]]) -> list[tuple[int, bytes | BrokerError]]:
        """Remove the calls that have ended. Return their positions and results."""
        results: list[tuple[int, bytes | BrokerError]] = []
        for call_id, (number, call) in list(pending.items()):
            if call.answers:
                result: bytes | BrokerError = call.answers[0]
            elif call.error is not None or call.is_complete:
                result = call.error or self._nothing()
            else:
                continue
            del pending[call_id]
            self._end_call(call_id, call)
            results.append((number, result))
        return results

    def _nothing(self) -> BrokerError:
        return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"{self.node_id} sent no response")

    async def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        """Forward a call with several responses.

        Raises BrokerError if the stream of responses is incomplete, even after the first response. Reports to
        the master whether the responses were delivered.
        """
        call = _Call(client_of(context.remote), _Waiter())
        call_id = self._register(call, request, context)
        is_taken = False
        try:
            while (answer := await call.next()) is not None:
                self.waiting_bytes -= len(answer)
                call.waiting -= len(answer)
                yield answer
            is_taken = True
        finally:
            self._end_call(call_id, call)
            if call.is_complete:
                if is_taken and context.response_delivery is not None:
                    context.response_delivery.then(partial(self._report_delivery, call_id))
                else:
                    self._report_delivery(call_id, is_passed_on=is_taken)

    def _report_delivery(self, call_id: int, is_passed_on: bool) -> None:
        """Report to the master whether the response to a call has reached the client."""
        if not self._is_over:
            self._outbox.put(0, partial(_add_end, call_id, is_passed_on))

    def _register(self, call: _Call, request: Request, context: CallContext) -> int:
        """Register and encode a call. Return its number.

        An encoding error fails only this call. At a later stage it would end the stream, and with it all
        calls.
        """
        if self._is_over:
            raise PutRefused(Status.NOT_CONNECTED, f"the connection to {self.node_id} is closed")
        try:
            data, told = request.encoded(), self._context_to_pb(context)
        except ValueError as error:  # a string that is not valid Unicode
            raise error_for(Status.REQUEST_MALFORMED, f"the request cannot be forwarded: {error}") from None
        if (whole := len(data) + told.ByteSize()) > MAX_PART_BYTES:
            text = f"the request has {whole} bytes; nodes forward up to {MAX_PART_BYTES}"
            raise error_for(Status.BODY_TOO_LARGE, text)
        size = len(data)
        refusal = self._places.refusal(call.client) or self._room.refusal(call.client, size)
        if size > self._room.total:
            refusal = f"a request of {size} bytes; {self._room.total} may be on their way to the master"
        if refusal:
            raise Busy(Status.TOO_MANY_CALLS, refusal)
        call.size = size
        call_id = next(self._ids)
        self._calls[call_id] = call
        self._places.acquire(call.client)
        self._room.acquire(call.client, size)

        def add(frame: pb.FromNode) -> None:
            if call_id in self._calls:
                call.is_sent = True
                frame.calls.add(
                    id=call_id,
                    method=request.name,
                    request=data,
                    context=told,
                )

        if request.appends:
            self._batcher.add(call_id, size, add)
        else:
            self._outbox.put(size, add)
        return call_id

    def _context_to_pb(self, context: CallContext) -> pb.CallerContext:
        """Encode a context. The calls of a list share one."""
        last, told = self._last_context
        if context is not last:
            told = context_to_pb(context)
            self._last_context = context, told
        return told

    def _end_call(self, call_id: int, call: _Call) -> None:
        self._places.release(call.client)
        self._room.release(call.client, call.size)
        self.waiting_bytes -= call.waiting
        if self._calls.pop(call_id, None) is None or not call.is_sent or call.is_complete:
            return
        if not self._is_over:
            self._outbox.put(0, lambda frame: frame.cancelled.append(call_id))

    # -- clients ------------------------------------------------------------------------------------------

    def report_client(self, client_id: str) -> None:
        """Report a client that has connected, changed its description, or left.

        Each stream starts with a report of all clients.
        """
        if not self._is_open:
            return
        is_here = client_id in self._clients
        found = [client_to_pb(client_id, self._clients.infos(client_id))] if is_here else []

        def add(frame: pb.FromNode) -> None:
            # The part contains the state at encoding time, so that reports are never out of order.
            if client_id in self._clients:
                frame.clients.extend(found)
            else:
                frame.gone.append(client_id)

        self._outbox.put(sum(one.ByteSize() for one in found) or len(client_id), add)

    def _report_all_clients(self) -> None:
        """Report all clients.

        Each is a separate part, because a client may have many topics and the size of frames is limited.
        """
        self._is_open = True
        for client_id in self._clients:
            self.report_client(client_id)

    # -- the stream ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the stream until it ends. Raises LinkRefused."""
        security = self._members.security(self.node_id)
        async with open_channel(self._members.address(self.node_id), security) as channel:
            # Untyped: gRPC's types depend on its version.
            method: Any = channel.stream_stream(
                METHOD,
                request_serializer=pb.FromNode.SerializeToString,
                response_deserializer=pb.FromMaster.FromString,
            )
            # gRPC opens the stream as soon as the node is reachable.
            stream = method(wait_for_ready=True)
            try:
                await self._serve(stream)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError, DecodeError):
                pass  # disconnected: the caller reconnects
            finally:
                self._on_end()
                stream.cancel()

    async def _serve(self, stream: Any) -> None:
        await stream.write(pb.FromNode(hello=self._members.hello(self.node_id)))
        first = await stream.read()
        if first is grpc.aio.EOF:
            return
        if first.welcome.code:
            raise LinkRefused(f"{first.welcome.code} {first.welcome.message}")
        self._report_all_clients()
        self._on_frame(first)
        writer = asyncio.create_task(self._write_all(stream))
        # If writing ends, the stream must end, too. Otherwise calls would wait for responses to requests that
        # were not sent.
        writer.add_done_callback(lambda _: stream.cancel())
        try:
            while (frame := await stream.read()) is not grpc.aio.EOF:
                self._on_frame(frame)
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if not writer.done() or (ours is not None and ours.cancelling()):
                raise
        finally:
            writer.cancel()
            (ended,) = await asyncio.gather(writer, return_exceptions=True)
            if isinstance(ended, Exception):
                _log.error("writing calls to the master failed", exc_info=ended)

    async def _write_all(self, stream: Any) -> None:
        # The reader gets the same error.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            await self._outbox.run(stream.write)

    def _on_frame(self, frame: pb.FromMaster) -> None:
        for answer in frame.answers:
            call = self._calls.get(answer.id)
            if call is not None:
                self._answered(answer, call)
            self._batcher.answered(answer.id)
        for command in frame.commands:
            self._clients.send_command(command.client_id, calls.TelemetryCommand.FromString(command.command))
        if frame.HasField("is_writable") and frame.is_writable != self.is_writable:
            self.is_writable = frame.is_writable
            self._on_change()

    def _answered(self, answer: pb.ForwardedAnswer, call: _Call) -> None:
        if answer.code:
            call.error = error_from_pb(answer.code, answer.message)
        elif answer.HasField("answer"):
            size = len(answer.answer)
            # Slow clients must not cause the rejection of small responses to other clients.
            is_small = call.waiting + size <= LARGE_BYTES
            if not is_small and self.waiting_bytes + size > 2 * self._max_bytes:
                text = f"{self.waiting_bytes} bytes of responses wait for slow clients"
                call.fail(Busy(Status.TOO_MANY_CALLS, text), self._wakes)
                return
            call.answers.append(answer.answer)
            call.waiting += size
            self.waiting_bytes += size
        call.is_complete = answer.is_last or bool(answer.code)
        call.waiter.wake(self._wakes)

    def _on_end(self) -> None:
        self._is_open, self._is_over = False, True
        self._batcher.stop()
        text = f"the connection to {self.node_id} is closed"

        def fail(call_id: int) -> bool:
            call = self._calls.get(call_id)
            if call is None or call.is_complete:
                return False
            if call.is_sent:
                return call.fail(PutIndeterminate(Status.OUTCOME_UNKNOWN, text), self._wakes)
            return call.fail(PutRefused(Status.NOT_CONNECTED, text), self._wakes)

        self._wakes.each("broken", self._calls, fail)
        if self.is_writable:
            self.is_writable = False
            self._on_change()
