"""The end of a stream on the master, which answers calls from other nodes. It does not forward calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.endpoints.context import CallContext, ResponseDelivery
from broker_adapter.endpoints.forwarding.frames import (
    MAX_PART_BYTES,
    SERVICE,
    FrameQueue,
    clients_from_pb,
    context_from_pb,
)
from broker_adapter.endpoints.forwarding.members import Members
from broker_adapter.endpoints.lists.calls import ListAnswering, ListedCall
from broker_adapter.endpoints.rejected import ELSEWHERE
from broker_adapter.endpoints.v5.calls.handlers import Answering
from broker_adapter.endpoints.v5.connected import ConnectedClients, RemoteClients
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, Busy, FrameRefused, IllegalMessage, Status, error_for
from broker_adapter.v1 import forward_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger import InvalidRequest
from dledger.infra.logs import get_logger
from dledger.infra.loops.turns import MAX_TOGETHER, wake_queue
from dledger.infra.transport import handlers

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_ForwardedRequest: TypeAlias = tuple[pb.ForwardedCall, Request]

_log = get_logger("forwarding")

#: Queued bytes above which responses with many parts wait and commands are dropped.
_MUCH = 4 << 20
#: Error classes that are always passed to the calling node, because only that node can try another master.
_PASSED_ON = ELSEWHERE | {Status.TOO_MANY_CALLS}


class ForwardService:
    """Serves the streams of other nodes.

    Add `handler` to a gRPC server, and call `stop` before the server stops. Call `announce` whenever
    `is_writable` changes.
    """

    name: Final = SERVICE

    def __init__(
        self,
        answering: Answering,
        members: Members,
        connected: ConnectedClients,
        settings: ClientServiceSettings,
        is_writable: Callable[[], bool],
        request_of: Callable[[str, bytes], Request] = Request,
        lists: ListAnswering | None = None,
    ) -> None:
        """`request_of` builds a request from a method name and bytes.

        Raises KeyError for an unknown name, and BrokerError for invalid bytes. `lists` answers calls that
        arrive in one frame.
        """
        self._answering = answering
        self._request_of = request_of
        self._lists = lists
        self._members = members
        self._connected = connected
        self._max_calls = settings.max_calls + settings.max_waiting_receives
        self._is_writable = is_writable
        self._nodes: set[_NodeStream] = set()
        self._is_stopped = False

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        parse = handlers.parser(pb.FromNode, max_bytes=None)  # the messages contain whole calls of clients
        return handlers.service(SERVICE, {"Forward": handlers.both_stream(self._forward, pb.FromNode, parse)})

    @property
    def nodes(self) -> list[str]:
        """Return the ids of the nodes that have a stream to this one."""
        return sorted(node.node_id for node in self._nodes)

    def announce(self) -> None:
        for node in self._nodes:
            node.announce(self._is_writable())

    def stop(self) -> None:
        """End all streams. Repeatable."""
        self._is_stopped = True
        for node in self._nodes:
            node.end_stream()

    async def _forward(self, _: object, context: Context) -> None:
        hello = await context.read()
        if not isinstance(hello, pb.FromNode) or self._is_stopped:
            return
        try:
            node_id = self._members.check(hello.hello, context.auth_context())
        except InvalidRequest as error:
            _log.warning("rejecting calls", of=hello.hello.node_id[:64], reason=error.message)
            welcome = pb.ForwardWelcome(code=int(error.code), message=error.message)
            await context.write(pb.FromMaster(welcome=welcome))
            return
        await context.write(pb.FromMaster(welcome=pb.ForwardWelcome(), is_writable=self._is_writable()))
        node = _NodeStream(
            node_id,
            self._answering,
            self._is_writable,
            self._max_calls,
            self._request_of,
            self._lists,
            waits_for_ends=hello.hello.tells_passed_on,
        )
        self._nodes.add(node)
        self._connected.add(node.clients)
        try:
            node.announce(self._is_writable())  # the state may have changed since
            await node.serve(context)
        finally:
            self._nodes.discard(node)
            self._connected.remove(node.clients)


class _NodeStream:
    """The stream of one node.

    Changes are completed even if the stream ends. Calls that wait for messages are canceled when the stream
    or their caller ends.
    """

    def __init__(
        self,
        node_id: str,
        answering: Answering,
        is_writable: Callable[[], bool],
        max_calls: int,
        request_of: Callable[[str, bytes], Request],
        lists: ListAnswering | None,
        *,
        waits_for_ends: bool,
    ) -> None:
        """`waits_for_ends`: the other node reports when it has delivered all responses of a call."""
        self.node_id = node_id
        self.clients = RemoteClients(self._send_command)
        self.unary: set[asyncio.Task[None]] = set()
        self.listed = 0  # unanswered calls in lists
        self._running_lists: set[asyncio.Task[None]] = set()
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._waits_for_ends = waits_for_ends
        self._passed_on: dict[int, asyncio.Future[None]] = {}  # calls whose responses are all sent
        self._answering = answering
        self._is_writable = is_writable
        self._max_calls = max_calls
        self._request_of = request_of
        self._lists = lists
        self._outbox = FrameQueue(pb.FromMaster)
        self._ending = asyncio.Event()
        self._next_log_s = 0.0

    def announce(self, is_writable: bool) -> None:
        def add(frame: pb.FromMaster) -> None:
            frame.is_writable = is_writable

        self._outbox.put(0, add)

    def end_stream(self) -> None:
        self._ending.set()

    async def serve(self, context: Context) -> None:
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._read_all(context), self._outbox.run(context.write), self._ending.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            wake_queue().each("gone", self._streams.values(), asyncio.Task.cancel)
            ends = await asyncio.gather(*tasks, *self._streams.values(), return_exceptions=True)
            for ended in ends:
                # gRPC's own errors mean a closed connection.
                if isinstance(ended, Exception) and not isinstance(ended, grpc.aio.BaseError):
                    _log.error("the stream of another node failed", exc_info=ended)

    def _send_command(self, client_id: str, command: calls.TelemetryCommand) -> bool:
        if self._outbox.bytes >= _MUCH:
            return False
        data = command.SerializeToString()
        self._outbox.put(len(data), lambda frame: frame.commands.add(client_id=client_id, command=data))
        return True

    async def _read_all(self, context: Context) -> None:
        while isinstance(frame := await context.read(), pb.FromNode):
            if frame.clients or frame.gone:
                self.clients.apply_changes(clients_from_pb(frame.clients), frame.gone)
            self._start_calls(frame.calls)
            for call_id in frame.passed_on:
                if (passed_on := self._passed_on.get(call_id)) is not None and not passed_on.done():
                    passed_on.set_result(None)
            for call_id in frame.cancelled:
                if (task := self._streams.get(call_id)) is not None:
                    task.cancel()

    # -- calls --------------------------------------------------------------------------------------------

    def _start_calls(self, calls: Iterable[pb.ForwardedCall]) -> None:
        listed: list[_ForwardedRequest] = []
        for call in calls:
            if (request := self._admit(call)) is None:
                continue
            if self._lists is not None and self._lists.is_listed(request):
                self.listed += 1
                listed.append((call, request))
            else:
                self._start(call, request)
        for first in range(0, len(listed), MAX_TOGETHER):
            task = asyncio.create_task(self._run_list(listed[first : first + MAX_TOGETHER]))
            self._running_lists.add(task)
            task.add_done_callback(self._running_lists.discard)

    def _admit(self, call: pb.ForwardedCall) -> Request | None:
        """Return the request of a call, or None if the call is refused."""
        if call.context.is_repeated:
            self._log_repeated(call)
        try:
            request = self._request_of(call.method, call.request)
        except KeyError:
            self._refuse(
                call, IllegalMessage(Status.REQUEST_MALFORMED, f"unknown method {call.method[:64]!r}")
            )
            return None
        except BrokerError as error:
            self._refuse(call, error)
            return None
        if not self._is_writable():
            self._refuse(call, error_for(Status.NOT_MASTER, "this node is not the master"))
        elif self.listed + len(self.unary) + len(self._streams) >= self._max_calls:
            self._refuse(call, Busy(Status.TOO_MANY_CALLS, f"{self._max_calls} calls are in progress"))
        else:
            return request
        return None

    def _start(self, call: pb.ForwardedCall, request: Request) -> None:
        if request.streams_answers:
            task = self._streams[call.id] = asyncio.create_task(self._stream(call, request))
            task.add_done_callback(lambda _: self._streams.pop(call.id, None))
        elif request.ends_with_caller:
            task = self._streams[call.id] = asyncio.create_task(self._unary(call, request))
            task.add_done_callback(lambda _: self._streams.pop(call.id, None))
        else:
            self.start_unary(call, request)

    def start_unary(
        self,
        call: pb.ForwardedCall,
        request: Request,
        answer: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        """Start a call that is completed even if its caller disconnects. `answer` returns its response."""
        task = asyncio.create_task(self._unary(call, request, answer))
        self.unary.add(task)
        task.add_done_callback(self.unary.discard)

    async def _run_list(self, calls: Sequence[_ForwardedRequest]) -> None:
        """Answer calls that arrived in one frame. Each frame may contain thousands, from many clients."""
        assert self._lists is not None
        outcomes = _ListOutcomes(self, calls)
        contexts: dict[bytes, CallContext] = {}  # the calls of one client usually have the same
        try:
            await wake_queue().turn(self.node_id)
            listed = []
            for call, request in calls:
                key = call.context.SerializeToString()
                if (context := contexts.get(key)) is None:
                    context = contexts[key] = context_from_pb(call.context)
                listed.append(ListedCall(request, context))
            await self._lists.answer_list(listed, outcomes)
        except Exception as error:
            for number in list(outcomes.left):
                outcomes.fail(number, error)
        finally:
            self.listed -= len(outcomes.left)

    def _log_repeated(self, call: pb.ForwardedCall) -> None:
        """Log a repeated call, because it may crash this node as well.

        Logs at most one line per second, because a failover repeats many calls.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + 1
            _log.warning(
                "retrying a call that another master did not answer",
                method=call.method[:64],
                client=call.context.client_id[:256],
                node=self.node_id,
            )

    async def _unary(
        self,
        call: pb.ForwardedCall,
        request: Request,
        answer: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        try:
            if answer is not None:
                data = await answer()
            elif request.ends_with_caller:
                data = await self._answer_in_time(request, context_from_pb(call.context))
            else:
                data = await self._answering.unary(request, context_from_pb(call.context))
        except Exception as error:  # the error must fail this call, not the stream
            self.failed(call, request, error)
        else:
            self.answered(call, request, data)

    async def _answer_in_time(self, request: Request, context: CallContext) -> bytes:
        """Answer within the deadline.

        A caller that gives up cancels the call, but this node may be too busy to process the cancellation.
        """
        limit = asyncio.timeout(context.timeout_s)
        try:
            async with limit:
                answer = await self._answering.unary(request, context)
                await self._outbox.room(_MUCH)
        except Exception as error:
            if limit.expired():
                raise Busy(Status.TOO_MANY_CALLS, "the master did not process the call in time") from error
            raise
        return answer

    async def _stream(self, call: pb.ForwardedCall, request: Request) -> None:
        response_delivery = ResponseDelivery()
        self._passed_on[call.id] = passed_on = asyncio.get_running_loop().create_future()
        try:
            context = context_from_pb(call.context)._replace(response_delivery=response_delivery)
            async with aclosing(self._answering.stream(request, context)) as answers:
                async for answer in answers:
                    await self._outbox.room(_MUCH)
                    self._send_response(call, answer, is_last=False)
            self._outbox.put(0, lambda frame: frame.answers.add(id=call.id, is_last=True))
            if self._waits_for_ends:
                await passed_on
            response_delivery.settle(True)
        except Exception as error:
            self.failed(call, request, error)
        finally:  # also if the caller or its node disconnected
            response_delivery.settle(False)
            del self._passed_on[call.id]

    def answered(self, call: pb.ForwardedCall, request: Request, answer: bytes) -> None:
        """Send the only response of a call."""
        if len(answer) > MAX_PART_BYTES:  # it would end the stream
            text = f"the response has {len(answer)} bytes; nodes forward up to {MAX_PART_BYTES}"
            answer = request.refused(FrameRefused(text))
        self._send_response(call, answer, is_last=True)

    def failed(self, call: pb.ForwardedCall, request: Request, error: Exception) -> None:
        """End a call with an error."""
        if isinstance(error, BrokerError) and error.status in _PASSED_ON:
            self._refuse(call, error)
        else:
            self._send_response(call, request.refused(error), is_last=True)

    def _send_response(self, call: pb.ForwardedCall, answer: bytes, *, is_last: bool) -> None:
        call_id = call.id
        self._outbox.put(
            len(answer), lambda frame: frame.answers.add(id=call_id, answer=answer, is_last=is_last)
        )

    def _refuse(self, call: pb.ForwardedCall, error: BrokerError) -> None:
        answer = pb.ForwardedAnswer(id=call.id, is_last=True, code=int(error.status), message=error.message)
        self._outbox.put(len(error.message), lambda frame: frame.answers.append(answer))


class _ListOutcomes:
    """Implements ListOutcomes. All responses that are passed on in one step go into the same frame."""

    def __init__(self, stream: _NodeStream, calls: Sequence[_ForwardedRequest]) -> None:
        self._stream = stream
        self.left = dict(enumerate(calls))

    def answer(self, answers: Iterable[tuple[int, bytes]]) -> None:
        for number, data in answers:
            self._stream.answered(*self._take(number), data)

    def process_alone(self, number: int, answer: Callable[[], Awaitable[bytes]] | None = None) -> None:
        self._stream.start_unary(*self._take(number), answer)

    def fail(self, number: int, error: Exception) -> None:
        """Refuse the call. Only the calling node can try another master."""
        self._stream.failed(*self._take(number), error)

    def _take(self, number: int) -> _ForwardedRequest:
        self._stream.listed -= 1
        return self.left.pop(number)
