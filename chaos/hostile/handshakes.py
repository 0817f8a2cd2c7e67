"""Abuse of TLS: incomplete handshakes, handshakes abandoned after the server has signed, and clients without
a certificate."""

from __future__ import annotations

import asyncio
import ssl

from chaos.hostile import wire
from chaos.hostile.world import HostileWorld

#: First byte of a handshake record: the server has answered, so it has signed.
_HANDSHAKE = 0x16


async def handshake_floods(world: HostileWorld) -> None:
    """Run handshakes at all ports in rotation.

    Each is one of: half a ClientHello followed by silence; a complete ClientHello that is abandoned after the
    answer; a complete handshake without a client certificate.
    """
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

    async def abandoned(address: str) -> None:
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
            # In TLS 1.3 the client finishes before the server learns that the certificate is missing.
            world.count("without_certificate")
            writer.write(wire.PREFACE + wire.settings())
            await reader.read()
            world.count("turned_away")
        except OSError:  # includes ssl.SSLError, an alert from the server
            world.count("turned_away")
        finally:
            writer.close()

    async def once(number: int) -> None:
        address = world.rng.choice(world.orders.ports)
        if number % 2:
            await half(number, address)
        elif number % 4:
            await abandoned(address)
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
    raise AssertionError("the TLS handshake ended without a server")
