"""HA service: accept slaves, send them the log, and track their progress (HAService)."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.ha.connection import HaConnection
from broker_adapter.log.classic.ha.group_transfer import GroupTransfer, SlaveAck
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.ha.log import ShippedLog
from broker_adapter.log.classic.ha.options import HaOptions
from dledger.infra.logs import get_logger
from dledger.infra.quotas import client_address
from dledger.infra.transport.listener import Listener, TlsMode
from dledger.rpc.cluster_secret import ClusterSecret

_log = get_logger("ha")


class SlaveStatus(NamedTuple):
    """Status of a slave, with physical offsets.

    `id`: from the handshake, or None if there was none. `lag_bytes`: unacknowledged bytes.
    """

    address: str
    id: int | None
    start: int
    sent: int
    acked: int
    lag_bytes: int
    in_sync: bool


class HaServiceStatus(NamedTuple):
    """Status of the service. `connections` includes slaves that have not sent their first report."""

    address: str
    slaves: list[SlaveStatus]
    connections: int
    push2slave_max_offset: int
    waiting: int
    acks: dict[str, int]
    refusals: dict[str, int]
    limits_hit: dict[str, int]


class HaService:
    """Serves slaves.

    Call `start` once and `stop` once, on one event loop. Call `grown` when the log has grown.
    """

    def __init__(
        self,
        log: ShippedLog,
        options: HaOptions | None = None,
        *,
        own: HaIdentity,
        secret: ClusterSecret | None = None,
        tls: ssl.SSLContext | None = None,
        tls_mode: TlsMode | None = None,
    ) -> None:
        """Create a service.

        `own`: identity of this master. `secret`: cluster secret that slaves must prove in the handshake;
        `options.require_handshake` requires the handshake. `tls_mode`: if None, TLS is required if `tls` is
        set.
        """
        self.options = options or HaOptions()
        self.address = ""
        self.transfer = GroupTransfer(self.options.max_gap_bytes)
        self._log = log
        self._own = own
        self._secret = secret
        self._listener = Listener(self._admit, tls, mode=tls_mode)
        self._connections: dict[HaConnection, str] = {}  # by host, in the order of connection
        self._refusals: Counter[str] = Counter()
        self._limits_hit: Counter[str] = Counter()
        self._changed = asyncio.Event()  # set when a slave has more data or has disconnected

    async def start(self, listen: str) -> None:
        """Listen on host:port; port 0 selects a free port. Raises ConfigError (PORT_IN_USE)."""
        self.address = await self._listener.listen("HA", listen)

    async def stop(self) -> None:
        """Close all connections. Pending waits end with FLUSH_SLAVE_TIMEOUT. May be called repeatedly."""
        await self._listener.stop()
        for connection in list(self._connections):
            connection.close()
        self.transfer.close()

    async def drain(self, within_s: float) -> int:
        """Wait until each connected slave has acknowledged the whole log or has disconnected.

        The log must not grow during this time. Returns the number of bytes that the slowest slave lacks.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._lacking():
                    self._changed.clear()
                    await self._changed.wait()
        return self._lacking()

    def grown(self) -> None:
        """Send new data of the log."""
        for connection in list(self._connections):
            connection.grown()

    async def wait_acked(self, offset: int, timeout_ms: int, slaves: int = 1) -> SlaveAck:
        """Wait until `slaves` slaves have acknowledged `offset`, the end of a record."""
        return await self.transfer.wait(offset, timeout_ms, slaves)

    def status(self) -> HaServiceStatus:
        started = [connection for connection in self._connections if connection.has_started]
        return HaServiceStatus(
            self.address,
            [self._slave_status(connection) for connection in started],
            len(self._connections),
            self.transfer.push2slave_max_offset,
            self.transfer.waiting,
            dict(self.transfer.counts),
            dict(self._refusals),
            dict(self._limits_hit),
        )

    # -- HaConnectionOwner -------------------------------------------------------------------------------

    def started(self, connection: HaConnection) -> None:
        identity = connection.identity
        for other in list(self._connections):
            if other is not connection and identity is not None and other.identity == identity:
                _log.warning("a slave has reconnected", slave=connection.address, before=other.address)
                other.close()

    def acknowledged(self, connection: HaConnection, offset: int) -> None:
        self.transfer.acknowledged(connection, offset)
        self._changed.set()

    def refused(self, connection: HaConnection, error: BrokerError) -> None:
        self._refusals[error.status.name] += 1
        _log.error("refusing a slave", slave=connection.address, error=str(error))

    def closed(self, connection: HaConnection) -> None:
        self._connections.pop(connection, None)
        self.transfer.gone(connection)
        self._changed.set()

    # -- internals ---------------------------------------------------------------------------------------

    def _lacking(self) -> int:
        end = self._log.end_offset
        return max(
            (end - max(0, slave.progress.acked) for slave in self._connections if slave.has_started),
            default=0,
        )

    def _slave_status(self, slave: HaConnection) -> SlaveStatus:
        end, progress = self._log.end_offset, slave.progress
        lag = max(0, end - progress.acked)
        return SlaveStatus(
            slave.address,
            slave.identity.broker_id if slave.identity is not None else None,
            progress.start or 0,
            progress.sent,
            progress.acked,
            lag,
            lag < self.options.max_gap_bytes,
        )

    def _admit(self, peer: str) -> HaConnection | None:
        host = client_address(peer)
        if not self._make_room(host):
            self._limits_hit["connections"] += 1
            return None
        connection = HaConnection(self, self._log, self.options, self._own, self._secret, host)
        self._connections[connection] = host
        return connection

    def _make_room(self, host: str) -> bool:
        """Make room for a connection. Return False if the limits do not permit it.

        If a limit is reached, the oldest connection that has not sent its first report is closed.
        """
        same = [connection for connection, other in self._connections.items() if other == host]
        too_many = len(same) >= self.options.per_address
        if not too_many and len(self._connections) < self.options.connections:
            return True
        for connection in same if too_many else list(self._connections):
            if not connection.has_started:
                self._limits_hit["silent connection closed"] += 1
                connection.close()
                return True
        return False
