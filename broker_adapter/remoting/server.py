"""A server of the remoting protocol: connections, and the events of their lives."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from broker_adapter.remoting.byte_budget import ByteBudget
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import ConnectionLimits, RemotingConnection
from broker_adapter.remoting.executors import Dispatch
from dledger.platform import Listener, TlsMode, client_address, get_logger

_log = get_logger("remoting")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """When there is no room for a connection, the one that has been idle for longest is closed, of the same
    address if that has too many."""

    connections: int = 4096
    per_address: int = 1024
    incomplete_bytes: int = 256 << 20  # of large frames, of all connections: the others are read later
    unsent_bytes: int = 512 << 20  # of answers, of all connections: the largest one is closed
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class ChannelEvents(Protocol):
    """Connections come and go: what NameServer and broker keep for one ends with it."""

    def channel_connected(self, connection: RemotingConnection) -> None: ...

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None: ...


class RemotingServer:
    """`start` once, `stop` once, on one event loop. A ConnectionUser."""

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        mode: TlsMode | None = None,
        events: Iterable[ChannelEvents] = (),
    ) -> None:
        """`mode` None: both TLS and plain text on the one port if there is `tls`, as in RocketMQ."""
        self.limits = limits or ServerLimits()
        self.limits_hit: Counter[str] = Counter()
        self.address = ""
        self._dispatch = dispatch
        self._events = tuple(events)
        self._listener = Listener(
            self._admit, tls, mode=mode or (TlsMode.DISABLED if tls is None else TlsMode.PERMISSIVE)
        )
        # By address, in the order in which they were last active.
        self._connections: dict[RemotingConnection, str] = {}
        self._budget = ByteBudget(self.limits.incomplete_bytes)
        self._unsent: dict[RemotingConnection, int] = {}  # as last heard of: less may be left by now
        self._unsent_bytes = 0
        self.is_stopping = False

    async def start(self, listen: str) -> None:
        """`listen`: host:port, port 0 for any. ConfigError (PORT_IN_USE)."""
        self.address = await self._listener.listen("remoting", listen)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Take nothing new, let what is under way be answered within the time, close. Repeatable."""
        self.is_stopping = True
        await self._listener.stop()
        try:
            async with asyncio.timeout(grace_s):
                await self._dispatch.drained()
        except TimeoutError:
            _log.info("stopping with requests under way", requests=self._dispatch.under_way)
        # Whoever is still owed an answer sees a reset, so they are closed before what is under way is ended.
        for connection in list(self._connections):
            connection.close("the server stops")
        await self._dispatch.stop()

    @property
    def connections(self) -> list[RemotingConnection]:
        return list(self._connections)

    @property
    def requests_under_way(self) -> int:
        return self._dispatch.under_way

    @property
    def incomplete_bytes(self) -> int:
        """Memory that large frames have, or are going to take."""
        return self._budget.taken

    @property
    def waiting_for_memory(self) -> int:
        """Connections whose large frames are read later."""
        return self._budget.waiting

    # -- ConnectionUser -----------------------------------------------------------------------------------

    def connected(self, connection: RemotingConnection) -> None:
        connection.reset_at_end()
        for events in self._events:
            events.channel_connected(connection)

    def requested(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        if self.is_stopping:
            connection.begin()  # and it never ends: its sender has to learn that there is no answer
        else:
            self._dispatch.answer(connection, request)

    def active(self, connection: RemotingConnection) -> None:
        self._connections[connection] = self._connections.pop(connection)

    def unsent(self, connection: RemotingConnection) -> None:
        size = connection.unsent_bytes
        self._unsent_bytes += size - self._unsent.get(connection, 0)
        self._unsent[connection] = size
        if self._unsent_bytes <= self.limits.unsent_bytes:
            return
        # Looking at all is for when it may be too much, not for each answer to one that does not read.
        sizes = self._unsent = {one: left for one in self._unsent if (left := one.unsent_bytes)}
        self._unsent_bytes = sum(sizes.values())
        if self._unsent_bytes > self.limits.unsent_bytes:
            self.limits_hit["unsent answers"] += 1
            max(sizes, key=sizes.__getitem__).close("answers that are not read take too much memory")

    def closed(self, connection: RemotingConnection, reason: str) -> None:
        self._connections.pop(connection, None)
        self._unsent_bytes -= self._unsent.pop(connection, 0)
        self._dispatch.gone(connection)
        if connection.peer:
            for events in self._events:
                events.channel_closed(connection, reason)

    # -- inside

    def _admit(self, peer: str) -> RemotingConnection | None:
        address = client_address(peer)
        if not self._make_room(address):
            self.limits_hit["connections"] += 1
            return None
        connection = RemotingConnection(self, self.limits.connection, self._budget)
        self._connections[connection] = address
        return connection

    def _make_room(self, address: str) -> bool:
        same = [one for one, of in self._connections.items() if of == address]
        too_many = len(same) >= self.limits.per_address
        if not too_many and len(self._connections) < self.limits.connections:
            return True
        for one in same if too_many else list(self._connections):
            if one.is_idle:
                self.limits_hit["idle connection closed"] += 1
                one.close("idle for longest, and there is no room for another one")
                return True
        return False
