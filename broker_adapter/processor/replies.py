"""SEND_REPLY_MESSAGE: the answer to a message goes to the producer that waits for it, and is not stored.

A producer says in its heartbeats to every node who it is, and puts that into its message; whoever consumes
that sends the answer to any node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from broker_adapter.errors import AnswerMissing, IllegalMessage, RemotingRefused, ResponseCode, Status
from broker_adapter.format.properties import PropertiesText
from broker_adapter.processor import fields as read
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection

#: Of a message that is a request: the client that waits for the answer.
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
_REPLY_TOPIC = "REPLY_TOPIC"
_PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
#: The sender of an answer waits for 3 s.
_PUSH_S = 2.0
_TOLD = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
)


def reply_topic(cluster: str) -> str:
    """Answers name it: only its route is of use."""
    return f"{cluster}_{_REPLY_TOPIC}"


class ReplyProcessor:
    """`clients`: of this node; `address`: host:port of this node, as clients know it."""

    def __init__(self, clients: RemotingClients, address: str) -> None:
        self._clients = clients
        self._address = address

    def knows(self, request: RemotingRequest) -> bool:
        """Whether the one who waits is connected here. IllegalMessage (PROPERTIES_INVALID) if the request
        names none."""
        return bool(self._clients.connections(_client_id(request.fields)))

    async def reply(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """RemotingRefused (CLIENT_NOT_CONNECTED) if the one who waits is not connected here, or does not
        take it."""
        fields = request.fields
        client_id = _client_id(fields)
        told = {name: fields[name] for name in _TOLD if name in fields}
        told["bornHost"], told["storeHost"] = context.remote, self._address
        told["storeTimestamp"] = str(time.time_ns() // 1_000_000)
        pushes = [
            _is_taken(connection, RemotingCommand(_PUSH, dict(told), request.command.body))
            for connection in self._clients.connections(client_id)
        ]
        if not any(await asyncio.gather(*pushes)):
            text = f"push reply message fail, channel of <{client_id[:255]}> not found"
            raise RemotingRefused(Status.CLIENT_NOT_CONNECTED, text)
        answer = {"msgId": "0", "queueId": str(max(0, read.number(fields, "queueId", 0))), "queueOffset": "0"}
        return request.command.answer(ResponseCode.SUCCESS, fields=answer)


async def _is_taken(connection: RemotingConnection, command: RemotingCommand) -> bool:
    try:
        answer = await connection.invoke(command, _PUSH_S)
    except AnswerMissing:
        return False
    return answer.code == ResponseCode.SUCCESS


def _client_id(fields: Mapping[str, str]) -> str:
    client_id = PropertiesText(read.text(fields, "properties", "")).get(REPLY_TO_CLIENT)
    if not client_id:
        text = f"reply message properties[{REPLY_TO_CLIENT}] is null"
        raise IllegalMessage(Status.PROPERTIES_INVALID, text)
    return client_id
