"""The master's side of HA: slaves connect, get the log, and say how far they have it (HAService)."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from broker_adapter.errors import BrokerError
from broker_adapter.ha.connection import HaConnection
from broker_adapter.ha.group_transfer import GroupTransfer, SlaveAck
from broker_adapter.ha.handshake import HaIdentity
from broker_adapter.ha.log import ShippedLog
from broker_adapter.ha.options import HaOptions
from dledger.platform import ClusterSecret, Listener, TlsMode, client_address, get_logger

_log = get_logger("ha")


class SlaveStatus(NamedTuple):
    """`id`: by handshake, else None. Offsets are physical. `lag_bytes`: what it has not acknowledged."""

    address: str
    id: int | None
    start: int
    sent: int
    acked: int
    lag_bytes: int
    in_sync: bool


class HaServiceStatus(NamedTuple):
    """`connections`: with those that have not said yet what they have."""

    address: str
    slaves: list[SlaveStatus]
    connections: int
    push2slave_max_offset: int
    waiting: int
    acks: dict[str, int]
    refusals: dict[str, int]
    limits_hit: dict[str, int]


class HaService:
    """`start` once, `stop` once, on one event loop. `grown` whenever the log has grown."""

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
        """`own`: of this master. `secret`: slaves that ask for the handshake have to know it; only with
        `require_handshake` all have to. `tls_mode` None: nothing but TLS if there is `tls`."""
        self.options = options or HaOptions()
        self.address = ""
        self.transfer = GroupTransfer(self.options.max_gap_bytes)
        self._log = log
        self._own = own
        self._secret = secret
        self._listener = Listener(self._admit, tls, mode=tls_mode)
        self._connections: dict[HaConnection, str] = {}  # by host, in the order in which they came
        self._refusals: Counter[str] = Counter()
        self._limits_hit: Counter[str] = Counter()
        self._changed = asyncio.Event()  # some slave has more, or is gone

    async def start(self, listen: str) -> None:
        """`listen`: host:port, port 0 for any. ConfigError (PORT_IN_USE)."""
        self.address = await self._listener.listen("HA", listen)

    async def stop(self) -> None:
        """Slaves lose their connections; whoever waits for one gets FLUSH_SLAVE_TIMEOUT. Repeatable."""
        await self._listener.stop()
        for connection in list(self._connections):
            connection.close()
        self.transfer.close()

    async def drain(self, within_s: float) -> int:
        """Until each connected slave has acknowledged all of the log, which nobody appends to any more, or
        is gone. Bytes that the last of them lacks then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._lacking():
                    self._changed.clear()
                    await self._changed.wait()
        return self._lacking()

    def grown(self) -> None:
        """The log has more."""
        for connection in list(self._connections):
            connection.grown()

    async def wait_acked(self, offset: int, timeout_ms: int, slaves: int = 1) -> SlaveAck:
        """Until so many slaves have all before `offset`, the end of a record."""
        return await self.transfer.wait(offset, timeout_ms, slaves)

    def status(self) -> HaServiceStatus:
        begun = [one for one in self._connections if one.has_begun]
        return HaServiceStatus(
            self.address,
            [self._slave_status(one) for one in begun],
            len(self._connections),
            self.transfer.push2slave_max_offset,
            self.transfer.waiting,
            dict(self.transfer.counts),
            dict(self._refusals),
            dict(self._limits_hit),
        )

    # -- ConnectionUser -----------------------------------------------------------------------------------

    def begun(self, connection: HaConnection) -> None:
        identity = connection.identity
        for other in list(self._connections):
            if other is not connection and identity is not None and other.identity == identity:
                _log.warning("a slave comes again", slave=connection.address, before=other.address)
                other.close()

    def acknowledged(self, connection: HaConnection, offset: int) -> None:
        self.transfer.acknowledged(connection, offset)
        self._changed.set()

    def refused(self, connection: HaConnection, error: BrokerError) -> None:
        self._refusals[error.status.name] += 1
        _log.error("a slave is refused", slave=connection.address, error=str(error))

    def closed(self, connection: HaConnection) -> None:
        self._connections.pop(connection, None)
        self.transfer.gone(connection)
        self._changed.set()

    # -- inside -------------------------------------------------------------------------------------------

    def _lacking(self) -> int:
        end = self._log.end_offset
        return max(
            (end - max(0, one.progress.acked) for one in self._connections if one.has_begun), default=0
        )

    def _slave_status(self, one: HaConnection) -> SlaveStatus:
        end, progress = self._log.end_offset, one.progress
        lag = max(0, end - progress.acked)
        return SlaveStatus(
            one.address,
            one.identity.broker_id if one.identity is not None else None,
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
        """The oldest one that has not said yet what it has goes, if need be."""
        same = [one for one, of in self._connections.items() if of == host]
        too_many = len(same) >= self.options.per_address
        if not too_many and len(self._connections) < self.options.connections:
            return True
        for one in same if too_many else list(self._connections):
            if not one.has_begun:
                self._limits_hit["silent connection closed"] += 1
                one.close()
                return True
        return False
