"""Which calls may be sent again when nobody knows what became of them."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from broker_adapter.proxy.messages.methods import SEND_MESSAGE
from broker_adapter.proxy.v2 import service_pb2 as calls

#: Done twice they change nothing more than done once, or what they leave behind ends by itself (a receive).
_REPEATABLE = frozenset(
    {
        "QueryRoute",
        "QueryAssignment",
        "Heartbeat",
        "NotifyClientTermination",
        "ReceiveMessage",
        "AckMessage",
        "PullMessage",
        "UpdateOffset",
        "GetOffset",
        "QueryOffset",
        "EndTransaction",
        "SyncLiteSubscription",
    }
)


def is_repeatable(method: str, request: bytes) -> bool:
    """A send is, if each of its messages has an id: under that it is stored once."""
    if method != SEND_MESSAGE:
        return method in _REPEATABLE
    try:
        messages = calls.SendMessageRequest.FromString(request).messages
    except DecodeError:
        return False
    return all(message.system_properties.message_id for message in messages)
