"""Server of the remoting protocol. It accepts connections and reports their life-cycle events."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from broker_adapter.remoting.connection import ConnectionLimits, RemotingConnection
from broker_adapter.remoting.executors import Dispatch
from dledger.infra.logs import get_logger
from dledger.infra.quotas import FairQueue, client_address
from dledger.infra.transport.listener import Listener, TlsMode

_log = get_logger("remoting")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server.

    When the number of connections reaches a limit, the connection that has been idle longest is closed. For
    the limit per address, it is chosen from the connections of that address.
    """

    connections: int = 4096
    per_address: int = 1024
    incomplete_bytes: int = 256 << 20  # memory for large frames of all connections; further frames wait
    unsent_bytes: int = 512 << 20  # responses of all connections; above it, the largest backlog is closed
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class ChannelEvents(Protocol):
    """Receives a call when a connection opens or closes.

    NameServer and broker discard per-connection state on close.
    """

    def channel_connected(self, connection: RemotingConnection) -> None: ...

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None: ...


class _Port(NamedTuple):
    """One port of a server."""

    dispatch: Dispatch
    events: tuple[ChannelEvents, ...]


class RemotingServer:
    """Accepts connections on several ports, which share the limits. Implements ConnectionUser.

    Call `start` once and `stop` once, on one event loop.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        mode: TlsMode | None = None,
        events: Iterable[ChannelEvents] = (),
    ) -> None:
        """Create a server.

        `mode`: if None, a server with `tls` accepts both TLS and plain text, as in RocketMQ.
        """
        self.limits = limits or ServerLimits()
        self.limits_hit: Counter[str] = Counter()
        self.address = ""
        self._main = _Port(dispatch, tuple(events))
        self._tls, self._mode = tls, mode or (TlsMode.DISABLED if tls is None else TlsMode.PERMISSIVE)
        self._listeners: list[Listener] = []
        self._dispatches = [dispatch]
        self._port_of: dict[RemotingConnection, _Port] = {}
        self._connections: dict[RemotingConnection, str] = {}  # client addresses
        self._budget = FairQueue(self.limits.incomplete_bytes)
        self._unsent: dict[RemotingConnection, int] = {}  # last reported sizes; the current ones may be lower
        self._unsent_bytes = 0
        self.is_stopping = False

    async def start(self, listen: str) -> None:
        """Listen on `listen` (host:port; port 0 selects a free port). Raises ConfigError (PORT_IN_USE)."""
        self.address = await self._listen(listen, self._main)

    async def listen_also(
        self, listen: str, dispatch: Dispatch | None = None, events: Iterable[ChannelEvents] | None = None
    ) -> str:
        """Listen on a further port and return its address.

        `dispatch` and `events` default to the values of the first port. Raises ConfigError (PORT_IN_USE).
        """
        if dispatch is not None:
            self._dispatches.append(dispatch)
        port = _Port(
            self._main.dispatch if dispatch is None else dispatch,
            self._main.events if events is None else tuple(events),
        )
        return await self._listen(listen, port)

    async def _listen(self, listen: str, port: _Port) -> str:
        listener = Listener(partial(self._admit, port), self._tls, mode=self._mode)
        self._listeners.append(listener)
        return await listener.listen("remoting", listen)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stop accepting requests, wait up to `grace_s` for those in progress, and close all connections.

        May be called repeatedly.
        """
        self.is_stopping = True
        for dispatch in self._dispatches:
            dispatch.close()
        for listener in self._listeners:
            await listener.stop()
        try:
            async with asyncio.timeout(grace_s):
                for dispatch in self._dispatches:
                    await dispatch.drained()
        except TimeoutError:
            _log.info("stopping with requests under way", requests=self.requests_under_way)
        # Close connections before canceling requests, so that connections with outstanding responses are
        # reset.
        for connection in list(self._connections):
            connection.close("the server stops")
        for dispatch in self._dispatches:
            await dispatch.stop()

    @property
    def connections(self) -> list[RemotingConnection]:
        return list(self._connections)

    @property
    def requests_under_way(self) -> int:
        return sum(dispatch.under_way for dispatch in self._dispatches)

    @property
    def incomplete_bytes(self) -> int:
        """Memory in bytes that large frames use or have been granted."""
        return self._budget.used

    @property
    def waiting_for_memory(self) -> int:
        """Number of connections that wait for memory for a large frame."""
        return self._budget.waiting

    # -- ConnectionUser -----------------------------------------------------------------------------------

    def connected(self, connection: RemotingConnection) -> None:
        connection.reset_at_end()
        for events in self._port_of[connection].events:
            events.channel_connected(connection)

    def unsent(self, connection: RemotingConnection) -> None:
        size = connection.unsent_bytes
        self._unsent_bytes += size - self._unsent.get(connection, 0)
        self._unsent[connection] = size
        if self._unsent_bytes <= self.limits.unsent_bytes:
            return
        # The reported sizes may be outdated. Recompute all sizes, but only if the limit appears to be
        # exceeded.
        sizes = self._unsent = {slow: unsent for slow in self._unsent if (unsent := slow.unsent_bytes)}
        self._unsent_bytes = sum(sizes.values())
        if self._unsent_bytes > self.limits.unsent_bytes:
            self.limits_hit["unsent answers"] += 1
            max(sizes, key=sizes.__getitem__).close("unread responses take too much memory")

    def closed(self, connection: RemotingConnection, reason: str) -> None:
        self._connections.pop(connection, None)
        self._unsent_bytes -= self._unsent.pop(connection, 0)
        port = self._port_of.pop(connection, None)
        if port is None:
            return
        port.dispatch.gone(connection)
        if connection.peer:
            for events in port.events:
                events.channel_closed(connection, reason)

    # -- inside

    def _admit(self, port: _Port, peer: str) -> RemotingConnection | None:
        address = client_address(peer)
        if not self._make_room(address):
            self.limits_hit["connections"] += 1
            return None
        connection = RemotingConnection(self, port.dispatch.answer, self.limits.connection, self._budget)
        self._connections[connection] = address
        self._port_of[connection] = port
        return connection

    def _make_room(self, address: str) -> bool:
        same = [connection for connection, other in self._connections.items() if other == address]
        too_many = len(same) >= self.limits.per_address
        if not too_many and len(self._connections) < self.limits.connections:
            return True
        idle = [connection for connection in (same if too_many else self._connections) if connection.is_idle]
        if not idle:
            return False
        self.limits_hit["idle connection closed"] += 1
        longest = min(idle, key=lambda connection: connection.active_s)
        longest.close("closed as the longest-idle connection, at a connection limit")
        return True
