"""No server reads a compressed request: 4 KiB of it may be a message of 4 MiB."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.infra.transport.channels import channel_options, new_server


async def _read(compression: grpc.Compression | None, method: str) -> tuple[bool, int]:
    """Whether a call with 1 MiB of zeros succeeds, and how many requests the server has read."""
    read = 0

    async def unary(_request: bytes, _: object) -> bytes:
        nonlocal read
        read += 1
        return b""

    async def stream(requests: Any, _: object) -> bytes:
        nonlocal read
        async for _request in requests:
            read += 1
        return b""

    server = new_server()
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_unary_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Taker", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
            if method == "Unary":
                call: Any = channel.unary_unary("/t.Taker/Unary")(bytes(1 << 20), compression=compression)
            else:
                call = channel.stream_unary("/t.Taker/Stream")(
                    iter([bytes(1 << 20)]), compression=compression
                )
            return await call.code() == grpc.StatusCode.OK, read
    finally:
        await server.stop(None)


@pytest.mark.parametrize("method", ["Unary", "Stream"])
@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_request_is_refused_unread(compression: grpc.Compression, method: str) -> None:
    assert await _read(compression, method) == (False, 0)


@pytest.mark.parametrize("method", ["Unary", "Stream"])
@pytest.mark.parametrize("compression", [None, grpc.Compression.NoCompression])
async def test_others_are_read(compression: grpc.Compression | None, method: str) -> None:
    assert await _read(compression, method) == (True, 1)
