"""Accepts the connections of a server one by one, with an admission check for each.

asyncio's own server creates the protocol before it knows the address of the connection, and it limits the
duration of TLS handshakes but not their number.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from dledger.errors import Code, ConfigError
from dledger.infra.addresses import join_address, split_address

_log = logging.getLogger(__name__)

_BACKLOG = 100
_HANDSHAKE_SECONDS = 5.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_AGAIN_SECONDS = 0.2

#: A client that may use TLS or plain text must send its first byte within this time.
_FIRST_BYTE_SECONDS = 30.0
#: The first byte of a TLS handshake.
_TLS_HANDSHAKE = b"\x16"


class AdmittedConnection(asyncio.Protocol, ABC):
    """An admitted connection. `leave` frees its slot."""

    on_close: Callable[[], object] | None = None  # ends it before a transport exists

    @abstractmethod
    def leave(self) -> None:
        """Free its slot. Idempotent."""


class TlsMode(Enum):
    """TLS mode of a port, with RocketMQ's terms (tls.server.mode)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"  # clients that start with a handshake get TLS, others plain text
    ENFORCING = "enforcing"


class BoundPort:
    """Sockets that listen on one address. Connections wait in their backlog until a Listener accepts them."""

    def __init__(self, sockets: list[socket.socket], host: str) -> None:
        self.sockets = sockets
        #: host:port with the port that was actually bound.
        self.address = join_address(host, int(sockets[0].getsockname()[1]))

    async def first_connection(self) -> None:
        """Wait until a connection is in the backlog."""
        waiting = [asyncio.create_task(_readable(listening)) for listening in self.sockets]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        for listening in self.sockets:
            listening.close()


async def bind_port(service: str, address: str) -> BoundPort:
    """Listen on host:port; port 0 selects a free port.

    Raises ConfigError, with PORT_IN_USE if another process uses the port.
    """
    host, port = split_address(address)
    try:
        return BoundPort(await _bind(host, int(port)), host)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is empty or too long
        raise _listen_error(f"{service} address {address}", error) from error


async def _bind(host: str, port: int) -> list[socket.socket]:
    bound = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host or None, port, reuse_address=True, start_serving=False
    )
    try:
        sockets = [bound_socket.dup() for bound_socket in bound.sockets]
    finally:
        bound.close()
    try:
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(_BACKLOG)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


class Listener:
    """Listens between `start` and `stop`."""

    def __init__(
        self,
        admit: Callable[[str], AdmittedConnection | None],
        tls: ssl.SSLContext | None,
        *,
        mode: TlsMode | None = None,
        refusal: bytes = b"",
    ) -> None:
        """`admit(peer)` returns a connection for that address, or None to refuse it. If `mode` is None, it is
        ENFORCING if there is `tls`. `refusal` is sent in plain text to refused clients, unless they must use
        TLS."""
        self._admit = admit
        self._mode = mode or (TlsMode.DISABLED if tls is None else TlsMode.ENFORCING)
        assert tls is not None or self._mode is TlsMode.DISABLED, "TLS needs a certificate"
        self._tls = tls
        self._refusal = refusal
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen on host:port ("": all interfaces; 0: any free port). Returns the port. Raises OSError."""
        self._accept_from(await _bind(host, port))
        return int(self._sockets[0].getsockname()[1])

    async def listen(self, service: str, address: str | BoundPort) -> str:
        """Listen as `bind_port` does, or accept the connections of a port that is bound already. Returns the
        address. Raises the errors of `bind_port`."""
        port = await bind_port(service, address) if isinstance(address, str) else address
        self._accept_from(port.sockets)
        return port.address

    def _accept_from(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets]

    async def stop(self) -> None:
        """Accept no further connections and cancel pending TLS handshakes. Idempotent."""
        tasks = [*self._accepting, *self._opening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                # Other errors concern a single connection.
                await asyncio.sleep(_AGAIN_SECONDS if error.errno in _NO_DESCRIPTOR else 0)
                continue
            self._admit_connection(accepted, str(peer[0]))
            # let existing connections run, however many new ones arrive
            await asyncio.sleep(0)

    def _admit_connection(self, accepted: socket.socket, peer: str) -> None:
        connection = self._admit(peer)
        if connection is None:
            if self._refusal and self._mode is not TlsMode.ENFORCING:
                with suppress(OSError):
                    accepted.send(self._refusal)
            accepted.close()
            return
        task = asyncio.create_task(self._open(connection, accepted))
        connection.on_close = task.cancel
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        # A task cancelled before its start does not close the socket.
        task.add_done_callback(lambda done: accepted.close() if done.cancelled() else None)

    async def _open(self, connection: AdmittedConnection, accepted: socket.socket) -> None:
        try:
            tls = await self._tls_for(accepted)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else _HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            accepted.close()
            connection.leave()
            _log.debug("no connection: %s", error)

    async def _tls_for(self, accepted: socket.socket) -> ssl.SSLContext | None:
        if self._mode is not TlsMode.PERMISSIVE:
            return self._tls
        async with asyncio.timeout(_FIRST_BYTE_SECONDS):
            await _readable(accepted)
        return self._tls if accepted.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE else None


async def _readable(connected: socket.socket) -> None:
    """Wait until data arrives or the connection ends."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(connected, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(connected)


def _listen_error(address: str, error: OSError | UnicodeError) -> ConfigError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return ConfigError(f"{address}: the port is in use by another process", code=Code.PORT_IN_USE)
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConfigError(f"{address}: unknown host name ({error})")
    return ConfigError(f"{address}: cannot listen: {error}")
