"""Method handlers with deserializers that do not raise.

gRPC responds to invalid protobuf bytes with UNKNOWN and logs a traceback. With these deserializers the
servicer receives None instead of a message, and responds with an error code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from dledger.errors import Code, InvalidRequest
from dledger.infra.transport.field_count import has_too_many_fields

M = TypeVar("M", bound=Message)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

#: Details of a call or stream that ended without an error code in a response.
MALFORMED: Final = "the bytes are not a valid message of this protocol, or exceed its limits"


def malformed() -> InvalidRequest:
    return InvalidRequest(MALFORMED, code=Code.UNEXPECTED_ARGUMENT)


#: Limit per request: 20 ms of parsing. The largest are offsets of a group, 4,096 of five fields each.
_MAX_FIELDS: Final = 1 << 15
#: Default limit per request, for names, numbers and short lists. A call keeps its request while it waits, and
#: thousands may wait.
_MAX_BYTES: Final = 64 << 10
#: Limit of a request of gRPC's own services, which contains a name.
_MAX_NAME_BYTES: Final = 1 << 10


def parser(
    message_type: type[M], *, max_fields: int | None = _MAX_FIELDS, max_bytes: int | None = _MAX_BYTES
) -> Callable[[bytes], M | None]:
    """Return a deserializer that returns None if the bytes are invalid, longer than `max_bytes`, or have more
    than `max_fields` fields (None: the fields are already counted)."""
    from_string = message_type.FromString

    def parse(data: bytes) -> M | None:
        if max_bytes is not None and len(data) > max_bytes:
            return None
        if max_fields is not None and has_too_many_fields(message_type, data, max_fields):
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
    """Create a unary method. `parse`: as for `both_stream`."""
    return grpc.unary_unary_rpc_method_handler(behavior, parse or parser(request_type), serialize)


def server_stream(
    behavior: Callable[..., Any],
    request_type: type[Message],
    parse: Callable[[bytes], object] | None = None,
) -> Handler:
    """Create a method with a stream of responses. `parse`: as for `both_stream`."""
    return grpc.unary_stream_rpc_method_handler(behavior, parse or parser(request_type), serialize)


def both_stream(
    behavior: Callable[..., Any],
    request_type: type[Message],
    parse: Callable[[bytes], object] | None = None,
) -> Handler:
    """Create a method with two streams. `parse`: a custom deserializer, which returns None for invalid
    bytes."""
    return grpc.stream_stream_rpc_method_handler(behavior, parse or parser(request_type), serialize)


class _ChangedHandler(grpc.GenericRpcHandler):
    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler], change: Callable[[Any], Any]) -> None:
        self._handlers = handlers
        self._change = change
        self._methods: dict[str, Any] = {}  # those that exist

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method
        if name not in self._methods:
            candidates = (handler.service(handler_call_details) for handler in self._handlers)
            method: Any = next((candidate for candidate in candidates if candidate is not None), None)
            if method is None:
                return None
            self._methods[name] = self._change(method)
        return self._methods[name]


def changed(
    handlers: Sequence[grpc.GenericRpcHandler], change: Callable[[Any], Any]
) -> grpc.GenericRpcHandler:
    """Return one handler for all methods of `handlers`, each converted by `change`."""
    return _ChangedHandler(handlers, change)


def small_requests(handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
    """Limit the requests of gRPC's own health and reflection services. A watch keeps its service name in
    memory, and gRPC keeps the request bytes, regardless of their length. A call whose request is longer than
    any name ends with UNKNOWN."""

    def change(method: Any) -> Any:
        parse = method.request_deserializer

        def parse_small(data: bytes) -> Any:
            if len(data) > _MAX_NAME_BYTES:
                raise ValueError(
                    f"the request is {len(data)} bytes long; the limit is {_MAX_NAME_BYTES}"
                )  # ends the call
            return parse(data)

        return method._replace(request_deserializer=parse_small)

    return changed((handler,), change)


def service(name: str, methods: Mapping[str, Handler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, dict(methods))
