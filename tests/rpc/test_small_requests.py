"""A call keeps its request as long as it waits: no method takes a large one that does not need it."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import MagicMock

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker_adapter.endpoints.forwarding.service import ForwardService
from dledger.infra.transport import handlers
from dledger.infra.transport.channels import open_channel
from dledger.infra.transport.host import GrpcHost
from dledger.rpc.serving import NodeGrpc
from dledger.v1 import admin_pb2, log_pb2

_MIB = 1 << 20


class _Call(NamedTuple):
    """What gRPC tells a handler of a call."""

    method: str
    invocation_metadata: Any = ()


def _largest(handler: grpc.GenericRpcHandler, path: str) -> int:
    """What a method takes (bytes), of powers of two."""
    method: Any = handler.service(_Call(path))  # type: ignore[arg-type]
    assert method is not None, path
    size = 1 << 10
    while size <= 4 * _MIB and method.request_deserializer(_request_of(size)) is not None:
        size *= 2
    return size // 2


def _request_of(size: int) -> bytes:
    """An unknown field: kept with all others."""
    tag_and_length = b"\xfa\x07" + bytes(
        ((size & 0x7F) | 0x80, ((size >> 7) & 0x7F) | 0x80, size >> 14 & 0x7F | 0x80, size >> 21)
    )
    return tag_and_length + bytes(size)


def _paths(service: ServiceDescriptor) -> list[str]:
    return [f"/{service.full_name}/{method.name}" for method in service.methods]


LARGE = {"Append", "AppendStream"}


def _may_take(path: str) -> int:
    return 4 * _MIB if path.rpartition("/")[2] in LARGE else 32 << 10


def test_what_a_node_passes_on_for_clients() -> None:
    service = ForwardService(MagicMock(), MagicMock(), MagicMock(), MagicMock(), is_writable=MagicMock())
    assert _largest(service.handler, "/dledger.broker.v1.ForwardService/Forward") == 4 * _MIB


@pytest.fixture(scope="module")
def of_node() -> list[grpc.GenericRpcHandler]:
    served = NodeGrpc(MagicMock(), MagicMock(), MagicMock())
    served._server = MagicMock()
    served.first_messages = MagicMock()
    found: list[grpc.GenericRpcHandler] = []
    served.first_messages.over = lambda *handlers: found.extend(handlers)
    served._add_services()
    return found


@pytest.mark.parametrize(
    "path",
    _paths(log_pb2.DESCRIPTOR.services_by_name["LogService"])
    + _paths(admin_pb2.DESCRIPTOR.services_by_name["AdminService"]),
)
def test_the_log(of_node: list[grpc.GenericRpcHandler], path: str) -> None:
    (handler,) = [one for one in of_node if one.service(_Call(path)) is not None]  # type: ignore[arg-type]
    assert _largest(handler, path) == _may_take(path)


@pytest.mark.parametrize("kind", [health_pb2.HealthCheckRequest, reflection_pb2.ServerReflectionRequest])
def test_services_of_grpcs_own_keep_no_long_names(kind: Any) -> None:
    methods = {"Watch": grpc.unary_stream_rpc_method_handler(MagicMock(), kind.FromString)}
    handler = handlers.small_requests(grpc.method_handlers_generic_handler("t", methods))
    parse: Any = handler.service(_Call("/t/Watch")).request_deserializer  # type: ignore[arg-type]
    short = b"\x0a\x03abc"
    assert parse(short) == kind.FromString(short)
    with pytest.raises(ValueError, match="1027 bytes"):
        parse(b"\x0a\x80\x08" + b"a" * 1024)
    assert handler.service(_Call("/t/Other")) is None  # type: ignore[arg-type]


async def test_a_watch_of_a_long_name_ends() -> None:
    host = GrpcHost({})
    await host.start("127.0.0.1:0")
    try:
        async with open_channel(host.address) as channel:
            call: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
            watch = call(health_pb2.HealthCheckRequest(service="a" * 2_000).SerializeToString())
            assert await watch.code() == grpc.StatusCode.UNKNOWN
            watch = call(health_pb2.HealthCheckRequest(service="a").SerializeToString())
            assert await watch.read() == b"\x08\x03"  # nothing that is known
    finally:
        await host.stop(0)
