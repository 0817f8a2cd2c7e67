"""The calling node's end of the stream to the master: calls out, answers in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from broker_adapter.errors import BrokerError, Busy, PutIndeterminate, PutRefused, Status, error_for
from broker_adapter.proxy.clients import ClientStreams
from broker_adapter.proxy.forwarding.frames import (
    MAX_PART_BYTES,
    METHOD,
    Outbox,
    client_to_pb,
    context_to_pb,
    error_from_pb,
)
from broker_adapter.proxy.forwarding.gathering import Gathering
from broker_adapter.proxy.forwarding.members import Members
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.request import Request
from broker_adapter.proxy.v2 import service_pb2 as calls
from broker_adapter.v1 import forward_pb2 as pb
from dledger.platform import LARGE_BYTES, WakeQueue, get_logger, open_channel, wake_queue, when_idle

_log = get_logger("forwarding")


class LinkRefused(Exception):
    """The other side does not take this node for a member: a person has to look."""


class _Call:
    """One call, until its last answer. `size`: of what is sent; `waiting`: of answers not taken yet."""

    __slots__ = ("answers", "arrived", "error", "is_complete", "is_sent", "size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        self.waiting = 0
        self.is_sent = False
        self.answers: deque[bytes] = deque()
        self.error: BrokerError | None = None
        self.is_complete = False
        self.arrived: asyncio.Future[None] | None = None

    async def next(self) -> bytes | None:
        """The next answer; None: there are no more. BrokerError."""
        while not self.answers:
            if self.error is not None:
                raise self.error
            if self.is_complete:
                return None
            self.arrived = asyncio.get_running_loop().create_future()
            await self.arrived
        return self.answers.popleft()

    def wake(self, wakes: WakeQueue) -> None:
        if self.arrived is not None:  # a frame may have answers for thousands
            wakes.settle("answers", self.arrived)

    def fail(self, error: BrokerError, wakes: WakeQueue) -> None:
        self.error = error
        self.wake(wakes)


def _add_end(call_id: int, is_passed_on: bool, frame: pb.FromNode) -> None:
    (frame.passed_on if is_passed_on else frame.cancelled).append(call_id)


class MasterLink:
    """Answers as `Answering` does, once it `is_writable`. One object for one stream: `run` serves it to its
    end.

    `on_change` is called whenever `is_writable` changes. Calls that were under way when the stream ends raise
    PutRefused (NOT_CONNECTED) if they have never left this node, PutIndeterminate otherwise.
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
        self.bytes = 0  # of requests without an answer
        self.waiting_bytes = 0  # of answers that nobody has taken
        self._members = members
        self._clients = clients
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._on_change = on_change
        self._ids = count(1)
        self._calls: dict[int, _Call] = {}
        self._outbox = Outbox(pb.FromNode)
        self._wakes = wake_queue()
        loop = asyncio.get_running_loop()
        self._gathering = Gathering(self._outbox.put, later=loop.call_later, when_idle=when_idle)
        self._is_open = self._is_over = False

    def __len__(self) -> int:
        """Calls under way."""
        return len(self._calls)

    # -- Answering ----------------------------------------------------------------------------------------

    async def unary(self, request: Request, context: CallContext) -> bytes:
        call = _Call()
        call_id = self._take_up(call, request, context)
        try:
            answer = await call.next()
        finally:
            self._end(call_id, call)
        if answer is None:
            raise self._nothing()
        return answer

    def _nothing(self) -> BrokerError:
        return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"{self.node_id} has answered nothing")

    async def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        """BrokerError also after the first answer: who asked has not got all that the master has given. The
        master is told what became of the answers."""
        call = _Call()
        call_id = self._take_up(call, request, context)
        is_taken = False
        try:
            while (answer := await call.next()) is not None:
                self.waiting_bytes -= len(answer)
                call.waiting -= len(answer)
                yield answer
            is_taken = True
        finally:
            self._end(call_id, call)
            if call.is_complete:
                if is_taken and context.passage is not None:
                    context.passage.then(partial(self._tell_end, call_id))
                else:
                    self._tell_end(call_id, is_passed_on=is_taken)

    def _tell_end(self, call_id: int, is_passed_on: bool) -> None:
        """The master, of a call that it has answered to its end."""
        if not self._is_over:
            self._outbox.put(0, partial(_add_end, call_id, is_passed_on))

    def _take_up(self, call: _Call, request: Request, context: CallContext) -> int:
        """The number of the call. It is encoded here: whatever is wrong with it is its own affair, where it
        would end the stream of all calls later."""
        if self._is_over:
            raise PutRefused(Status.NOT_CONNECTED, f"the connection to {self.node_id} is broken")
        try:
            data, told = request.encoded(), context_to_pb(context)
        except ValueError as error:  # a text that is none
            raise error_for(Status.REQUEST_MALFORMED, f"it cannot be handed on: {error}") from None
        if (whole := len(data) + told.ByteSize()) > MAX_PART_BYTES:
            text = f"a request of {whole} bytes; nodes hand on up to {MAX_PART_BYTES}"
            raise error_for(Status.BODY_TOO_LARGE, text)
        call.size = size = len(data)
        if len(self._calls) >= self._max_calls or self.bytes + size > self._max_bytes:
            text = f"{len(self._calls)} calls with {self.bytes} bytes are on their way to the master"
            raise Busy(Status.TOO_MANY_CALLS, text)
        call_id = next(self._ids)
        self._calls[call_id] = call
        self.bytes += call.size

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
            self._gathering.add(call_id, size, add)
        else:
            self._outbox.put(size, add)
        return call_id

    def _end(self, call_id: int, call: _Call) -> None:
        self.bytes -= call.size
        self.waiting_bytes -= call.waiting
        if self._calls.pop(call_id, None) is None or not call.is_sent or call.is_complete:
            return
        if not self._is_over:
            self._outbox.put(0, lambda frame: frame.cancelled.append(call_id))

    # -- clients ------------------------------------------------------------------------------------------

    def tell_client(self, client_id: str) -> None:
        """It has come, said something else of itself, or gone. A stream begins with all that there are."""
        if not self._is_open:
            return
        is_here = client_id in self._clients
        found = [client_to_pb(client_id, self._clients.infos(client_id))] if is_here else []

        def add(frame: pb.FromNode) -> None:
            # As it is now: in a frame nobody comes before he goes, nor goes before he comes.
            if client_id in self._clients:
                frame.clients.extend(found)
            else:
                frame.gone.append(client_id)

        self._outbox.put(sum(one.ByteSize() for one in found) or len(client_id), add)

    def _tell_all(self) -> None:
        """One by one: each may name many topics, and a frame has its bound."""
        self._is_open = True
        for client_id in self._clients:
            self.tell_client(client_id)

    # -- the stream ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the stream ends, for whatever reason. LinkRefused."""
        security = self._members.security(self.node_id)
        async with open_channel(self._members.address(self.node_id), security) as channel:
            # Untyped: gRPC's types depend on its version.
            method: Any = channel.stream_stream(
                METHOD,
                request_serializer=pb.FromNode.SerializeToString,
                response_deserializer=pb.FromMaster.FromString,
            )
            # The stream opens in the moment in which the node can be reached.
            stream = method(wait_for_ready=True)
            try:
                await self._serve(stream)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError, DecodeError):
                pass  # no connection (any more): the caller begins again
            finally:
                self._over()
                stream.cancel()

    async def _serve(self, stream: Any) -> None:
        await stream.write(pb.FromNode(hello=self._members.hello(self.node_id)))
        first = await stream.read()
        if first is grpc.aio.EOF:
            return
        if first.welcome.code:
            raise LinkRefused(f"{first.welcome.code} {first.welcome.message}")
        self._tell_all()
        self._take(first)
        writer = asyncio.create_task(self._write_all(stream))
        # Whatever ends the writing ends the stream: else calls would wait for answers to what was never sent.
        writer.add_done_callback(lambda _: stream.cancel())
        try:
            while (frame := await stream.read()) is not grpc.aio.EOF:
                self._take(frame)
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if not writer.done() or (ours is not None and ours.cancelling()):
                raise
        finally:
            writer.cancel()
            (ended,) = await asyncio.gather(writer, return_exceptions=True)
            if isinstance(ended, Exception):
                _log.error("calls to the master could not be written", exc_info=ended)

    async def _write_all(self, stream: Any) -> None:
        # The reading side learns of the same end.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            await self._outbox.run(stream.write)

    def _take(self, frame: pb.FromMaster) -> None:
        for answer in frame.answers:
            call = self._calls.get(answer.id)
            if call is not None:
                self._answered(answer, call)
            self._gathering.answered(answer.id)
        for command in frame.commands:
            self._clients.tell(command.client_id, calls.TelemetryCommand.FromString(command.command))
        if frame.HasField("is_writable") and frame.is_writable != self.is_writable:
            self.is_writable = frame.is_writable
            self._on_change()

    def _answered(self, answer: pb.ForwardedAnswer, call: _Call) -> None:
        if answer.code:
            call.error = error_from_pb(answer.code, answer.message)
        elif answer.HasField("answer"):
            size = len(answer.answer)
            # Clients that do not read are no reason to refuse others what is small.
            is_small = call.waiting + size <= LARGE_BYTES
            if not is_small and self.waiting_bytes + size > 2 * self._max_bytes:
                text = f"{self.waiting_bytes} bytes wait for slow clients"
                call.fail(Busy(Status.TOO_MANY_CALLS, text), self._wakes)
                return
            call.answers.append(answer.answer)
            call.waiting += size
            self.waiting_bytes += size
        call.is_complete = answer.is_last or bool(answer.code)
        call.wake(self._wakes)

    def _over(self) -> None:
        self._is_open, self._is_over = False, True
        self._gathering.stop()
        text = f"the connection to {self.node_id} is broken"

        def fail(call_id: int) -> bool:
            call = self._calls.get(call_id)
            if call is None or call.is_complete:
                return False
            if call.is_sent:
                call.fail(PutIndeterminate(Status.OUTCOME_UNKNOWN, text), self._wakes)
            else:
                call.fail(PutRefused(Status.NOT_CONNECTED, text), self._wakes)
            return True

        self._wakes.each("broken", self._calls, fail)
        if self.is_writable:
            self.is_writable = False
            self._on_change()
