"""A connection that sends nothing but pings is ended, and one that pings as our clients do is not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import grpc
import grpc.aio

from dledger.infra.transport.channels import MAX_PING_STRIKES, new_server
from tests.node.local import until
from tests.rpc.raw_http2 import RawClient, message


async def _echo(request: bytes, _: object) -> bytes:
    return request


async def test_a_flood_of_pings_ends_its_connection_and_answers_forgive_them() -> None:
    server = new_server()
    methods: dict[str, Any] = {"Unary": grpc.unary_unary_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = await RawClient.connect(f"127.0.0.1:{port}")
    try:
        for _ in range(3):  # more than may be in all, as each answer begins the row anew
            for _ in range(MAX_PING_STRIKES * 3 // 4):
                client.ping()
            stream = client.begin("/t.Echo/Unary")
            await client.send(stream, message(b"x"), end=True)
            await until(partial(client.ended.__contains__, stream))
        assert client.is_open
        for _ in range(2 * MAX_PING_STRIKES):
            client.ping()
        await until(lambda: not client.is_open)
    finally:
        await client.close()
        await asyncio.gather(server.stop(None), return_exceptions=True)
