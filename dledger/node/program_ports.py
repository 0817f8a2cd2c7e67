"""The ports of a node whose log is its program's own: gRPC services with the node's status, and its page.

A NodeServer has these and the log's. Here is what is left without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from dledger.errors import DLedgerError
from dledger.metrics import NodeMetrics
from dledger.node.owner_status import OwnerStatus
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.security import NodeSecurity
from dledger.rpc.admin_service import status_service
from dledger.rpc.log_client import LogClient
from dledger.rpc.transport.host import GrpcHost, GrpcService
from dledger.status.cluster import Answer
from dledger.status.http import start_http
from dledger.status.metrics import StatusExporter
from dledger.status.model import NodeStatus
from dledger.status.web import HttpServer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_ASK_S = 1.0
_TLS_LOOK_S = 1.0


class ProgramPorts:
    """Implements StatusSource. `start` once, `stop` once, on one event loop."""

    def __init__(
        self, config: NodeConfig, metrics: NodeMetrics, node_status: Callable[[], NodeStatus]
    ) -> None:
        """`node_status` is asked on the loop; what the program shows is `shown`."""
        self.node_status = node_status
        self.http_address = config.http_members.get(config.node_id, "")
        self._config = config
        self._owner = OwnerStatus()
        self._exporter = StatusExporter(node_status, metrics, self._owner.metrics)
        self._clients: dict[str, LogClient] = {}
        self._security: NodeSecurity | None = None
        self._grpc: GrpcHost | None = None
        self._http: HttpServer | None = None
        self._looking: asyncio.Task[None] | None = None

    node_status: Callable[[], NodeStatus]

    # -- what the program shows

    def show_status(self, give: Callable[[], Mapping[str, Any]]) -> None:
        """As NodeServer has it."""
        self._owner.give = give

    def add_metrics(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """As NodeServer has it."""
        self._owner.collectors.append(collect)

    def shown(self) -> dict[str, Any]:
        return self._owner.shown()

    # -- life

    async def start(self, services: Sequence[GrpcService], readers: Executor) -> None:
        """ConfigError (PORT_IN_USE, PLAINTEXT_REFUSED, CONFIG_INVALID); what was begun is to be stopped."""
        config = self._config
        config.refuse_plaintext()
        if config.tls is not None:
            loop = asyncio.get_running_loop()
            self._security = await loop.run_in_executor(readers, NodeSecurity, config)
            self._looking = loop.create_task(self._look_at_certificates(readers))
        self._grpc = GrpcHost(
            status_service(config.group, self.node_status),
            others=services,
            credentials=self._security.server_credentials() if self._security else None,
        )
        await self._grpc.start(config.listen_address)
        if config.http_listen:
            context = self._security.http_context if self._security else None
            self._http = await start_http(self, config.http_listen, context, allowed_hosts=config.http_hosts)
            self.http_address = self.http_address or self._http.address

    async def stop_serving(self, grace_s: float) -> None:
        """Take no new calls; those under way have so long. Repeatable."""
        if self._grpc is not None:
            await self._grpc.stop(grace_s)

    async def stop(self) -> None:
        await self.stop_serving(0)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._http is not None:
            await self._http.stop()
        for client in self._clients.values():
            await client.close()

    @property
    def address(self) -> str:
        """host:port of gRPC, with the port that was really bound."""
        return self._grpc.address if self._grpc is not None else ""

    # -- StatusSource

    async def cluster_status(self) -> dict[str, Answer]:
        others = [node_id for node_id in self._config.members if node_id != self._config.node_id]
        answers = await asyncio.gather(*(self._ask(node_id) for node_id in others))
        return {self._config.node_id: self.node_status(), **dict(zip(others, answers, strict=True))}

    def metrics_text(self) -> bytes:
        return self._exporter.text()

    # -- inside

    async def _ask(self, node_id: str) -> Answer:
        client = self._clients.get(node_id)
        if client is None:
            security = self._security.channel(node_id) if self._security else None
            client = LogClient(self._config.peer_address(node_id), self._config.group, security)
            self._clients[node_id] = client
        try:
            return await client.get_status(_ASK_S)
        except DLedgerError as error:
            return error.message

    async def _look_at_certificates(self, readers: Executor) -> None:
        assert self._security is not None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TLS_LOOK_S)
            await loop.run_in_executor(readers, self._security.look)
            if self._security.taken_over():
                clients, self._clients = self._clients, {}
                for client in clients.values():
                    await client.close()
