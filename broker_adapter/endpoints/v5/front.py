"""MessagingService on a gRPC server: metadata, deadlines, limits and streams.

This module does not interpret calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import grpc
import grpc.aio

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.endpoints.access.guard import Guard
from broker_adapter.endpoints.calls import large_request, peer_host, stopping
from broker_adapter.endpoints.context import NODE_JS, NODE_PORT, CallContext, ResponseDelivery
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.lists.send_list import NodeSends
from broker_adapter.endpoints.rejected import Code, Rejected, status_of
from broker_adapter.endpoints.v5.calls.handlers import Answering
from broker_adapter.endpoints.v5.clients import ClientStreams
from broker_adapter.endpoints.v5.gathered import ClientCall, GatheredSends
from broker_adapter.endpoints.v5.messages.client_settings import SettingsLimits
from broker_adapter.endpoints.v5.messages.methods import METHODS, SERVICE_NAME, TELEMETRY
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.endpoints.v5.telemetry import LARGE_COMMAND_BYTES, MAX_COMMAND_BYTES, TelemetryStream
from broker_adapter.errors import BrokerError, Busy, Status
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.logs import get_logger
from dledger.infra.loops.turns import LARGE_BYTES, large_turns, wake_queue
from dledger.infra.quotas import Quota, client_of
from dledger.infra.transport import handlers as grpc_handlers

_log = get_logger("proxy")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
#: Returns a response from data of this node, or None.
KnownAnswer: TypeAlias = Callable[[Any, CallContext], Awaitable[bytes | None]]

_CLIENT_ID: Final = "x-mq-client-id"
_NAMESPACE: Final = "x-mq-namespace"
_LANGUAGE: Final = "x-mq-language"
_VERSION: Final = "x-mq-client-version"
_USER_AGENT: Final = "user-agent"
_MAX_HEADER_LENGTH = 255
_BOUNDED: Final = frozenset({_CLIENT_ID, _NAMESPACE, _LANGUAGE, _VERSION})
#: A call that waits for messages keeps its request in memory. Requests of at least this size (bytes) use a
#: quota that addresses share.
_KEPT_BYTES = 4 << 10
#: The language that Node.js clients report, and the user agent that distinguishes them from other HTTP
#: clients.
_HTTP, _NODE_AGENT = "HTTP", "grpc-node-js"
#: The response to a receive that a shutdown has ended. The client then receives from another node.
_NOTHING = pb.Status(code=Code.MESSAGE_NOT_FOUND, message="no message: this node is shutting down")


class NodeCalls(NamedTuple):
    """Handles the calls that need the master. `sends` handles sends in lists, or is None."""

    answering: Answering
    sends: NodeSends | None = None


class MessagingService:
    """The gRPC service of one node. Implements CallOwner.

    `known_here`: methods that every node can answer, by name. `node_calls` handles all other methods.
    `guard`: None if there is no access control.

    Add `handler`, or the handler for another port, to a gRPC server. Its service name for health checks and
    reflection is `name`. For a shutdown, call `drain`, then `send_away` while the server stops, then `stop`.
    """

    name: Final = SERVICE_NAME

    def __init__(
        self,
        node_calls: NodeCalls,
        known_here: Mapping[str, KnownAnswer],
        directory: Directory,
        clients: ClientStreams,
        settings: ClientServiceSettings,
        limits: SettingsLimits,
        guard: Guard | None = None,
    ) -> None:
        self.clients = clients
        self._answering, sends = node_calls
        self._gathered = None if sends is None else GatheredSends(sends, self)
        self._known_here = known_here
        self._directory = directory
        self._limits = limits
        self._guard = guard
        self._calls = Quota(settings.max_calls, "calls are under way")
        self._large = Quota(settings.max_request_bytes, "bytes are under way")
        # held by calls with several responses
        self._kept = Quota(settings.max_request_bytes, "bytes are under way")
        self._receives = Quota(
            settings.max_waiting_receives,
            "calls that wait for messages are under way",
            "end some, connect to other nodes as well, or raise rocketmq_v2.max_waiting_receives",
        )
        self._under_way: dict[asyncio.Future[bytes], asyncio.Task[None]] = {}  # by response future
        self._waiting: set[asyncio.Task[bytes]] = set()
        self._open: set[asyncio.Event] = set()
        self._leaving = False
        self._stopping = False

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """The methods of the service, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        return self.handler_at(NODE_PORT)

    def handler_at(self, listener: str) -> grpc.GenericRpcHandler:
        """Return the handler for a port (`endpoints.context`). Routes depend on the port of the client."""
        telemetry = partial(self._telemetry, listener)
        methods: dict[str, Any] = {
            # Without a parser, because large commands are parsed in their own step of the event loop.
            TELEMETRY: grpc_handlers.both_stream(telemetry, calls.TelemetryCommand, bytes)
        }
        for name, method in METHODS.items():
            # Without parsers, because another node may answer.
            if method.streams_answers:
                methods[name] = grpc.unary_stream_rpc_method_handler(self._stream(name, listener))
            else:
                methods[name] = grpc.unary_unary_rpc_method_handler(self._unary(name, listener))
        return grpc_handlers.service(SERVICE_NAME, methods)

    @property
    def waiting_receives(self) -> int:
        return self._receives.used

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for calls in progress, except calls that wait for messages."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=seconds)

    def send_away(self) -> None:
        """End telemetry streams and waiting receives, so that clients continue at another node.

        The server no longer accepts calls. Receives that wait for messages end with an empty response. Other
        calls in progress continue.
        """
        self._leaving = True
        wake_queue().each("away", self._waiting, asyncio.Task.cancel)
        wake_queue().each("away", self._open, _set)

    def stop(self) -> None:
        """Reject new calls and cancel all calls in progress. May be called again."""
        self._stopping = True
        self.send_away()
        for answer, task in list(self._under_way.items()):
            task.cancel()
            answer.cancel()  # if the task has not started, its cancellation does not do this

    # -- calls

    def _unary(self, name: str, listener: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def answer(request: Request, context: Context, room: AsyncExitStack | None = None) -> bytes:
            call = self._admitted(request, context, listener)
            if self._stopping:
                raise stopping()
            if (refusal := self._calls.refusal(client_of(call.remote))) is not None:
                raise Busy(Status.TOO_MANY_CALLS, refusal)
            return await self._start_call(request, call, room)

        async def behaviour(data: bytes, context: Context) -> bytes:
            request = Request(name, data)
            try:
                if len(data) < LARGE_BYTES:
                    return await answer(request, context)
                async with AsyncExitStack() as room:
                    client = client_of(peer_host(context))
                    await room.enter_async_context(large_request(self._large, len(data), client))
                    return await answer(request, context, room)
            except asyncio.CancelledError:
                if self._stopping:
                    return request.refusal(status_of(stopping()))
                raise
            except Exception as error:
                return request.refused(error)

        return behaviour

    def _start_call(
        self, request: Request, context: CallContext, room: AsyncExitStack | None
    ) -> asyncio.Future[bytes]:
        """Start a call. If the client disconnects, the call continues and keeps its part of the quota of
        large requests.

        Canceling the returned future ends only the wait for the response. `asyncio.shield` would need three
        more steps of the event loop per call.
        """
        call = ClientCall(request, context, asyncio.get_running_loop().create_future())
        self._calls.acquire(client_of(context.remote))
        if self._gathered is not None and room is None and self._gathered.is_gathered(request):
            self._under_way[call.answered] = self._gathered.add(call)
        else:
            kept = None if room is None else room.pop_all()
            self._start_task(call, partial(self._answer, request, context), kept)
        return call.answered

    def _start_task(
        self, call: ClientCall, answer: Callable[[], Awaitable[bytes]], room: AsyncExitStack | None = None
    ) -> None:
        self._under_way[call.answered] = asyncio.create_task(self._carry_out(call, answer, room))

    async def _carry_out(
        self, call: ClientCall, answer: Callable[[], Awaitable[bytes]], room: AsyncExitStack | None
    ) -> None:
        try:
            call.settle(await answer())
        except Exception as error:
            call.settle(error)
        finally:
            self.end(call)
            if room is not None:
                await room.aclose()

    def process_alone(self, call: ClientCall, answer: Callable[[], Awaitable[bytes]] | None) -> None:
        self._start_task(call, answer or partial(self._answer, call.request, call.context))

    def process_again(self, call: ClientCall, context: CallContext) -> None:
        self._start_task(call, partial(self._answer, call.request, context))

    def end(self, call: ClientCall) -> None:
        self._under_way.pop(call.answered, None)
        self._calls.release(client_of(call.context.remote))
        call.answered.cancel()  # no effect if answered

    async def _answer(self, request: Request, call: CallContext) -> bytes:
        known = self._known_here.get(request.name)
        if known is not None and (answer := await known(request.parsed(), call)) is not None:
            return answer
        return await self._answering.unary(request, call)

    def _stream(self, name: str, listener: str) -> Callable[[bytes, Context], AsyncIterator[bytes]]:
        async def behaviour(data: bytes, context: Context) -> AsyncIterator[bytes]:
            request, response_delivery = Request(name, data), ResponseDelivery()
            try:
                call = self._admitted(request, context, listener)._replace(
                    response_delivery=response_delivery
                )
                size, client = len(data), client_of(call.remote)
                kept = nullcontext() if size < _KEPT_BYTES else large_request(self._kept, size, client)
                async with kept, aclosing(self._answering.stream(request, call)) as answers:
                    if (refusal := self._receives.refusal(client)) is not None:
                        raise Busy(Status.TOO_MANY_CALLS, refusal)
                    with self._receives.holding(client):
                        first = await self._until_leaving(anext(answers))
                    if first is None:
                        yield request.refusal(_NOTHING)
                        return
                    yield first
                    async for answer in answers:
                        yield answer
                # gRPC resumes this generator after it has written the last response.
                response_delivery.settle(True)
            except Exception as error:
                yield request.refused(error)
            finally:  # gRPC closes the generator at the end of the call, whatever the reason
                response_delivery.settle(False)

        return behaviour

    async def _until_leaving(self, work: Coroutine[Any, Any, bytes]) -> bytes | None:
        """Wait for the first response of a stream, the only one that may take long.

        Return None if this node is stopping.
        """
        task = asyncio.create_task(work)
        self._waiting.add(task)
        if self._leaving:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if self._leaving and not (ours is not None and ours.cancelling()):
                return None
            raise
        finally:
            self._waiting.discard(task)
            task.cancel()
            # the task must end before its stream is closed
            await asyncio.gather(task, return_exceptions=True)

    # -- authentication

    def _called(self, context: Context, listener: str) -> CallContext:
        """Build the context of a call.

        Raises Rejected, with UNAUTHORIZED if the call has no valid signature.
        """
        metadata = metadata_of(context)
        call = context_of(metadata, context, listener)
        if self._guard is None:
            return call
        return call._replace(account=self._guard.admit(metadata, call.remote))

    def _admitted(self, request: Request, context: Context, listener: str) -> CallContext:
        """Check that a call is permitted, and return its context.

        Raises Rejected, with FORBIDDEN if a permission is missing, and the errors of `_called` and of
        `Request.check`.
        """
        call = self._called(context, listener)
        request.check()
        if self._guard is not None:
            self._guard.check(call.account, request.name, request.parsed(), call.namespace)
        return call

    # -- telemetry

    async def _telemetry(self, listener: str, _: object, context: Context) -> None:
        wake, guard = asyncio.Event(), self._guard
        loop = asyncio.get_running_loop()
        try:
            if self._leaving:
                raise stopping()
            call = self._called(context, listener)
            conversation = TelemetryStream(
                call,
                self.clients,
                self._directory,
                self._limits,
                later=loop.call_later,
                wake=wake.set,
                may_receive=(lambda _: True) if guard is None else partial(guard.may_receive, call.account),
            )
        except (Rejected, BrokerError) as error:
            await context.write(calls.TelemetryCommand(status=status_of(error)))
            return
        self._open.add(wake)
        reader = asyncio.create_task(self._read_all(conversation, call, context))
        reader.add_done_callback(lambda _: wake.set())
        try:
            while True:
                while (command := conversation.next_to_write()) is not None:
                    await context.write(command)
                if reader.done() or self._leaving:
                    return
                wake.clear()
                await wake.wait()
        finally:
            self._open.discard(wake)
            conversation.close()
            reader.cancel()
            (ended,) = await asyncio.gather(reader, return_exceptions=True)
            if isinstance(ended, Exception) and not isinstance(ended, grpc.aio.BaseError):
                _log.error("a telemetry stream failed", exc_info=ended)

    async def _read_all(self, conversation: TelemetryStream, call: CallContext, context: Context) -> None:
        """Read commands until the client ends the stream or sends invalid bytes."""
        # This is a separate call, so that no command remains in memory during the wait for the next one.
        while await self._handle_command(await context.read(), conversation, call):
            pass

    async def _handle_command(self, data: object, conversation: TelemetryStream, call: CallContext) -> bool:
        """Handle one command. Return True to continue reading."""
        if not isinstance(data, bytes):
            return False
        try:
            if len(data) >= LARGE_COMMAND_BYTES:
                await large_turns().turn(client_of(call.remote))
            if (command := command_of(data)) is None:
                return False
            if self._guard is not None:
                self._guard.check(call.account, TELEMETRY, command, call.namespace)
        except Rejected as error:
            conversation.queue_command(calls.TelemetryCommand(status=status_of(error)))
        else:
            conversation.heard(command)
        return True


_parse_command = grpc_handlers.parser(calls.TelemetryCommand)


def command_of(data: bytes) -> calls.TelemetryCommand | None:
    """Parse a command. Return None if the bytes are invalid.

    Raises Rejected (PAYLOAD_TOO_LARGE) if the command exceeds the size limit, because parsing 4 MiB of
    minimal fields blocks the event loop for tenths of a second.
    """
    if len(data) <= MAX_COMMAND_BYTES:
        return _parse_command(data)
    raise Rejected(
        Code.PAYLOAD_TOO_LARGE, f"the settings are {len(data)} bytes long; the limit is {MAX_COMMAND_BYTES}"
    )


def _set(wake: asyncio.Event) -> bool:
    wake.set()
    return True


def metadata_of(context: Context) -> dict[str, str]:
    """Return the call's metadata. Raises Rejected (REQUEST_HEADER_FIELDS_TOO_LARGE)."""
    found: dict[str, str] = {}
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            if len(value) > _MAX_HEADER_LENGTH and name in _BOUNDED:
                text = f"{name} has more than {_MAX_HEADER_LENGTH} characters"
                raise Rejected(Code.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
            found[name] = value
    return found


def context_of(found: Mapping[str, str], context: Context, listener: str) -> CallContext:
    """Return the context of a call with this metadata.

    Raises Rejected (CLIENT_ID_REQUIRED) if the metadata contains no client id.
    """
    if not (client_id := found.get(_CLIENT_ID, "")):
        raise Rejected(Code.CLIENT_ID_REQUIRED, f"{_CLIENT_ID} is missing in the call metadata")
    language = found.get(_LANGUAGE, "").upper()
    if language == _HTTP or _NODE_AGENT in found.get(_USER_AGENT, ""):
        language = NODE_JS
    return CallContext(
        client_id=client_id,
        namespace=found.get(_NAMESPACE, ""),
        language=language,
        client_version=found.get(_VERSION, ""),
        remote=peer_host(context),
        timeout_s=context.time_remaining(),
        listener=listener,
    )
