"""Which calls may be sent again when nobody knows what became of them."""

from __future__ import annotations

from broker_adapter.proxy.messages.methods import SEND_MESSAGE
from broker_adapter.proxy.messages.rejected import Rejected
from broker_adapter.proxy.messages.request import Request
from broker_adapter.proxy.v2 import service_pb2 as calls

#: Done twice they change nothing more than done once, or what they leave behind ends (a receive).
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


def is_repeatable(request: Request) -> bool:
    """A send is, if each of its messages has an id: under that it is stored once."""
    if request.name != SEND_MESSAGE:
        return request.name in _REPEATABLE
    try:
        send = request.parsed()
    except Rejected:
        return False
    assert isinstance(send, calls.SendMessageRequest)
    return all(message.system_properties.message_id for message in send.messages)
