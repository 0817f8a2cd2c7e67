"""Accept the connections of an HTTP server one by one, and ask for each whether there is room for it.

asyncio's own server asks for a protocol without saying whose connection it is, and bounds connections with a
TLS handshake under way in time only, not in number.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from contextlib import suppress

from aiohttp import web

from dledger.status.connections import Connection, ConnectionTable

_log = logging.getLogger(__name__)

_BACKLOG = 100
_HANDSHAKE_SECONDS = 5.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_AGAIN_SECONDS = 0.2

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 21\r\nConnection: close\r\n\r\n"
    b"too many connections\n"
)


class Listener:
    """Listens from `start` to `stop`."""

    def __init__(self, server: web.Server, table: ConnectionTable, tls: ssl.SSLContext | None) -> None:
        self._server = server
        self._table = table
        self._tls = tls
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
        connection = self._table.admit(self._server, peer)
        if connection is None:
            if self._tls is None:
                with suppress(OSError):
                    accepted.send(_REFUSAL)
            accepted.close()
            return
        task = asyncio.create_task(self._open(connection, accepted))
        connection.on_close = task.cancel
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        # A task that is cancelled before it has begun leaves the socket to nobody.
        task.add_done_callback(lambda done: accepted.close() if done.cancelled() else None)

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_SECONDS,
            )
        except (OSError, asyncio.CancelledError) as error:
            connection.leave()
            _log.debug("no connection: %s", error)
