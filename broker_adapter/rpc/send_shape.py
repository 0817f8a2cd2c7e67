"""Requests of sends, read only if they are small enough to be read.

Properties are a map, which protobuf fills entry by entry: 4 MiB of small ones hold the event loop a second.
The shape has them as bytes in a list, read in milliseconds (`proto/broker_adapter/v1/shape.proto`).
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from broker_adapter.rpc.calls import LARGE_BYTES
from broker_adapter.rpc.limits import BrokerLimits
from broker_adapter.v1 import broker_pb2 as pb
from broker_adapter.v1 import shape_pb2 as shapes

#: As deep as protobuf itself reads messages within each other.
_MAX_DEPTH = 100
#: A client puts no more into one request than it may have unanswered.
_MAX_BATCHES = 4_096


def send_request_of(data: bytes, limits: BrokerLimits) -> pb.SendRequest | None:
    """None for what is no request. One with too many messages or properties comes with just as many of them
    as are one too many, so that it is refused with its number."""
    try:
        if len(data) >= LARGE_BYTES and (excess := _excess(data, limits)) is not None:
            return excess
        return pb.SendRequest.FromString(data)
    except DecodeError:
        return None


def _excess(data: bytes, limits: BrokerLimits) -> pb.SendRequest | None:
    """DecodeError."""
    waiting, batches = [(data, 1)], 1
    while waiting:
        one, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise DecodeError("too many batches within each other")
        shape = shapes.SendShape.FromString(one)
        if len(shape.messages) > limits.max_batch_messages:
            messages = [pb.OutgoingMessage()] * (limits.max_batch_messages + 1)
            return pb.SendRequest(request_id=shape.request_id, messages=messages)
        if any(_properties(message) > limits.max_properties for message in shape.messages):
            properties = {str(i): "" for i in range(limits.max_properties + 1)}
            return pb.SendRequest(
                request_id=shape.request_id, messages=[pb.OutgoingMessage(properties=properties)]
            )
        batches += len(shape.more)
        if batches > _MAX_BATCHES:
            raise DecodeError("too many batches in a request")
        waiting += [(more, depth + 1) for more in shape.more]
    return None


def _properties(message: bytes) -> int:
    """Entries as they came: of those with one name the last one counts for protobuf, and all of them here."""
    return len(shapes.OutgoingMessageShape.FromString(message).properties)
