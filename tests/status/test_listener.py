"""Accepting connections: what fails costs neither room nor the machine's time."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from pathlib import Path

import pytest

from dledger.cli.local.certificates import Authority
from dledger.errors import Code, ConfigError
from dledger.infra.transport import listener
from dledger.infra.transport.listener import AdmittedConnection, Listener, bind_port
from tests.node.local import until


class Room(AdmittedConnection):
    """For one connection."""

    def __init__(self) -> None:
        self.taken = 0

    def admit(self, peer: str) -> AdmittedConnection:
        self.taken += 1
        return self

    def leave(self) -> None:
        self.taken = 0


async def test_a_handshake_that_fails_gives_its_room_back(tmp_path: Path) -> None:
    authority, room = Authority(), Room()
    authority.save(tmp_path)
    certificate, key = authority.issue(tmp_path, "n1", hosts=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    port = Listener(room.admit, context)
    number = await port.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        await until(lambda: room.taken == 1)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        await until(lambda: room.taken == 0)
        writer.close()
    finally:
        await port.stop()


@pytest.mark.parametrize(("number", "waits"), [(errno.EMFILE, True), (errno.ECONNABORTED, False)])
async def test_a_port_that_gets_no_descriptor_waits_and_one_that_lost_a_connection_goes_on(
    number: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take all of the event loop for asking again."""
    tries: list[socket.socket] = []

    async def fail(listening: socket.socket) -> None:
        tries.append(listening)
        raise OSError(number, "no connection")

    monkeypatch.setattr(listener, "_AGAIN_SECONDS", 3600)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", fail)
    port = Listener(lambda _: None, None)
    await port.start("127.0.0.1", 0)
    for _ in range(20):
        await asyncio.sleep(0)
    await port.stop()
    assert (len(tries) == 1) is waits and tries


async def test_a_connection_that_ends_before_anything_was_done_for_it_leaves_no_socket_open() -> None:
    room = Room()
    port = Listener(room.admit, None)
    accepted, other = socket.socketpair()
    port._admit_connection(accepted, "127.0.0.1")
    assert room.on_close is not None
    room.on_close()
    await until(lambda: accepted.fileno() == -1)
    other.close()


async def test_connections_to_a_bound_port_wait_until_it_is_listened_on() -> None:
    room = Room()
    bound = await bind_port("status", "127.0.0.1:0")
    first = asyncio.create_task(bound.first_connection())
    await asyncio.sleep(0)
    assert not first.done()
    host, _, number = bound.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(number))
    await first
    port = Listener(room.admit, None)
    assert await port.listen("status", bound) == bound.address
    try:
        await until(lambda: room.taken == 1)
        writer.close()
    finally:
        await port.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(number))
    bound.close()


@pytest.mark.parametrize("host", ["nohost.invalid", "a..b", "x" * 64])
async def test_an_unknown_host_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"{host}:0: unknown host name"):
        await bind_port("status", f"{host}:0")


async def test_a_bound_port_is_in_use_for_others() -> None:
    bound = await bind_port("status", "127.0.0.1:0")
    with pytest.raises(ConfigError, match="in use") as refused:
        await bind_port("status", bound.address)
    assert refused.value.code is Code.PORT_IN_USE
    bound.close()
