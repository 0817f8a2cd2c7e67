"""Bare gRPC server for the yardsticks. It echoes requests or returns their total size.

Prints its port once it serves.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from dledger.infra.transport.channels import server_options

SERVICE = "bench.Echo"


async def _unary(request: bytes, context: Any) -> bytes:
    return request


async def _stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _sink(requests: AsyncIterator[bytes], context: Any) -> bytes:
    taken = 0
    async for request in requests:
        taken += len(request)
    return b"%d" % taken


async def serve() -> None:
    server = grpc.aio.server(options=server_options())
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
        "Sink": grpc.stream_unary_rpc_method_handler(_sink),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.freeze()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
