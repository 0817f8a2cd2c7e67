"""How many messages and properties a send has, before protobuf makes objects of them.

Properties are a map, which protobuf fills entry by entry: 4 MiB of small ones hold the event loop a second.
The shape has them as bytes in a list, read in milliseconds (`proto/apache/rocketmq/v2/shape.proto`).
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from broker_adapter.proxy.messages.message_in import MAX_PROPERTIES
from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.v2 import shape_pb2 as shapes

#: What is smaller is read faster than looked at.
_LARGE_BYTES: Final = 64 << 10
#: Whatever the settings allow. A message that can be stored has a topic, an id and a body.
MAX_MESSAGES: Final = 65_536


def check_send_shape(request: bytes) -> None:
    """Rejected for more than any limit allows."""
    if len(request) < _LARGE_BYTES:
        return
    try:
        messages = shapes.SendMessageShape.FromString(request).messages
        if len(messages) > MAX_MESSAGES:
            text = f"{len(messages)} messages in a request; more than {MAX_MESSAGES} are never allowed"
            raise Rejected(Code.BAD_REQUEST, text)
        most = max((_properties(message) for message in messages), default=0)
    except DecodeError as error:
        raise Rejected(Code.BAD_REQUEST, "the bytes are no message of this protocol") from error
    if most > MAX_PROPERTIES:
        text = f"{most} properties, more than {MAX_PROPERTIES}"
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)


def _properties(message: bytes) -> int:
    """Entries as they came: of those with one name the last one counts for protobuf, and all of them here."""
    return len(shapes.MessageShape.FromString(message).user_properties)
