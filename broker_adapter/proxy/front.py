"""MessagingService on a gRPC server: metadata, deadlines, limits and streams.

What calls mean is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, nullcontext
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.errors import BrokerError, Busy, Status
from broker_adapter.proxy.access.guard import Guard
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.clients import ClientStreams
from broker_adapter.proxy.messages.client_settings import ServerLimits
from broker_adapter.proxy.messages.context import NODE_JS, NODE_PORT, CallContext, Passage
from broker_adapter.proxy.messages.directory import Directory
from broker_adapter.proxy.messages.methods import METHODS, SERVICE_NAME, TELEMETRY
from broker_adapter.proxy.messages.rejected import Code, Rejected, status_of
from broker_adapter.proxy.messages.request import Request
from broker_adapter.proxy.telemetry import LARGE_COMMAND_BYTES, MAX_COMMAND_BYTES, Conversation
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls
from broker_adapter.rpc.calls import LargeRequests, Places, peer_host, stopping
from dledger.platform import LARGE_BYTES, client_of, get_logger, large_turns, wake_queue
from dledger.platform import handlers as grpc_handlers

_log = get_logger("proxy")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
#: An answer out of what this node knows, or None.
KnownAnswer: TypeAlias = Callable[[Any, CallContext], Awaitable[bytes | None]]

_CLIENT_ID: Final = "x-mq-client-id"
_NAMESPACE: Final = "x-mq-namespace"
_LANGUAGE: Final = "x-mq-language"
_VERSION: Final = "x-mq-client-version"
_USER_AGENT: Final = "user-agent"
_MAX_HEADER_LENGTH = 255
_BOUNDED: Final = frozenset({_CLIENT_ID, _NAMESPACE, _LANGUAGE, _VERSION})
#: A call that waits for messages keeps its request. From so many bytes on these have shares, by address.
_KEPT_BYTES = 4 << 10
#: What clients in Node.js call their language, and what tells them from others that speak HTTP.
_HTTP, _NODE_AGENT = "HTTP", "grpc-node-js"
#: A receive that is not waited for to its end: the client asks again, where it is not kept.
_NOTHING = pb.Status(code=Code.MESSAGE_NOT_FOUND, message="no message: this node is shutting down")


class MessagingService:
    """The gRPC face of one node. `known_here`: what every node can answer, by the method's name; all else is
    `answering`'s. `guard` None: everybody may do everything.

    Add `handler`, or one for another port, to a gRPC server, under the name `name` for health and reflection.
    In the end: `drain`; the server stops, and meanwhile `send_away`; `stop`.
    """

    name: Final = SERVICE_NAME

    def __init__(
        self,
        answering: Answering,
        known_here: Mapping[str, KnownAnswer],
        directory: Directory,
        clients: ClientStreams,
        settings: ClientServiceSettings,
        limits: ServerLimits,
        guard: Guard | None = None,
    ) -> None:
        self.clients = clients
        self._answering = answering
        self._known_here = known_here
        self._directory = directory
        self._limits = limits
        self._guard = guard
        self._max_calls = settings.max_calls
        self._large = LargeRequests(settings.max_request_bytes)
        self._kept = LargeRequests(settings.max_request_bytes)  # by calls with several answers
        self._receives = Places(
            "calls that wait for messages",
            settings.max_waiting_receives,
            "end some, connect to other nodes as well, or raise rocketmq_v2.max_waiting_receives",
        )
        self._under_way: dict[asyncio.Future[bytes], asyncio.Task[None]] = {}  # by its answer
        self._waiting: set[asyncio.Task[bytes]] = set()
        self._open: set[asyncio.Event] = set()
        self._leaving = False
        self._stopping = False

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """All methods of the service, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        return self.handler_at(NODE_PORT)

    def handler_at(self, listener: str) -> grpc.GenericRpcHandler:
        """Of a port (`proxy.context`): routes depend on where a client has come to."""
        telemetry = partial(self._telemetry, listener)
        methods: dict[str, Any] = {
            # Bytes in, as large commands are read one in a turn of the loop.
            TELEMETRY: grpc_handlers.both_stream(telemetry, calls.TelemetryCommand, bytes)
        }
        for name, method in METHODS.items():
            # Bytes in and bytes out: who answers may be another node.
            if method.streams_answers:
                methods[name] = grpc.unary_stream_rpc_method_handler(self._stream(name, listener))
            else:
                methods[name] = grpc.unary_unary_rpc_method_handler(self._unary(name, listener))
        return grpc_handlers.service(SERVICE_NAME, methods)

    @property
    def waiting_receives(self) -> int:
        return self._receives.taken

    async def drain(self, seconds: float) -> None:
        """So long for the calls that are under way now, but for those that wait for messages."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=seconds)

    def send_away(self) -> None:
        """The server takes no new calls: the conversations end, and receives as if there were no messages, so
        that clients begin both anew at another node. Calls already in progress are answered normally."""
        self._leaving = True
        wake_queue().each("away", self._waiting, asyncio.Task.cancel)
        wake_queue().each("away", self._open, _set)

    def stop(self) -> None:
        """Refuse new calls and end all that is under way. Repeatable."""
        self._stopping = True
        self.send_away()
        for answer, task in list(self._under_way.items()):
            task.cancel()
            answer.cancel()  # a task that has not begun would not

    # -- calls

    def _unary(self, name: str, listener: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def answer(request: Request, context: Context) -> bytes:
            call = self._admitted(request, context, listener)
            if self._stopping:
                raise stopping()
            if len(self._under_way) >= self._max_calls:  # whoever still waits for them
                raise Busy(Status.TOO_MANY_CALLS, f"{self._max_calls} calls are under way")
            return await self._begin(request, call)

        async def behaviour(data: bytes, context: Context) -> bytes:
            request = Request(name, data)
            try:
                if len(data) < LARGE_BYTES:
                    return await answer(request, context)
                async with self._large.taking(len(data), caller=peer_host(context)):
                    return await answer(request, context)
            except asyncio.CancelledError:
                if self._stopping:
                    return request.refusal(status_of(stopping()))
                raise
            except Exception as error:
                return request.refused(error)

        return behaviour

    def _begin(self, request: Request, call: CallContext) -> asyncio.Future[bytes]:
        """A client that has gone does not take back what it asked for: the future is of its waiting, and the
        call goes on without it. `asyncio.shield` would take three turns of the loop more for each call."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._under_way[answered] = asyncio.create_task(self._carry_out(request, call, answered))
        return answered

    async def _carry_out(self, request: Request, call: CallContext, answered: asyncio.Future[bytes]) -> None:
        try:
            answer = await self._answer(request, call)
        except Exception as error:
            if not answered.done():
                answered.set_exception(error)
                answered.exception()  # who asked may go before it hears of this
        else:
            if not answered.done():
                answered.set_result(answer)
        finally:
            self._under_way.pop(answered, None)
            answered.cancel()  # unless it is answered

    async def _answer(self, request: Request, call: CallContext) -> bytes:
        known = self._known_here.get(request.name)
        if known is not None and (answer := await known(request.parsed(), call)) is not None:
            return answer
        return await self._answering.unary(request, call)

    def _stream(self, name: str, listener: str) -> Callable[[bytes, Context], AsyncIterator[bytes]]:
        async def behaviour(data: bytes, context: Context) -> AsyncIterator[bytes]:
            request, passage = Request(name, data), Passage()
            try:
                call = self._admitted(request, context, listener)._replace(passage=passage)
                size = len(data)
                kept = (
                    nullcontext() if size < _KEPT_BYTES else self._kept.taking(size, client_of(call.remote))
                )
                async with kept, aclosing(self._answering.stream(request, call)) as answers:
                    with self._receives.taking(client_of(call.remote)):
                        first = await self._until_leaving(anext(answers))
                    if first is None:
                        yield request.refusal(_NOTHING)
                        return
                    yield first
                    async for answer in answers:
                        yield answer
                passage.settle(True)  # whoever wrote the last one has come back for more
            except Exception as error:
                yield request.refused(error)
            finally:  # gRPC lets go of this when the call is over, however that came
                passage.settle(False)

        return behaviour

    async def _until_leaving(self, work: Coroutine[Any, Any, bytes]) -> bytes | None:
        """The first answer of a stream, as only that is waited for; None: this node stops."""
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
            await asyncio.gather(task, return_exceptions=True)  # before its stream is closed

    # -- who calls

    def _called(self, context: Context, listener: str) -> CallContext:
        """Rejected, also (UNAUTHORIZED) for who has not signed as an account."""
        metadata = metadata_of(context)
        call = context_of(metadata, context, listener)
        if self._guard is None:
            return call
        return call._replace(account=self._guard.admit(metadata, call.remote))

    def _admitted(self, request: Request, context: Context, listener: str) -> CallContext:
        """Rejected, also (FORBIDDEN) for what the account may not do, and as `Request.check` does."""
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
            conversation = Conversation(
                call,
                self.clients,
                self._directory,
                self._limits,
                later=loop.call_later,
                wake=wake.set,
                may_hear=(lambda _: True) if guard is None else partial(guard.may_hear, call.account),
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

    async def _read_all(self, conversation: Conversation, call: CallContext, context: Context) -> None:
        """Until the client has said all, or something that is no command."""
        # In a call of its own: nothing of a command is kept while the next one is waited for.
        while await self._hear(await context.read(), conversation, call):
            pass

    async def _hear(self, data: object, conversation: Conversation, call: CallContext) -> bool:
        """Whether there may be more."""
        if not isinstance(data, bytes):
            return False
        try:
            if len(data) >= LARGE_COMMAND_BYTES:
                await large_turns().turn(call.remote)
            if (command := command_of(data)) is None:
                return False
            if self._guard is not None:
                self._guard.check(call.account, TELEMETRY, command, call.namespace)
        except Rejected as error:
            conversation.tell(calls.TelemetryCommand(status=status_of(error)))
        else:
            conversation.heard(command)
        return True


_parse_command = grpc_handlers.parser(calls.TelemetryCommand)


def command_of(data: bytes) -> calls.TelemetryCommand | None:
    """None for bytes that are no command. Rejected (PAYLOAD_TOO_LARGE) for such as nobody looks at: 4 MiB of
    the smallest fields that there are take the event loop tenths of a second to be read."""
    if len(data) <= MAX_COMMAND_BYTES:
        return _parse_command(data)
    raise Rejected(Code.PAYLOAD_TOO_LARGE, f"settings of {len(data)} bytes; {MAX_COMMAND_BYTES} are allowed")


def _set(wake: asyncio.Event) -> bool:
    wake.set()
    return True


def metadata_of(context: Context) -> dict[str, str]:
    """Rejected (REQUEST_HEADER_FIELDS_TOO_LARGE)."""
    found: dict[str, str] = {}
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            if len(value) > _MAX_HEADER_LENGTH and name in _BOUNDED:
                text = f"{name} has more than {_MAX_HEADER_LENGTH} characters"
                raise Rejected(Code.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
            found[name] = value
    return found


def context_of(found: Mapping[str, str], context: Context, listener: str) -> CallContext:
    """Of a call with this metadata. Rejected (CLIENT_ID_REQUIRED)."""
    if not (client_id := found.get(_CLIENT_ID, "")):
        raise Rejected(Code.CLIENT_ID_REQUIRED, f"there is no {_CLIENT_ID} in the metadata of the call")
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
