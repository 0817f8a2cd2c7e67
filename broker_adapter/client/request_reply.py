"""Requests that wait for an answer: RocketMQ's request-reply."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from broker_adapter.client.core.requests import MESSAGE_TYPE, REPLY
from broker_adapter.client.core.values import Message, MessageExt, decode_reply
from broker_adapter.errors import IllegalMessage, ResponseCode, Status
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection

CORRELATION_ID, REPLY_TO_CLIENT, TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
_CLUSTER = "CLUSTER"


def reply_to(request: MessageExt, body: bytes) -> Message:
    """The answer to a message, to be sent by any producer (MessageUtil.createReplyMessage). IllegalMessage
    (PROPERTIES_INVALID) if nobody waits for one."""
    found = request.properties
    if missing := {CORRELATION_ID, REPLY_TO_CLIENT, _CLUSTER} - found.keys():
        raise IllegalMessage(Status.PROPERTIES_INVALID, f"no request: it lacks {sorted(missing)}")
    properties = {name: found[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in found}
    return Message(f"{found[_CLUSTER]}_REPLY_TOPIC", body, properties={MESSAGE_TYPE: REPLY, **properties})


class PendingRequests:
    """Those of one producer. On one event loop."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[MessageExt]] = {}

    @contextmanager
    def one(self) -> Iterator[tuple[str, asyncio.Future[MessageExt]]]:
        """Its correlation id, and its answer: waited for inside."""
        correlation_id = secrets.token_hex(16)
        answer = asyncio.get_running_loop().create_future()
        self._pending[correlation_id] = answer
        try:
            yield correlation_id, answer
        finally:
            del self._pending[correlation_id]

    async def answered(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """A broker passes an answer on. One that nobody waits for any more is dropped, as in Java."""
        reply = decode_reply(request)
        answer = self._pending.get(reply.properties.get(CORRELATION_ID, ""))
        if answer is not None and not answer.done():
            answer.set_result(reply)
        return request.answer(ResponseCode.SUCCESS)
