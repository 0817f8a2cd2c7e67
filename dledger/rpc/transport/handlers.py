"""Method handlers whose deserializers do not throw.

gRPC answers bytes that are no protobuf with a bare UNKNOWN and a stack trace in the log. Here the servicer
gets None instead of a message, and answers with a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from dledger.errors import Code, InvalidRequest
from dledger.rpc.transport.field_count import has_too_many_fields

M = TypeVar("M", bound=Message)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

#: Why a stream or call ends that was not answered with a number: the client sees this as gRPC details.
MALFORMED: Final = "the bytes are no message of this protocol, or more than one has"


def malformed() -> InvalidRequest:
    return InvalidRequest(MALFORMED, code=Code.UNEXPECTED_ARGUMENT)


#: Of one request: 20 ms to parse them. The largest are offsets of a group, 4,096 of five fields each.
_MOST_FIELDS: Final = 1 << 15
#: Of one request, unless its method says otherwise: names, numbers, short lists. A call keeps its request as
#: long as it waits, and thousands may.
_MOST_BYTES: Final = 64 << 10
#: Of a request of gRPC's own services: a name.
_MOST_NAME_BYTES: Final = 1 << 10


def parser(
    message_type: type[M], *, most_fields: int | None = _MOST_FIELDS, most_bytes: int | None = _MOST_BYTES
) -> Callable[[bytes], M | None]:
    """Bytes to a message; None: they are none, or more than `most_bytes`, or one of more fields than
    `most_fields` (None: somebody has counted them)."""
    from_string = message_type.FromString

    def parse(data: bytes) -> M | None:
        if most_bytes is not None and len(data) > most_bytes:
            return None
        if most_fields is not None and has_too_many_fields(message_type, data, most_fields):
            return None
        try:
            return from_string(data)
        except DecodeError:
            return None

    return parse


def serialize(message: Message) -> bytes:
    return message.SerializeToString()


def unary(
    behavior: Callable[..., Any],
    request_type: type[Message],
    parse: Callable[[bytes], object] | None = None,
) -> Handler:
    """`parse`: as for `both_stream`."""
    return grpc.unary_unary_rpc_method_handler(behavior, parse or parser(request_type), serialize)


def server_stream(
    behavior: Callable[..., Any],
    request_type: type[Message],
    parse: Callable[[bytes], object] | None = None,
) -> Handler:
    """`parse`: as for `both_stream`."""
    return grpc.unary_stream_rpc_method_handler(behavior, parse or parser(request_type), serialize)


def both_stream(
    behavior: Callable[..., Any],
    request_type: type[Message],
    parse: Callable[[bytes], object] | None = None,
) -> Handler:
    """`parse`: a deserialiser of its own, which gives None for what is no message."""
    return grpc.stream_stream_rpc_method_handler(behavior, parse or parser(request_type), serialize)


class _SmallRequests(grpc.GenericRpcHandler):
    def __init__(self, handler: grpc.GenericRpcHandler) -> None:
        self._handler = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        found: Any = self._handler.service(handler_call_details)
        if found is None:
            return None
        parse = found.request_deserializer

        def parse_small(data: bytes) -> Any:
            if len(data) > _MOST_NAME_BYTES:
                raise ValueError(f"a request of {len(data)} bytes")  # which ends the call
            return parse(data)

        return found._replace(request_deserializer=parse_small)


def small_requests(handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
    """Health and reflection, of gRPC's own: a watch keeps the name that it watches, however long that is, and
    gRPC the bytes of it. A call with what is too long for a name ends with UNKNOWN."""
    return _SmallRequests(handler)


def service(name: str, methods: Mapping[str, Handler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, dict(methods))
