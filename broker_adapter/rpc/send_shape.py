"""Requests of sends, read only if they are small enough to be read.

Properties are a map, which protobuf fills entry by entry: 4 MiB of small ones hold the event loop a second.
The shape has them as bytes in a list, read in milliseconds (`proto/broker_adapter/v1/shape.proto`).
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from broker_adapter.rpc.limits import BrokerLimits
from broker_adapter.v1 import broker_pb2 as pb
from broker_adapter.v1 import shape_pb2 as shapes
from dledger.platform import LARGE_BYTES

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
    waiting, batches, properties = [(data, 1)], 1, 0
    while waiting:
        one, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise DecodeError("too many batches within each other")
        shape = shapes.SendShape.FromString(one)
        if len(shape.messages) > limits.max_batch_messages:
            messages = [pb.OutgoingMessage()] * (limits.max_batch_messages + 1)
            return pb.SendRequest(request_id=shape.request_id, messages=messages)
        counts = [_properties(message) for message in shape.messages]
        properties += sum(counts)
        if max(counts, default=0) > limits.max_properties or properties > limits.max_batch_properties:
            return _with_properties(shape.request_id, max(counts), limits)
        batches += len(shape.more)
        if batches > _MAX_BATCHES:
            raise DecodeError("too many batches in a request")
        waiting += [(more, depth + 1) for more in shape.more]
    return None


def _with_properties(request_id: int, most: int, limits: BrokerLimits) -> pb.SendRequest:
    """One that is refused for them. `most`: of a message of it."""
    most = min(most, limits.max_properties + 1)
    count = 1 if most > limits.max_properties else limits.max_batch_properties // most + 1
    message = pb.OutgoingMessage(properties={str(i): "" for i in range(most)})
    return pb.SendRequest(request_id=request_id, messages=[message] * count)


def _properties(message: bytes) -> int:
    """Entries as they came: of those with one name the last one counts for protobuf, and all of them here."""
    return len(shapes.OutgoingMessageShape.FromString(message).properties)
