"""HA as the role wants it: a master serves slaves, a slave follows its master."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from prometheus_client.core import Metric

from broker_adapter.classic.commit_log_files import CommitLogFiles
from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import Status
from broker_adapter.ha.client import HaClient, HaClientState
from broker_adapter.ha.group_transfer import SlaveAck
from broker_adapter.ha.handshake import HaIdentity
from broker_adapter.ha.metrics import client_metrics, service_metrics
from broker_adapter.ha.options import HaClientOptions, Handshake, HaOptions
from broker_adapter.ha.service import HaService
from dledger.platform import ClusterSecret

_SHORTFALLS = {
    SlaveAck.PUT_OK: None,
    SlaveAck.FLUSH_SLAVE_TIMEOUT: Status.FLUSH_SLAVE_TIMEOUT,
    SlaveAck.SLAVE_NOT_AVAILABLE: Status.SLAVE_NOT_AVAILABLE,
}
_HANDSHAKES = {"off": Handshake.OFF, "preferred": Handshake.PREFERRED, "required": Handshake.REQUIRED}


class HaTls(NamedTuple):
    """`server`: of the master's port. `client`: called for each connection of a slave."""

    server: ssl.SSLContext
    client: Callable[[], ssl.SSLContext]


class Replication:
    """On one event loop. `serve` or `follow`, `stop` between them."""

    def __init__(
        self,
        log: CommitLogFiles,
        settings: ClassicSettings,
        slave: HaIdentity,
        secret: ClusterSecret | None,
        tls: HaTls | None,
        on_grown: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`slave`: who this broker is as one. `tls` None: plain text. `on_grown`: a slave's log has more.
        `on_failure`: a slave's log has failed."""
        self._log = log
        self._settings = settings
        self._slave = slave
        self._secret = secret
        self._tls = tls
        self._on_grown = on_grown
        self._on_failure = on_failure
        self._service: HaService | None = None
        self._client: HaClient | None = None
        self._master: str | None = settings.ha_master or None
        #: The most that the master is known to have had; -1: nothing is known.
        self._master_end = -1

    async def serve(self) -> None:
        """ConfigError (PORT_IN_USE)."""
        options = HaOptions(require_handshake=self._settings.ha_handshake == "required")
        service = HaService(
            self._log,
            options,
            own=self._slave._replace(broker_id=0),
            secret=self._secret,
            tls=None if self._tls is None else self._tls.server,
        )
        await service.start(self._settings.ha_listen)
        self._service = service

    def follow(self) -> None:
        settings = self._settings
        options = HaClientOptions(
            handshake=_HANDSHAKES[settings.ha_handshake],
            whole_log=settings.ha_whole_log,
            report_durable=settings.flush == "SYNC_FLUSH",
        )
        client = HaClient(
            self._log,
            options,
            own=self._slave,
            secret=self._secret,
            tls=None if self._tls is None else self._tls.client,
            on_grown=self._grown,
            on_failure=self._on_failure,
            run=asyncio.to_thread,
        )
        client.set_master(self._master)
        client.start()
        self._client = client

    async def drain(self, within_s: float) -> int:
        """What a master has stored goes to its slaves, as long as it takes; bytes that one of them lacks."""
        return 0 if self._service is None else await self._service.drain(within_s)

    async def stop(self) -> None:
        """When it returns, nothing is appended by it any more."""
        service, self._service = self._service, None
        client, self._client = self._client, None
        if service is not None:
            await service.stop()
        if client is not None:
            self._note_master(client)
            await client.stop()

    def set_master(self, address: str) -> None:
        """host:port of its HA port, if it is known by something better than the configuration."""
        if self._settings.ha_master or address == self._master:
            return
        self._master = address or None
        if self._client is not None:
            self._client.set_master(self._master)

    def grown(self) -> None:
        """A master's log has more."""
        if self._service is not None:
            self._service.grown()

    async def acknowledged(self, offset: int, timeout_ms: int) -> Status | None:
        """What is short of a slave's having all before `offset`."""
        if self._service is None:
            return Status.SLAVE_NOT_AVAILABLE
        return _SHORTFALLS[await self._service.wait_acked(offset, timeout_ms)]

    @property
    def address(self) -> str:
        """host:port at which slaves are served; "": they are not."""
        return self._service.address if self._service is not None else ""

    @property
    def is_following(self) -> bool:
        """It is a slave, connected or not."""
        return self._client is not None

    @property
    def follows(self) -> bool:
        """A connection to the master stands."""
        client = self._client
        return client is not None and client.status().state is HaClientState.TRANSFER

    @property
    def is_refused(self) -> bool:
        """The master was heard of last when it said that its log does not continue this one."""
        return self._client is not None and self._client.status().refusal is not None

    @property
    def has_diverged(self) -> bool:
        """Because this log has what the master's has not."""
        return self._client is not None and self._client.status().refusal is Status.HA_DIVERGED

    @property
    def has_all(self) -> bool:
        """The log of this slave has all commands of its master: both are this project's."""
        return self.by_handshake and self._log.begin_offset == 0

    @property
    def by_handshake(self) -> bool:
        """The master is this project's: what it changes in its tables comes with the log."""
        client = self._client
        return client is not None and client.status().by_handshake

    def lacking(self) -> int:
        """Bytes that the master had when it was last heard of, and this slave has not; -1: nobody knows."""
        if self._client is not None:
            self._note_master(self._client)
        return -1 if self._master_end < 0 else max(0, self._master_end - self._log.end_offset)

    def shown(self) -> dict[str, Any]:
        if self._service is not None:
            status = self._service.status()
            slaves = [
                {
                    "address": one.address,
                    "acked": one.acked,
                    "lag_bytes": one.lag_bytes,
                    "in_sync": one.in_sync,
                }
                for one in status.slaves
            ]
            return {"slaves": slaves, "push2slave_max_offset": status.push2slave_max_offset}
        if self._client is not None:
            found = self._client.status()
            return {
                "state": found.state.value,
                "master": found.master or "",
                "problem": found.problem,
                "lacking_bytes": self.lacking(),
            }
        return {}

    def metrics(self) -> Iterable[Metric]:
        if self._service is not None:
            yield from service_metrics(self._service.status())
        if self._client is not None:
            yield from client_metrics(self._client.status())

    # -- inside

    def _grown(self) -> None:
        if self._client is not None:
            self._note_master(self._client)
        self._on_grown()

    def _note_master(self, client: HaClient) -> None:
        """By handshake a master says what it has; of one of RocketMQ's own it is known what it has sent."""
        end = client.status().master_end
        if end is not None:
            self._master_end = max(self._master_end, end)
        if client.status().state is HaClientState.TRANSFER:
            self._master_end = max(self._master_end, self._log.end_offset)
