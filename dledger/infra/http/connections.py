"""Limits the number and the idle time of an HTTP server's connections, and evicts idle connections.

A connection is busy while one of its requests is processed, and idle otherwise: before the first request,
between requests, and while a response waits for a slow reader. When all slots are in use, a new connection
replaces the one that has been idle longest. If its address is at its own limit, it replaces a connection of
that address.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from dledger.infra.quotas import client_address
from dledger.infra.transport.listener import AdmittedConnection


@dataclass(frozen=True, slots=True)
class HttpConnectionLimits:
    """Limits as counts and seconds. Health probes have additional slots, used when all others are busy."""

    connections: int = 224
    per_address: int = 64
    probes: int = 32
    probes_per_address: int = 8
    head_s: float = 10.0  # from the first byte (or the connection itself) to the end of a request's headers
    idle_s: float = 60.0  # between requests, and for the client to read a response


class Connection(AdmittedConnection):
    """Forwards everything to aiohttp's protocol and tracks whether a request is being processed."""

    def __init__(self, inner: web.RequestHandler, address: str, slots: Slots, *, probes_only: bool) -> None:
        self.inner = inner
        self.address = address
        self.probes_only = probes_only
        self.busy = False
        self._kept_alive = False
        self._slots = slots
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._arm(slots.limits.head_s)

    def begin_request(self) -> None:
        """Mark the start of a request."""
        self.busy = True
        self._kept_alive = False
        self._disarm()

    def end_request(self) -> None:
        """Mark the end of a request: its response is complete and being sent."""
        self.busy = False
        self._kept_alive = True
        if self._slots.mark_idle(self):
            self._arm(self._slots.limits.idle_s)

    def close(self) -> None:
        """Close immediately and free the slot. Unsent data is lost."""
        self.leave()
        if self._transport is not None:
            self._transport.abort()
        elif self.on_close is not None:
            self.on_close()

    def leave(self) -> None:
        self._disarm()
        self._slots.remove(self)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._kept_alive:
            self._kept_alive = False
            self._arm(self._slots.limits.head_s)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        self.inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        self.inner.connection_lost(exc)


class Slots:
    """Slots for connections, limited in total and per address."""

    def __init__(self, limits: HttpConnectionLimits, count: int, per_address: int) -> None:
        self.limits = limits
        self._count = count
        self._per_address = per_address
        # Keyed by aiohttp's protocol, in the order in which they became idle.
        self._connections: dict[web.RequestHandler, Connection] = {}

    def make_room(self, address: str) -> bool:
        """Return True if there is a slot for `address`, after closing the longest idle connection if
        necessary."""
        same = [connection for connection in self._connections.values() if connection.address == address]
        if len(same) < self._per_address and len(self._connections) < self._count:
            return True
        for connection in same if len(same) >= self._per_address else self._connections.values():
            if not connection.busy:
                connection.close()
                return True
        return False

    def add(self, inner: web.RequestHandler, address: str, *, probes_only: bool) -> Connection:
        connection = Connection(inner, address, self, probes_only=probes_only)
        self._connections[inner] = connection
        return connection

    def find(self, inner: web.RequestHandler) -> Connection | None:
        return self._connections.get(inner)

    def mark_idle(self, connection: Connection) -> bool:
        """Move the connection to the end of the idle order. Returns False if it is closed."""
        if self._connections.pop(connection.inner, None) is None:
            return False
        self._connections[connection.inner] = connection
        return True

    def remove(self, connection: Connection) -> None:
        self._connections.pop(connection.inner, None)


class ConnectionTable:
    """All connections of a server."""

    def __init__(self, limits: HttpConnectionLimits) -> None:
        self._slots = Slots(limits, limits.connections, limits.per_address)
        self._probes = Slots(limits, limits.probes, limits.probes_per_address)

    def admit(self, server: web.Server, peer: str) -> Connection | None:
        """Admit a connection accepted from `peer` to `server`. Returns None if no slot is available."""
        address = client_address(peer)
        for slots, probes_only in ((self._slots, False), (self._probes, True)):
            if slots.make_room(address):
                return slots.add(server(), address, probes_only=probes_only)
        return None

    def connection_of(self, request: web.BaseRequest) -> Connection | None:
        """Return the connection of a request, or None if it is closed."""
        return self._slots.find(request.protocol) or self._probes.find(request.protocol)
