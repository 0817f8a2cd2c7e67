"""Calls of a hostile client in the RocketMQ 5 protocol, valid enough for servers to process them."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from chaos.hostile.orders import PREFIX
from chaos.hostile.world import HostileWorld
from dledger.infra.transport.channels import open_channel

SERVICE_NAME = "apache.rocketmq.v2.MessagingService"
_TIMEOUT_S = 10.0
_ERRORS = 40_000


def headers(name: str) -> tuple[tuple[str, str], ...]:
    return (
        ("x-mq-client-id", f"{PREFIX}{name}"),
        ("x-mq-language", "JAVA"),
        ("x-mq-client-version", "5.0.7"),
    )


def _answer_of(method: str) -> Any:
    """Return the response type of a method."""
    return getattr(calls, f"{method}Response")


def resource(name: str) -> pb.Resource:
    return pb.Resource(name=name)


def filtered(expression: str) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.FilterType.SQL, expression=expression)


def receive_request(
    group: str,
    topic: str,
    *,
    filter_: pb.FilterExpression | None = None,
    invisible_s: int = 600,
    wait_s: int = 1,
    attempt: str | None = None,
) -> calls.ReceiveMessageRequest:
    return calls.ReceiveMessageRequest(
        group=resource(group),
        message_queue=pb.MessageQueue(topic=resource(topic), id=-1),
        filter_expression=filter_ or pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        batch_size=32,
        invisible_duration=Duration(seconds=invisible_s),
        long_polling_timeout=Duration(seconds=wait_s),
        attempt_id=attempt,
    )


def send_request(topic: str, message_id: str, body: bytes) -> calls.SendMessageRequest:
    properties = pb.SystemProperties(message_id=message_id, message_type=pb.MessageType.NORMAL)
    message = pb.Message(topic=resource(topic), system_properties=properties, body=body)
    return calls.SendMessageRequest(messages=[message])


class HostileCaller:
    """One client, connected to one node, as an async context manager. Calls raise AioRpcError."""

    def __init__(self, world: HostileWorld, name: str, address: str) -> None:
        self._world = world
        self._headers = headers(name)
        self._opened = open_channel(address)

    async def __aenter__(self) -> HostileCaller:
        self._channel = await self._opened.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)

    async def call(self, method: str, request: Message) -> Any:
        """Make a call and return the answer. An error status is counted by its code."""
        call: Any = self._channel.unary_unary(f"/{SERVICE_NAME}/{method}")
        raw = await call(request.SerializeToString(), metadata=self._headers, timeout=_TIMEOUT_S)
        answer = _answer_of(method).FromString(raw)
        self._note(answer.status)
        return answer

    async def stream(self, method: str, request: Message) -> list[pb.Message]:
        """Return the messages of a stream of answers."""
        call: Any = self._channel.unary_stream(f"/{SERVICE_NAME}/{method}")
        answering = call(request.SerializeToString(), metadata=self._headers, timeout=_TIMEOUT_S)
        messages: list[pb.Message] = []
        async for raw in answering:
            answer = _answer_of(method).FromString(raw)
            if answer.HasField("message"):
                messages.append(answer.message)
            elif answer.HasField("status"):
                self._note(answer.status)
        return messages

    async def talk(self, settings: pb.Settings) -> None:
        """Open a telemetry stream with these settings and wait until the server closes it."""
        call: Any = self._channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")(metadata=self._headers)
        await call.write(calls.TelemetryCommand(settings=settings).SerializeToString())
        self._world.count("settings")
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await call.read()
        if isinstance(answer, bytes):
            command = calls.TelemetryCommand.FromString(answer)
            if command.HasField("settings"):
                self._world.count("streams")
            else:
                self._note(command.status)
        while isinstance(await call.read(), bytes):
            pass
        self._world.refused((await call.code()).name)

    def _note(self, status: pb.Status) -> None:
        if status.code == pb.Code.MESSAGE_NOT_FOUND:
            self._world.count("answered")
            self._world.count("empty")
        elif status.code >= _ERRORS:
            self._world.refused(int(status.code))
        else:
            self._world.count("answered")
