"""Every call of MessagingService except Telemetry, implemented on the master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message

from broker_adapter.api import BrokerApi
from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.rejected import ELSEWHERE, Code, Rejected, status_of
from broker_adapter.endpoints.v5.calls.client_calls import ClientCalls, RouteCalls
from broker_adapter.endpoints.v5.calls.consumer_calls import ConsumerCalls
from broker_adapter.endpoints.v5.calls.producer_calls import ProducerCalls
from broker_adapter.endpoints.v5.calls.queue_calls import QueueCalls
from broker_adapter.endpoints.v5.calls.routes import Routes
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError
from broker_adapter.put.sender import SendApi
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls


class Answering(Protocol):
    """Answers calls. The methods take a request and return the response as bytes.

    They raise only the BrokerErrors in `rejected.ELSEWHERE`, for calls that this node cannot answer or whose
    outcome it does not know. All other errors become responses. A stream raises no error after its first
    response.
    """

    async def unary(self, request: Request, context: CallContext) -> bytes: ...

    def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]: ...


class HandlerDependencies(NamedTuple):
    """The dependencies of the handlers.

    `max_body_bytes`: limit per message. `now_ms` returns cluster time. `on_sent` is called with (client id,
    topic) for each send.
    """

    sends: SendApi
    delivery: DeliveryApi
    broker: BrokerApi
    directory: Directory
    routes: Mapping[str, Routes]
    settings: ClientServiceSettings
    max_body_bytes: int
    now_ms: Callable[[], int]
    on_sent: Callable[[str, str], None] = lambda client_id, topic: None


class MessagingHandlers:
    """Implements Answering. Runs on the event loop of the master."""

    def __init__(self, parts: HandlerDependencies) -> None:
        delivery, directory, settings = parts.delivery, parts.directory, parts.settings
        clients = ClientCalls(delivery, directory)
        routes = RouteCalls(directory, parts.routes)
        self.producers = producers = ProducerCalls(
            parts.sends,
            delivery,
            directory,
            max_body_bytes=parts.max_body_bytes,
            max_batch_messages=settings.max_batch_messages,
            on_sent=parts.on_sent,
        )
        consumers = ConsumerCalls(delivery, directory, settings, parts.now_ms)
        queues = QueueCalls(parts.broker, settings)
        self._unary: dict[str, Callable[[Any, CallContext], Awaitable[Message | bytes]]] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": clients.heartbeat,
            "NotifyClientTermination": clients.notify_client_termination,
            "SendMessage": producers.send_message,
            "EndTransaction": producers.end_transaction,
            "RecallMessage": producers.recall_message,
            "AckMessage": consumers.ack_message,
            "ChangeInvisibleDuration": consumers.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": consumers.forward_message_to_dead_letter_queue,
            "UpdateOffset": queues.update_offset,
            "GetOffset": queues.get_offset,
            "QueryOffset": queues.query_offset,
            "SyncLiteSubscription": _sync_lite_subscription,
        }
        self._streams: dict[str, Callable[[Any, CallContext], AsyncGenerator[Message, None]]] = {
            "ReceiveMessage": consumers.receive_message,
            "PullMessage": queues.pull_message,
        }
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` until no unary call is in progress. Streams may continue."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def unary(self, request: Request, context: CallContext) -> bytes:
        self._one_more()
        try:
            answer = await self._unary[request.name](request.parsed(), context)
        except (Rejected, BrokerError) as error:
            return _refusal_or_raise(request, error)
        finally:
            self._one_less()
        return answer if isinstance(answer, bytes) else answer.SerializeToString()

    def _one_more(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _one_less(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    async def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._streams[request.name](request.parsed(), context)) as answers:
                async for answer in answers:
                    yield answer.SerializeToString()
            return
        except (Rejected, BrokerError) as error:
            refused_with = _refusal_or_raise(request, error)
        # This is outside of the exception handler, because the error refers to the messages read, and a slow
        # client would keep them in memory.
        yield refused_with


def _refusal_or_raise(request: Request, error: Rejected | BrokerError) -> bytes:
    """Return the error as a response.

    If another node or a later attempt may succeed, raises the error instead.
    """
    if isinstance(error, BrokerError) and error.status in ELSEWHERE:
        raise error
    return request.refusal(status_of(error))


async def _sync_lite_subscription(
    request: calls.SyncLiteSubscriptionRequest, context: CallContext
) -> calls.SyncLiteSubscriptionResponse:
    text = "lite topics are not supported"
    return calls.SyncLiteSubscriptionResponse(status=pb.Status(code=Code.NOT_IMPLEMENTED, message=text))
