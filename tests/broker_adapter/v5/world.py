"""The service on a gRPC server in front of a delivery of memory, and calls to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.endpoints.access.guard import Guard
from broker_adapter.endpoints.lists.send_list import NodeSends
from broker_adapter.endpoints.v5.calls.handlers import Answering, MessagingHandlers
from broker_adapter.endpoints.v5.front import NodeCalls
from broker_adapter.endpoints.v5.messages.methods import METHODS, SEND_MESSAGE, SERVICE_NAME
from broker_adapter.endpoints.v5.serving import client_service
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.transport.channels import new_server, open_channel
from tests.broker_adapter.memory_broker import MemoryCluster
from tests.broker_adapter.v5.memory_delivery import MemoryDelivery

MAX_BODY = 1 << 20
MEMBERS = {"n1": "127.0.0.1:10911", "n2": "127.0.0.1:10912", "n3": "127.0.0.1:10913"}
#: So that nothing waits that need not.
QUICK = ClientServiceSettings(min_polling_ms=0, min_invisible_ms=10, min_retry_ms=10)
HEADERS = {"x-mq-client-id": "client-1", "x-mq-language": "JAVA", "x-mq-client-version": "5.0"}


class World:
    """`call` and `stream` speak to the service as clients do. `members`: as routes have them."""

    def __init__(
        self,
        settings: ClientServiceSettings = QUICK,
        members: Mapping[str, str] = MEMBERS,
        answering: Answering | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.delivery = MemoryDelivery()
        self.cluster = MemoryCluster(1)
        made = client_service(
            "broker-a",
            members,
            settings,
            sends=self.delivery,
            delivery=self.delivery,
            broker=self.cluster.brokers[0],
            directory=self.delivery,
            max_body_bytes=MAX_BODY,
            now_ms=self.delivery.now_ms,
            node_calls=lambda handlers, _: answering_of(handlers, answering),
            guard=guard,
        )
        self.service, self.handlers = made.service, made.handlers
        self.delivery.on_orphan(made.ask_producer)
        self.address = ""
        self.channel: Any = None

    async def call(
        self, method: str, request: Any, headers: Mapping[str, str] = HEADERS, timeout: float | None = 10.0
    ) -> Any:
        answer = await self.raw(method, request.SerializeToString(), headers, timeout)
        return METHODS[method].answer.FromString(answer)

    async def raw(
        self,
        method: str,
        request: bytes,
        headers: Mapping[str, str] = HEADERS,
        timeout: float | None = 10.0,
    ) -> bytes:
        call = self.channel.unary_unary(f"/{SERVICE_NAME}/{method}")
        answer: bytes = await call(request, metadata=tuple(headers.items()), timeout=timeout)
        return answer

    async def stream(
        self, method: str, request: Any, headers: Mapping[str, str] = HEADERS, timeout: float | None = 10.0
    ) -> list[Any]:
        call = self.channel.unary_stream(f"/{SERVICE_NAME}/{method}")
        answers = call(request.SerializeToString(), metadata=tuple(headers.items()), timeout=timeout)
        return [METHODS[method].answer.FromString(answer) async for answer in answers]

    def telemetry(self, headers: Mapping[str, str] = HEADERS) -> Any:
        call = self.channel.stream_stream(
            f"/{SERVICE_NAME}/Telemetry",
            request_serializer=calls.TelemetryCommand.SerializeToString,
            response_deserializer=calls.TelemetryCommand.FromString,
        )
        return call(metadata=tuple(headers.items()))

    async def send(self, *messages: pb.Message, **more: Any) -> Any:
        return await self.call("SendMessage", calls.SendMessageRequest(messages=messages), **more)

    async def receive(self, group: str = "g", topic: str = "t", **fields: Any) -> list[Any]:
        return await self.stream("ReceiveMessage", receive_request(group, topic, **fields))

    async def messages(self, group: str = "g", topic: str = "t", **fields: Any) -> list[pb.Message]:
        answers = await self.receive(group, topic, **fields)
        return [answer.message for answer in answers if answer.HasField("message")]


def answering_of(handlers: MessagingHandlers, answering: Answering | None) -> NodeCalls:
    """Return what answers calls: this master, or another component, which answers each call alone."""
    if answering is not None:
        return NodeCalls(answering)
    starters = {SEND_MESSAGE: handlers.producers}
    return NodeCalls(handlers, NodeSends(starters, lambda: True, lambda _: None, timeout_s=5.0))


@asynccontextmanager
async def world(
    settings: ClientServiceSettings = QUICK,
    members: Mapping[str, str] = MEMBERS,
    answering: Answering | None = None,
    guard: Guard | None = None,
) -> AsyncIterator[World]:
    made = World(settings, members, answering, guard)
    server = new_server()
    server.add_generic_rpc_handlers((made.service.handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made.address = f"127.0.0.1:{port}"
    async with open_channel(made.address) as channel:
        made.channel = channel
        try:
            yield made
        finally:
            made.service.stop()
            await server.stop(None)


def resource(name: str, namespace: str = "") -> pb.Resource:
    return pb.Resource(name=name, resource_namespace=namespace)


def message(body: bytes = b"x", topic: str = "t", message_id: str = "id-1", **system: Any) -> pb.Message:
    properties = system.pop("user_properties", {})
    system.setdefault("body_encoding", pb.Encoding.IDENTITY)
    system.setdefault("message_type", pb.MessageType.NORMAL)
    return pb.Message(
        topic=resource(topic),
        user_properties=properties,
        system_properties=pb.SystemProperties(message_id=message_id, **system),
        body=body,
    )


def receive_request(group: str = "g", topic: str = "t", **fields: Any) -> calls.ReceiveMessageRequest:
    fields.setdefault("batch_size", 32)
    request = calls.ReceiveMessageRequest(
        group=resource(group), message_queue=pb.MessageQueue(topic=resource(topic)), **fields
    )
    if not request.auto_renew and not request.HasField("invisible_duration"):
        request.invisible_duration.FromMilliseconds(30_000)
    return request


def ack_request(*messages: pb.Message, group: str = "g", topic: str = "t") -> calls.AckMessageRequest:
    entries = [
        calls.AckMessageEntry(
            message_id=m.system_properties.message_id, receipt_handle=m.system_properties.receipt_handle
        )
        for m in messages
    ]
    return calls.AckMessageRequest(group=resource(group), topic=resource(topic), entries=entries)
