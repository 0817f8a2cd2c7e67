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
MALFORMED: Final = "the bytes are no message of this protocol"


def malformed() -> InvalidRequest:
    return InvalidRequest(MALFORMED, code=Code.UNEXPECTED_ARGUMENT)


#: Of one request: 20 ms to parse them. The largest are offsets of a group, 4,096 of five fields each.
_MOST_FIELDS: Final = 1 << 15


def parser(message_type: type[M], *, most_fields: int | None = _MOST_FIELDS) -> Callable[[bytes], M | None]:
    """Bytes to a message; None: they are none, or one of more fields than `most_fields` (None: somebody has
    counted them)."""
    from_string = message_type.FromString

    def parse(data: bytes) -> M | None:
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


def service(name: str, methods: Mapping[str, Handler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, dict(methods))
