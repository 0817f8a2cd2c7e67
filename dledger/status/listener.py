"""Accept the connections of a server one by one, and ask for each whether there is room for it.

asyncio's own server asks for a protocol without saying whose connection it is, and bounds connections with a
TLS handshake under way in time only, not in number.
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

from dledger.addresses import join_address, split_address
from dledger.errors import Code, ConfigError

_log = logging.getLogger(__name__)

_BACKLOG = 100
_HANDSHAKE_SECONDS = 5.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_AGAIN_SECONDS = 0.2

#: A client that may speak TLS or not has to begin within this time.
_FIRST_BYTE_SECONDS = 30.0
#: The first byte of a TLS handshake.
_TLS_HANDSHAKE = b"\x16"


class AdmittedConnection(asyncio.Protocol, ABC):
    """A connection for which there is room. `leave` gives the room back."""

    on_close: Callable[[], object] | None = None  # ends it before there is a transport

    @abstractmethod
    def leave(self) -> None:
        """Its room is free. Repeatable."""


class TlsMode(Enum):
    """Of a port. The words are RocketMQ's (tls.server.mode)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"  # whoever begins with a handshake gets TLS, others plain text
    ENFORCING = "enforcing"


class Listener:
    """Listens from `start` to `stop`."""

    def __init__(
        self,
        admit: Callable[[str], AdmittedConnection | None],
        tls: ssl.SSLContext | None,
        *,
        mode: TlsMode | None = None,
        refusal: bytes = b"",
    ) -> None:
        """`admit(peer)`: room for a connection from that address, or None. `mode` None: ENFORCING if there
        is `tls`. `refusal`: said in plain text to those for whom there is no room, unless they must speak
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
        """Listen on host:port ("": all interfaces; 0: any free port). Returns the port. OSError."""
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(
            asyncio.Protocol, host or None, port, reuse_address=True, start_serving=False
        )
        try:
            self._sockets = [one.dup() for one in bound.sockets]
        finally:
            bound.close()
        try:
            for one in self._sockets:
                one.setblocking(False)
                one.listen(_BACKLOG)
        except OSError:
            self._close_sockets()
            raise
        self._accepting = [asyncio.create_task(self._accept(one)) for one in self._sockets]
        return int(self._sockets[0].getsockname()[1])

    async def listen(self, service: str, address: str) -> str:
        """Listen on host:port, port 0 for any free one. Returns the address. ConfigError, with PORT_IN_USE if
        somebody else has the port."""
        host, port = split_address(address)
        try:
            return join_address(host, await self.start(host, int(port)))
        except OSError as error:
            raise _listen_error(f"{service} address {address}", error) from error

    async def stop(self) -> None:
        """Take no further connections; those whose TLS handshake is under way end. Repeatable."""
        tasks = [*self._accepting, *self._opening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                # Other errors are of that one connection.
                await asyncio.sleep(_AGAIN_SECONDS if error.errno in _NO_DESCRIPTOR else 0)
                continue
            self._take(accepted, str(peer[0]))
            await asyncio.sleep(0)  # who is connected already has its turn, however many come

    def _take(self, accepted: socket.socket, peer: str) -> None:
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
        # A task that is cancelled before it has begun leaves the socket to nobody.
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
    """Wait until something has come, or the end."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(connected, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(connected)


def _listen_error(address: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{address}: the port is in use by another process", code=Code.PORT_IN_USE)
    if isinstance(error, socket.gaierror):
        return ConfigError(f"{address}: the host name is not known ({error})")
    return ConfigError(f"{address}: cannot listen: {error}")
