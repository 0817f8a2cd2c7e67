"""Servers and connections to try links with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from chaos.network.links import Links


@asynccontextmanager
async def echo_server() -> AsyncIterator[str]:
    """Answers with what it is sent; its address."""
    open_now: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            open_now.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in list(open_now):
            writer.close()


class Caller:
    """One connection from a to b."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, text: bytes) -> bytes:
        self.writer.write(text)
        return await self.reader.readexactly(len(text))

    async def is_reset(self) -> bool:
        """Wait until the connection ends; whether by a reset."""
        try:
            return await self.reader.read(1) == b"unexpected"
        except ConnectionResetError:
            return True


@asynccontextmanager
async def linked() -> AsyncIterator[Links]:
    """Two nodes, a and b, which both are echo servers, and the links between them."""
    async with (
        echo_server() as a,
        echo_server() as b,
        Links(["a", "b"], {"a": a, "b": b}, Random(7)) as links,
    ):
        yield links


@asynccontextmanager
async def call(links: Links, source: str = "a", target: str = "b") -> AsyncIterator[Caller]:
    host, _, port = links.addresses_of(source)[target].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()
