"""Connections of an HTTP server: how many there may be, for how long without a request, which is closed.

A connection is busy while a request of it is answered, and idle otherwise: before its first request, between
requests, and while an answer waits for a client that does not read. When there is no room for a new one, the
one that has been idle for longest is closed, of the same address if that has too many.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from dledger.shares import client_address
from dledger.status.listener import AdmittedConnection


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Counts and seconds. Probes have slots of their own, for when all others are busy."""

    connections: int = 224
    per_address: int = 64
    probes: int = 32
    probes_per_address: int = 8
    head_s: float = 10.0  # from the first byte (or the connection itself) to the end of a request's head
    idle_s: float = 60.0  # between requests, and for the client to read an answer


class Connection(AdmittedConnection):
    """Passes everything on to aiohttp's protocol, and knows whether a request is being answered."""

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

    def begin(self) -> None:
        """A request has come."""
        self.busy = True
        self._kept_alive = False
        self._disarm()

    def end(self) -> None:
        """Its answer is made, and is on its way."""
        self.busy = False
        self._kept_alive = True
        if self._slots.now_idle(self):
            self._arm(self._slots.limits.idle_s)

    def close(self) -> None:
        """At once; what the client has not read is lost. Its slot is free."""
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
    """So many connections, and so many of one address."""

    def __init__(self, limits: ConnectionLimits, count: int, per_address: int) -> None:
        self.limits = limits
        self._count = count
        self._per_address = per_address
        # By aiohttp's protocol, in the order in which they became idle.
        self._taken: dict[web.RequestHandler, Connection] = {}

    def make_room(self, address: str) -> bool:
        """Whether there is a slot for `address`; closes the oldest idle connection for it."""
        same = [one for one in self._taken.values() if one.address == address]
        if len(same) < self._per_address and len(self._taken) < self._count:
            return True
        for one in same if len(same) >= self._per_address else self._taken.values():
            if not one.busy:
                one.close()
                return True
        return False

    def take(self, inner: web.RequestHandler, address: str, *, probes_only: bool) -> Connection:
        connection = Connection(inner, address, self, probes_only=probes_only)
        self._taken[inner] = connection
        return connection

    def find(self, inner: web.RequestHandler) -> Connection | None:
        return self._taken.get(inner)

    def now_idle(self, connection: Connection) -> bool:
        """Whether it is open still."""
        if self._taken.pop(connection.inner, None) is None:
            return False
        self._taken[connection.inner] = connection
        return True

    def remove(self, connection: Connection) -> None:
        self._taken.pop(connection.inner, None)


class ConnectionTable:
    """All connections of a server."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._slots = Slots(limits, limits.connections, limits.per_address)
        self._probes = Slots(limits, limits.probes, limits.probes_per_address)

    def admit(self, server: web.Server, peer: str) -> Connection | None:
        """For a connection to `server` that was accepted from `peer`; None: there is no room."""
        address = client_address(peer)
        for slots, probes_only in ((self._slots, False), (self._probes, True)):
            if slots.make_room(address):
                return slots.take(server(), address, probes_only=probes_only)
        return None

    def of(self, request: web.BaseRequest) -> Connection | None:
        """The connection that a request came by; None if it is gone."""
        return self._slots.find(request.protocol) or self._probes.find(request.protocol)
