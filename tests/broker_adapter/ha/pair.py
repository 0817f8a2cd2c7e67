"""A master and slaves in the test's own process, over real sockets, and connections that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from broker_adapter.log.classic.ha.client import HaClient
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.ha.log import CopiedLog, ShippedLog
from broker_adapter.log.classic.ha.options import HaClientOptions, Handshake, HaOptions
from broker_adapter.log.classic.ha.service import HaService
from dledger.rpc.cluster_secret import ClusterSecret

MASTER = HaIdentity("main", "a", 0)
SECRET = ClusterSecret([b"s" * 32])
#: Nothing waits for time, but for what ends a connection that says nothing.
QUICK = HaClientOptions(retry_first_s=0.001, retry_most_s=0.001, heartbeat_s=0.05)


def slave(broker_id: int = 1) -> HaIdentity:
    return MASTER._replace(broker_id=broker_id)


@asynccontextmanager
async def master(log: ShippedLog, options: HaOptions | None = None, **more: Any) -> AsyncIterator[HaService]:
    service = HaService(log, options, own=more.pop("own", MASTER), **more)
    await service.start("127.0.0.1:0")
    try:
        yield service
    finally:
        await service.stop()


@asynccontextmanager
async def following(
    log: CopiedLog,
    address: str | None,
    *,
    handshake: Handshake = Handshake.OFF,
    options: HaClientOptions = QUICK,
    own: HaIdentity | None = None,
    **more: Any,
) -> AsyncIterator[HaClient]:
    client = HaClient(log, replace(options, handshake=handshake), own=own or slave(), **more)
    client.set_master(address)
    client.start()
    try:
        yield client
    finally:
        await client.stop()


class Wire:
    """Between slaves and their master: `cut_after` so many bytes to a slave, of each connection."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.connections = 0
        self.cut_after: Callable[[int], int | None] = lambda number: None
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cut_after(self.connections)
        self.connections += 1
        host, _, port = self.target.rpartition(":")
        with suppress(OSError):
            back_reader, back_writer = await asyncio.open_connection(host, int(port))
            ends = {writer, back_writer}
            self._writers |= ends
            reports = asyncio.ensure_future(_pump(reader, back_writer, None))
            try:
                await _pump(back_reader, writer, left)
            finally:
                reports.cancel()
                for end in ends:
                    end.transport.abort()
                self._writers -= ends
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
    with suppress(OSError):
        while left != 0:
            data = await reader.read(1 << 16 if left is None else left)
            if not data:
                return
            left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()
        writer.close()  # so that the last byte comes
        await writer.wait_closed()


def address_of(server: asyncio.Server) -> str:
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def wire(target: str) -> AsyncIterator[Wire]:
    one = Wire(target)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.address = address_of(server)
    try:
        yield one
    finally:
        server.close()
        one.cut()


@asynccontextmanager
async def scripted(
    script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A master as a test has it; its address."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await script(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield address_of(server)
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def plain(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A slave as a test has it."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
