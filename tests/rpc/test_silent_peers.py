"""A peer that stops answering without closing its connection: noticed by pings, long before gRPC's minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from dledger.infra.transport.channels import KEEPALIVE_TIME_MS, PING_TIMEOUT_MS, new_server, open_channel

#: gRPC's own limit of a ping, after which this would pass in any case, is 60 s.
_FAR_LESS_S = 30.0


class Proxy:
    """Passes bytes on in both directions, until it is told to fall silent."""

    def __init__(self, to_port: int) -> None:
        self.silent = False
        self.port = 0
        self._to_port = to_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers += [writer, to_writer]
        for source, target in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(self._pass(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if not self.silent:
                target.write(data)
                await target.drain()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """/t/Echo: a stream that gives back what it gets."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def echo(
            requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request

        return grpc.stream_stream_rpc_method_handler(echo)


@asynccontextmanager
async def proxied_echo() -> AsyncIterator[Proxy]:
    server = new_server()
    server.add_generic_rpc_handlers((Echo(),))
    proxy = Proxy(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    listener = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.close()
        await server.stop(0)


async def test_a_stream_to_a_peer_that_falls_silent_breaks() -> None:
    assert KEEPALIVE_TIME_MS + PING_TIMEOUT_MS < 1000 * _FAR_LESS_S
    async with proxied_echo() as proxy, open_channel(f"127.0.0.1:{proxy.port}") as channel:
        call = channel.stream_stream("/t/Echo")()
        await call.write(b"a")
        assert await call.read() == b"a"
        proxy.silent = True
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            async with asyncio.timeout(_FAR_LESS_S):
                await call.read()
        assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
