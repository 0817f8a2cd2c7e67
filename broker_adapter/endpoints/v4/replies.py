"""Processor for SEND_REPLY_MESSAGE, which passes the reply to the waiting producer without storing it.

The client id of a producer is in its heartbeats, which it sends to every node, and in a property of its
message. The consumer of the message sends the reply to any node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import AnswerMissing, IllegalMessage, RemotingRefused, ResponseCode, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.wire.properties import PropertiesText

#: The property of a request message that names the client waiting for the reply.
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
_PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
#: The sender of a reply waits 3 s.
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


class ReplyProcessor:
    """Delivers replies.

    `clients`: the clients of this node. `address` returns the host:port of this node, as clients know it.
    `now_ms`: cluster time.
    """

    def __init__(
        self, clients: RemotingClients, address: Callable[[], str], now_ms: Callable[[], int]
    ) -> None:
        self._clients = clients
        self._address = address
        self._now_ms = now_ms

    def knows(self, request: RemotingRequest) -> bool:
        """Return True if the waiting client is connected to this node.

        Raises IllegalMessage (PROPERTIES_INVALID) if the request does not name a client.
        """
        return bool(self._clients.connections(_client_id(request.fields)))

    async def reply(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Push the reply to the waiting client.

        Raises RemotingRefused (CLIENT_NOT_CONNECTED) if the client is not connected to this node or does not
        accept the reply.
        """
        fields = request.fields
        client_id = _client_id(fields)
        told = {name: fields[name] for name in _TOLD if name in fields}
        told["bornHost"], told["storeHost"] = context.remote, self._address()
        told["storeTimestamp"] = str(self._now_ms())
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
