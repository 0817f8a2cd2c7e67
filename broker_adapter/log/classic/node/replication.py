"""Runs HA according to the role: a master serves slaves, a slave follows its master."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import Status
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.ha.client import HaClient, HaClientState, HaClientStatus
from broker_adapter.log.classic.ha.group_transfer import SlaveAck
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.ha.options import HaClientOptions, Handshake, HaOptions
from broker_adapter.log.classic.ha.service import HaService, HaServiceStatus, SlaveStatus
from dledger.rpc.cluster_secret import ClusterSecret

_SHORTFALLS = {
    SlaveAck.PUT_OK: None,
    SlaveAck.FLUSH_SLAVE_TIMEOUT: Status.FLUSH_SLAVE_TIMEOUT,
    SlaveAck.SLAVE_NOT_AVAILABLE: Status.SLAVE_NOT_AVAILABLE,
}
_HANDSHAKES = {"off": Handshake.OFF, "preferred": Handshake.PREFERRED, "required": Handshake.REQUIRED}


class HaTls(NamedTuple):
    """TLS contexts. `server`: context of the master's port. `client`: returns the context of a connection."""

    server: ssl.SSLContext
    client: Callable[[], ssl.SSLContext]


class Replication:
    """Runs HA on one event loop. Call `serve` or `follow`, and call `stop` before changing between them."""

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
        """Create the HA of a node.

        `slave`: this broker's identity as a slave. `tls`: None for plain text. `on_grown`: called when a
        slave's log has grown. `on_failure`: called when a slave's log has failed.
        """
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
        # Greatest known end of the master's log; -1: unknown.
        self._master_end = -1

    async def serve(self) -> None:
        """Serve slaves. Raises ConfigError (PORT_IN_USE)."""
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
        )
        client.set_master(self._master)
        client.start()
        self._client = client

    async def drain(self, within_s: float) -> int:
        """Wait at most `within_s` until all connected slaves have acknowledged the whole log.

        Return the number of bytes that the slowest slave lacks.
        """
        return 0 if self._service is None else await self._service.drain(within_s)

    async def stop(self) -> None:
        """Stop serving or following. After this call returns, replication appends nothing to the log."""
        service, self._service = self._service, None
        client, self._client = self._client, None
        if service is not None:
            await service.stop()
        if client is not None:
            self._note_master(client)
            await client.stop()

    def set_master(self, address: str) -> None:
        """Set the master's HA address (host:port). The configured address, if any, takes precedence."""
        if self._settings.ha_master or address == self._master:
            return
        self._master = address or None
        if self._client is not None:
            self._client.set_master(self._master)

    def grown(self) -> None:
        """Send new data of a master's log."""
        if self._service is not None:
            self._service.grown()

    def acknowledged(self, offset: int, timeout_ms: int) -> asyncio.Future[Status | None]:
        """Return the future put status: complete once a slave has acknowledged `offset`, or cannot do so."""
        put_status: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()

        def done(ack: SlaveAck) -> None:
            if not put_status.done():
                put_status.set_result(_SHORTFALLS[ack])

        if self._service is None:
            done(SlaveAck.SLAVE_NOT_AVAILABLE)
        else:
            self._service.transfer.when_acked(offset, timeout_ms, done)
        return put_status

    @property
    def address(self) -> str:
        """The address (host:port) at which slaves are served, or "" if none are."""
        return self._service.address if self._service is not None else ""

    @property
    def is_following(self) -> bool:
        """True on a slave, whether or not it is connected."""
        return self._client is not None

    @property
    def follows(self) -> bool:
        """True while a connection to the master exists."""
        client = self._client
        return client is not None and client.status().state is HaClientState.TRANSFER

    @property
    def connections(self) -> int:
        """Number of times that this slave has started to follow a master."""
        return 0 if self._client is None else self._client.status().connections

    @property
    def is_refused(self) -> bool:
        """True if the master's last reply was that its log does not continue this one."""
        return self._client is not None and self._client.status().refusal is not None

    @property
    def has_diverged(self) -> bool:
        """True if this log has data that the master's log lacks."""
        return self._client is not None and self._client.status().refusal is Status.HA_DIVERGED

    @property
    def has_all(self) -> bool:
        """True if this slave's log has all commands of its master.

        This requires a master of this project and a log that starts at 0.
        """
        return self.by_handshake and self._log.begin_offset == 0

    @property
    def by_handshake(self) -> bool:
        """True if the master is a broker of this project. Its log then contains table changes."""
        client = self._client
        return client is not None and client.status().by_handshake

    def lacking(self) -> int:
        """Return the number of bytes that the master had at the last contact and this slave lacks, or -1 if
        unknown.
        """
        if self._client is not None:
            self._note_master(self._client)
        return -1 if self._master_end < 0 else max(0, self._master_end - self._log.end_offset)

    def shown(self) -> dict[str, Any]:
        if self._service is not None:
            status = self._service.status()
            slaves = [
                {
                    "address": slave.address,
                    "acked": slave.acked,
                    "lag_bytes": slave.lag_bytes,
                    "in_sync": slave.in_sync,
                }
                for slave in status.slaves
            ]
            return {"slaves": slaves, "push2slave_max_offset": status.push2slave_max_offset}
        if self._client is not None:
            following = self._client.status()
            return {
                "state": following.state.value,
                "master": following.master or "",
                "problem": following.problem,
                "lacking_bytes": self.lacking(),
            }
        return {}

    def metrics(self) -> Iterable[Metric]:
        if self._service is not None:
            yield from service_metrics(self._service.status())
        if self._client is not None:
            yield from client_metrics(self._client.status())

    # -- internals

    def _grown(self) -> None:
        if self._client is not None:
            self._note_master(self._client)
        self._on_grown()

    def _note_master(self, client: HaClient) -> None:
        """Record the end of the master's log.

        It is known from the handshake or, with a RocketMQ master, from the received data.
        """
        end = client.status().master_end
        if end is not None:
            self._master_end = max(self._master_end, end)
        if client.status().state is HaClientState.TRANSFER:
            self._master_end = max(self._master_end, self._log.end_offset)


def service_metrics(status: HaServiceStatus) -> Iterator[Metric]:
    """Yield metrics of a master. Slaves are labeled by id, or by host if they sent no id."""
    yield _gauge("broker_ha_slaves", "Slaves connected to this master.", len(status.slaves))
    lag = GaugeMetricFamily(
        "broker_ha_slave_lag_bytes", "Bytes of the log that a slave has not acknowledged.", labels=["slave"]
    )
    acked = GaugeMetricFamily(
        "broker_ha_slave_acked_offset", "End of the log that the slave has stored.", labels=["slave"]
    )
    for name, slave in _by_name(status.slaves).items():
        lag.add_metric([name], slave.lag_bytes)
        acked.add_metric([name], slave.acked)
    yield lag
    yield acked
    yield _counter("broker_ha_waits", "Sends that waited for slaves, by outcome.", "outcome", status.acks)
    yield _counter("broker_ha_refusals", "Slaves refused, by error.", "error", status.refusals)
    yield _counter(
        "broker_ha_limits_hit", "Connections of slaves refused or closed.", "limit", status.limits_hit
    )


def client_metrics(status: HaClientStatus) -> Iterator[Metric]:
    """Yield metrics of a slave."""
    is_following = status.state is HaClientState.TRANSFER
    yield _gauge("broker_ha_following", "1: this slave is connected to its master.", int(is_following))
    yield _gauge("broker_ha_position", "End of the log that this slave has stored.", status.position)
    for name, text, value in (
        ("broker_ha_received_bytes", "Bytes of the log that this slave has received.", status.received_bytes),
        ("broker_ha_connections", "Connections of this slave to a master.", status.connections),
    ):
        family = CounterMetricFamily(name, text)
        family.add_metric([], value)
        yield family


def _by_name(slaves: Iterable[SlaveStatus]) -> dict[str, SlaveStatus]:
    """Map names to slaves. If several slaves share a name, use the one with the greatest lag."""
    by_name: dict[str, SlaveStatus] = {}
    for slave in slaves:
        name = slave.address.rpartition(":")[0] if slave.id is None else str(slave.id)
        if name not in by_name or by_name[name].lag_bytes < slave.lag_bytes:
            by_name[name] = slave
    return by_name


def _gauge(name: str, text: str, value: int) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, count in sorted(counts.items()):
        family.add_metric([key], count)
    return family
