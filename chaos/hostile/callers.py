"""Calls of the protocol of RocketMQ 5, as a hostile client makes them: valid where it matters."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls
from chaos.hostile.orders import PREFIX
from chaos.hostile.world import World
from dledger.platform import open_channel

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
    """The type of the answers of a method."""
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


class Caller:
    """One client, connected to one node. Use it by `async with`; AioRpcError if a call does not end well."""

    def __init__(self, world: World, name: str, address: str) -> None:
        self._world = world
        self._headers = headers(name)
        self._opened = open_channel(address)

    async def __aenter__(self) -> Caller:
        self._channel = await self._opened.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)

    async def call(self, method: str, request: Message) -> Any:
        """The answer; a status that says no is counted by its number."""
        call: Any = self._channel.unary_unary(f"/{SERVICE_NAME}/{method}")
        raw = await call(request.SerializeToString(), metadata=self._headers, timeout=_TIMEOUT_S)
        answer = _answer_of(method).FromString(raw)
        self._note(answer.status)
        return answer

    async def stream(self, method: str, request: Message) -> list[pb.Message]:
        """The messages of a stream of answers."""
        call: Any = self._channel.unary_stream(f"/{SERVICE_NAME}/{method}")
        answering = call(request.SerializeToString(), metadata=self._headers, timeout=_TIMEOUT_S)
        found: list[pb.Message] = []
        async for raw in answering:
            answer = _answer_of(method).FromString(raw)
            if answer.HasField("message"):
                found.append(answer.message)
            elif answer.HasField("status"):
                self._note(answer.status)
        return found

    async def talk(self, settings: pb.Settings) -> None:
        """A telemetry stream with these settings, until the server ends it."""
        call: Any = self._channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")(metadata=self._headers)
        await call.write(calls.TelemetryCommand(settings=settings).SerializeToString())
        self._world.count("settings")
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await call.read()
        if isinstance(answer, bytes):
            told = calls.TelemetryCommand.FromString(answer)
            if told.HasField("settings"):
                self._world.count("streams")
            else:
                self._note(told.status)
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
