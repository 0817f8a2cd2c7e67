"""Abuse below the level of calls: idle connections, incomplete requests, and invalid bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from chaos.hostile import wire
from chaos.hostile.callers import SERVICE_NAME, headers, receive_request
from chaos.hostile.orders import PREFIX
from chaos.hostile.world import HostileWorld
from dledger.infra.transport.channels import open_channel
from dledger.v1 import log_pb2 as log

#: A ClientHello that is shorter than the length in its record header.
_HALF_TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(32))
#: Openings of flood connections: none, half an HTTP/2 preface, half a TLS handshake, a complete HTTP/2
#: opening.
_OPENINGS = (b"", wire.PREFACE[:11], _HALF_TLS, wire.PREFACE + wire.settings())
_HTTP_HEAD = b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-More: "
_CALLS_OF_A_CONNECTION = 20
_HALF_BYTES, _CLAIMED_BYTES = 16 << 10, 4 << 20
_DRIP_S = 1.0
_PATIENCE_S = 2.0
#: Methods that change nothing even if a garbage request parses.
_METHODS = (
    "/dledger.v1.LogService/Append",
    "/dledger.v1.LogService/ReadStream",
    "/dledger.v1.PeerService/Vote",
    "/dledger.v1.PeerService/Heartbeat",
    "/dledger.v1.PeerService/Fetch",
    *(f"/{SERVICE_NAME}/{name}" for name in ("SendMessage", "ReceiveMessage", "AckMessage", "Heartbeat")),
    *(f"/{SERVICE_NAME}/{name}" for name in ("PullMessage", "QueryRoute")),
    "/dledger.v1.NoService/Nothing",
)


async def connection_floods(world: HostileWorld) -> None:
    """Open many connections from one address that then stall, on each port in rotation."""
    is_open: set[int] = set()

    async def once(number: int) -> None:
        address = world.orders.ports[number % len(world.orders.ports)]
        reader, writer = await wire.connect(address)
        try:
            world.count("accepted")
            is_open.add(number)
            world.count_most("open", len(is_open))
            writer.write(world.rng.choice(_OPENINGS))
            while await reader.read(4096):
                pass
            world.count("closed")
        finally:
            is_open.discard(number)
            writer.close()

    await world.repeat(once)


async def exhausted_descriptors(world: HostileWorld) -> None:
    """Open as many HTTP/2 connections as a port accepts, answer pings and never make a call. No timeout
    closes them."""
    is_open: set[int] = set()

    async def once(number: int) -> None:
        addresses = world.orders.addresses
        async with wire.Http2(addresses[number % len(addresses)]) as connection:
            world.count("accepted")
            try:
                await connection.next_frame()
                world.count("handshakes")
                is_open.add(number)
                while True:
                    world.count_most("open", len(is_open))
                    await connection.next_frame()
            finally:
                world.count("closed")
                is_open.discard(number)

    await world.repeat(once)


async def half_requests(world: HostileWorld) -> None:
    """Send HTTP requests byte by byte, and gRPC calls whose message never ends."""

    async def http(address: str) -> None:
        reader, writer = await wire.connect(address)
        try:
            writer.write(_HTTP_HEAD)
            await writer.drain()
            world.count("half_http")
            closing = asyncio.ensure_future(reader.read(1))
            while not closing.done():
                writer.write(b"x")
                await asyncio.wait([closing], timeout=_DRIP_S)
            world.count("closed")
        finally:
            writer.close()

    async def calls(address: str) -> None:
        async with wire.Http2(address) as connection:
            half = wire.message(b"\0" * _HALF_BYTES, claimed=_CLAIMED_BYTES)
            path = f"/{SERVICE_NAME}/SendMessage" if world.orders.namesrv else "/dledger.v1.LogService/Append"
            await connection.next_frame()
            with suppress(TimeoutError):
                # The number of calls that fit in the flow-control window of a connection, which is 64 KiB at
                # the start.
                async with asyncio.timeout(_PATIENCE_S):
                    for _ in range(_CALLS_OF_A_CONNECTION):
                        await connection.call(path, headers("half"), half, ended=False)
                        world.count("half_calls")
            while True:
                kind, _, _ = await connection.next_frame()
                world.count("ended_calls", kind == wire.HEADERS)

    async def once(number: int) -> None:
        if number % 2:
            await http(world.orders.http[number // 2 % len(world.orders.http)])
        else:
            await calls(world.orders.addresses[number // 2 % len(world.orders.addresses)])

    await world.repeat(once)


async def unread_streams(world: HostileWorld) -> None:
    """Open response streams, read one byte of each, and then stop reading."""

    def requests(number: int) -> tuple[str, str, bytes]:
        """Return address, path and request."""
        orders = world.orders
        address = orders.addresses[number % len(orders.addresses)]
        if not orders.namesrv or number % 8 in (0, 2, 4):
            request = log.ReadRequest(group=orders.group, follow=True, mode=log.READ_MODE_LOCAL)
            return address, "/dledger.v1.LogService/ReadStream", request.SerializeToString()
        receive = receive_request(f"{PREFIX}unread", world.rng.choice(orders.topics))
        return address, f"/{SERVICE_NAME}/ReceiveMessage", receive.SerializeToString()

    async def once(number: int) -> None:
        address, path, request = requests(number)
        async with wire.Http2(address, window=1) as connection:
            await connection.call(path, headers(f"unread-{number}"), wire.message(request))
            world.count("streams")
            has_started = False
            while True:
                kind, _, payload = await connection.next_frame()
                if kind == wire.DATA and payload and not has_started:
                    world.count("unread")
                    has_started = True
                if kind == wire.RST_STREAM or (kind == wire.HEADERS and has_started):
                    world.count("ended")
                    return

    await world.repeat(once)


async def garbage(world: HostileWorld) -> None:
    """Send random bytes, bytes of the wrong protocol, and requests that cannot be parsed."""

    def nonsense() -> bytes:
        rng = world.rng
        settled = wire.PREFACE + wire.settings()
        return rng.choice(
            (
                rng.randbytes(rng.randint(1, 2_000)),
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"POST /\0 HTTP/9.9\r\nContent-Length: 99999999999999999999\r\n\r\n",
                b"GET /status HTTP/1.1\r\n" + b"X: y\r\n" * 5_000,
                _HALF_TLS + rng.randbytes(500),
                settled + rng.randbytes(200),
                settled + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
                settled + wire.frame(wire.HEADERS, wire.END_HEADERS, 1, rng.randbytes(100)),
                settled + wire.frame(wire.RST_STREAM, 0, 1, b"\0" * 4) * 100,
                settled + wire.frame(wire.PING, 0, 0, b"12345678") * 200,
            )
        )

    async def bytes_to(address: str) -> None:
        reader, writer = await wire.connect(address)
        try:
            writer.write(nonsense())
            await writer.drain()
            world.count("sent")
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    while await reader.read(1 << 16):
                        world.count("answered")
                    world.count("ended")
        except ConnectionError:
            world.count("ended")
        finally:
            writer.close()

    async def once(number: int) -> None:
        if number % 4:
            await bytes_to(world.rng.choice(world.orders.ports))
            return
        async with open_channel(world.rng.choice(world.orders.addresses)) as channel:
            call: Any = channel.unary_unary(world.rng.choice(_METHODS))
            request = world.rng.randbytes(world.rng.choice((1, 10, 300, 100_000)))
            world.count("requests")
            await call(request, metadata=headers("garbage"), timeout=_PATIENCE_S)

    await world.repeat(once)
