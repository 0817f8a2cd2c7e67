"""RocketMQ's request-reply: messages whose producer waits for a reply."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from broker_adapter.client.core.requests import MESSAGE_TYPE, REPLY
from broker_adapter.client.core.values import Message, MessageExt, decode_reply
from broker_adapter.errors import BrokerError, IllegalMessage, ResponseCode, Status
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.wire.properties import split_properties

CORRELATION_ID, REPLY_TO_CLIENT, TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
_CLUSTER = "CLUSTER"


def reply_to(request: MessageExt, body: bytes) -> Message:
    """Return the reply to a message, which any producer may send (MessageUtil.createReplyMessage).

    Raises IllegalMessage (PROPERTIES_INVALID) if the message does not expect a reply.
    """
    properties_in = request.properties
    if missing := {CORRELATION_ID, REPLY_TO_CLIENT, _CLUSTER} - properties_in.keys():
        raise IllegalMessage(
            Status.PROPERTIES_INVALID, f"the message is not a request: it lacks {sorted(missing)}"
        )
    properties = {
        name: properties_in[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in properties_in
    }
    return Message(
        f"{properties_in[_CLUSTER]}_REPLY_TOPIC", body, properties={MESSAGE_TYPE: REPLY, **properties}
    )


class PendingRequests:
    """The pending requests of one producer, for one event loop."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[MessageExt]] = {}

    @contextmanager
    def new_request(self) -> Iterator[tuple[str, asyncio.Future[MessageExt]]]:
        """Register a request for the duration of the block. Yields its correlation id and the future of the
        reply.
        """
        correlation_id = secrets.token_hex(16)
        answer = asyncio.get_running_loop().create_future()
        self._pending[correlation_id] = answer
        try:
            yield correlation_id, answer
        finally:
            del self._pending[correlation_id]

    async def answered(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Handle a reply that a broker has passed on.

        Drops the reply if no request is pending for it, as the Java client does.
        """
        properties = split_properties(request.fields.get("properties", ""))
        answer = self._pending.get(properties.get(CORRELATION_ID, ""))
        if answer is not None and not answer.done():
            try:
                answer.set_result(decode_reply(request))
            except BrokerError as error:  # the requester must not wait for another reply
                answer.set_exception(error)
        return request.answer(ResponseCode.SUCCESS)
