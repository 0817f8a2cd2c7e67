"""Hostile in front of TLS: handshakes that stay half, that are left when the server has signed, that show no
certificate."""

from __future__ import annotations

import asyncio
import ssl

from chaos.hostile import wire
from chaos.hostile.world import World

#: The first byte of a record of the handshake: the server has answered, so it has signed.
_HANDSHAKE = 0x16


async def handshake_floods(world: World) -> None:
    """Handshakes at all ports, in turn: half a ClientHello and silence, a whole one that is left once it was
    answered, and a whole handshake of somebody without a certificate."""
    is_half_open: set[int] = set()
    context = _context()

    async def half(number: int, address: str) -> None:
        reader, writer = await wire.connect(address)
        try:
            hello = _client_hello(context)
            writer.write(hello[: len(hello) // 2])
            await writer.drain()
            world.count("half")
            is_half_open.add(number)
            world.count_most("half_open", len(is_half_open))
            await reader.read()
            world.count("closed")
        finally:
            is_half_open.discard(number)
            writer.close()

    async def left(address: str) -> None:
        reader, writer = await wire.connect(address)
        try:
            writer.write(_client_hello(context))
            first = await reader.readexactly(1)
            world.count("abandoned", first[0] == _HANDSHAKE)
        finally:
            writer.close()

    async def nameless(address: str) -> None:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            # TLS 1.3: the client is done before the server asks for a certificate in vain.
            world.count("without_certificate")
            writer.write(wire.PREFACE + wire.settings())
            await reader.read()
            world.count("turned_away")
        except OSError:  # ssl.SSLError is one: it was told why
            world.count("turned_away")
        finally:
            writer.close()

    async def once(number: int) -> None:
        address = world.rng.choice(world.orders.ports)
        if number % 2:
            await half(number, address)
        elif number % 4:
            await left(address)
        else:
            await nameless(address)

    await world.repeat(once)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without the other end")
