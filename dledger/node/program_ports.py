"""Ports of a node whose program has its own log: gRPC services, status service and status page.

A NodeServer has the same ports, and the ports of its log. This module is for nodes without a replicated log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from dledger.errors import DLedgerError
from dledger.infra.files.watching import FileWatch
from dledger.infra.transport.host import GrpcHost, GrpcService
from dledger.metrics import NodeMetrics
from dledger.node.members.clients import MemberClients
from dledger.node.owner_status import OwnerStatus
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.member_book import MemberBook
from dledger.node.setup.security import NodeSecurity
from dledger.rpc.admin_service import status_service
from dledger.status.cluster import NodeAnswer
from dledger.status.metrics import StatusExporter
from dledger.status.model import NodeStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from dledger.infra.http.server import HttpServer

_STATUS_TIMEOUT_S = 1.0


class ProgramPorts:
    """Implements StatusSource. Call `start` once and `stop` once, on the same event loop."""

    def __init__(
        self, config: NodeConfig, metrics: NodeMetrics, node_status: Callable[[], NodeStatus]
    ) -> None:
        """`node_status` is called on the loop; `shown` returns the program's own part."""
        self.node_status = node_status
        self.http_address = config.http_members.get(config.node_id, "")
        self._config = config
        self._owner = OwnerStatus()
        self._exporter = StatusExporter(node_status, metrics, self._owner.metrics)
        self._security: NodeSecurity | None = None
        members = MemberBook(config.members, config.peer_addresses)
        self._clients = MemberClients(config.group, members, lambda: self._security)
        self._grpc: GrpcHost | None = None
        self._http: HttpServer | None = None
        self._files: FileWatch | None = None

    node_status: Callable[[], NodeStatus]

    # -- the program's part of the status

    def show_status(self, give: Callable[[], Mapping[str, Any]]) -> None:
        """Like NodeServer.show_status."""
        self._owner.give = give

    def add_metrics(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Like NodeServer.add_metrics."""
        self._owner.collectors.append(collect)

    def shown(self) -> dict[str, Any]:
        return self._owner.shown()

    # -- life

    async def start(self, services: Sequence[GrpcService], readers: Executor) -> None:
        """Open the ports. Raises ConfigError (PORT_IN_USE, PLAINTEXT_REFUSED, CONFIG_INVALID); then call
        `stop`.
        """
        config = self._config
        config.refuse_plaintext()
        if config.tls is not None:
            loop = asyncio.get_running_loop()
            self._security = await loop.run_in_executor(readers, NodeSecurity, config)
            self._files = FileWatch(readers, [self._security.reload_files], self._renew_certificates)
            self._files.start()
        self._grpc = GrpcHost(
            status_service(config.group, self.node_status),
            others=services,
            credentials=self._security.server_credentials() if self._security else None,
        )
        await self._grpc.start(config.listen_address)
        if config.http_listen:
            from dledger.status.http import start_http  # its libraries are large

            context = self._security.http_context if self._security else None
            self._http = await start_http(self, config.http_listen, context, allowed_hosts=config.http_hosts)
            self.http_address = self.http_address or self._http.address

    async def stop_serving(self, timeout: float) -> None:
        """Accept no new calls and give running ones `timeout` seconds. Repeatable."""
        if self._grpc is not None:
            await self._grpc.stop(timeout)

    async def stop(self) -> None:
        await self.stop_serving(0)
        if self._files is not None:
            await self._files.stop()
        if self._http is not None:
            await self._http.stop()
        await self._clients.close()

    @property
    def address(self) -> str:
        """host:port of gRPC, with the port actually bound."""
        return self._grpc.address if self._grpc is not None else ""

    # -- StatusSource

    async def cluster_status(self) -> dict[str, NodeAnswer]:
        others = [node_id for node_id in self._config.members if node_id != self._config.node_id]
        answers = await asyncio.gather(*(self._fetch_status(node_id) for node_id in others))
        return {self._config.node_id: self.node_status(), **dict(zip(others, answers, strict=True))}

    def metrics_text(self) -> bytes:
        return self._exporter.text()

    # -- inside

    async def _fetch_status(self, node_id: str) -> NodeAnswer:
        try:
            return await self._clients.of(node_id).get_status(_STATUS_TIMEOUT_S)
        except DLedgerError as error:
            return error.message

    async def _renew_certificates(self) -> None:
        """Use certificates that have changed."""
        assert self._security is not None
        if self._security.check_reloaded():
            self._clients.renew()
