"""Calls to the nodes of a cluster as clients make them, with nothing of ours around gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from broker_adapter.endpoints.v5.messages.methods import METHODS, SERVICE_NAME
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.transport.channels import ChannelSecurity, open_channel
from tests.broker_adapter.v5.world import HEADERS, message, receive_request

DEADLINE_S = 3.0


class NodeCalls:
    """One client's channel to one node."""

    def __init__(self, channel: Any, headers: Mapping[str, str]) -> None:
        self._channel = channel
        self._metadata = tuple(headers.items())

    async def call(self, method: str, request: Any, timeout: float = DEADLINE_S) -> Any:
        unary = self._channel.unary_unary(f"/{SERVICE_NAME}/{method}")
        answer = await unary(request.SerializeToString(), metadata=self._metadata, timeout=timeout)
        return METHODS[method].answer.FromString(answer)

    def stream(self, method: str, request: Any, timeout: float = 10.0) -> Any:
        found = self._channel.unary_stream(
            f"/{SERVICE_NAME}/{method}", response_deserializer=METHODS[method].answer.FromString
        )
        return found(request.SerializeToString(), metadata=self._metadata, timeout=timeout)

    def telemetry(self) -> Any:
        found = self._channel.stream_stream(
            f"/{SERVICE_NAME}/Telemetry",
            request_serializer=calls.TelemetryCommand.SerializeToString,
            response_deserializer=calls.TelemetryCommand.FromString,
        )
        return found(metadata=self._metadata)

    async def send(
        self, message_id: str, topic: str = "t", timeout: float = DEADLINE_S, **more: Any
    ) -> calls.SendMessageResponse:
        request = calls.SendMessageRequest(
            messages=[message(message_id.encode(), topic, message_id=message_id, **more)]
        )
        answer: calls.SendMessageResponse = await self.call("SendMessage", request, timeout)
        return answer

    async def receive(self, group: str = "g", topic: str = "t", **fields: Any) -> list[pb.Message]:
        fields.setdefault("long_polling_timeout", {"seconds": 15})  # queues are built behind the log
        answers = self.stream("ReceiveMessage", receive_request(group, topic, **fields))
        return [answer.message async for answer in answers if answer.HasField("message")]


@asynccontextmanager
async def client_of(
    address: str,
    headers: Mapping[str, str] = HEADERS,
    security: ChannelSecurity | None = None,
) -> AsyncIterator[NodeCalls]:
    async with open_channel(address, security) as channel:
        yield NodeCalls(channel, headers)
