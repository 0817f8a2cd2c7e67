"""Interface of a node for the broker's program. Both kinds of logs implement it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dledger import NodeConfig, NodeStatus, RoleEvent
from dledger.infra.transport.host import GrpcService
from dledger.metrics import NodeMetrics
from dledger.node.setup.member_book import MemberBook

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class BrokerNode(Protocol):
    """The interface of `dledger.NodeServer`, with the semantics documented there."""

    max_batch_bytes: int

    @property
    def config(self) -> NodeConfig: ...

    @property
    def members(self) -> MemberBook:
        """Addresses of the members in force, by node id."""

    @property
    def metrics(self) -> NodeMetrics: ...

    @property
    def is_released(self) -> bool: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def step_aside(self) -> None: ...

    async def stop_serving(self, timeout: float) -> None: ...

    def add_service(self, service: GrpcService) -> None: ...

    def on_role(self, listener: Callable[[RoleEvent], None]) -> None: ...

    @property
    def leader_id(self) -> str | None: ...

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None: ...

    async def hand_over(self) -> bool: ...

    @property
    def begin_pos(self) -> int: ...

    @property
    def durable_index(self) -> int: ...

    @property
    def committed_index(self) -> int: ...

    @property
    def committed_pos(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    @property
    def wanted_begin_pos(self) -> int: ...

    def keep_log_from(self, needed_from: Callable[[], int]) -> None: ...

    async def wait_committed(self, index: int, timeout: float = 5.0) -> None: ...

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int: ...

    def cluster_time_ms(self) -> int: ...

    def node_status(self) -> NodeStatus: ...

    def show_status(self, give: Callable[[], Mapping[str, Any]]) -> None: ...

    def add_metrics(self, collect: Callable[[], Iterable[Metric]]) -> None: ...
