"""The log under a broker: what makes its node, and what else it needs to run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.core import Metric

from broker_adapter.api import BrokerRole
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.deferred.deferring import MakeDeferring, in_commands
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.log.node import BrokerNode
from broker_adapter.log.protocol import AppendLog, RecordFormat, RecordLog
from broker_adapter.log.replicated import ENTRIES, ReplicatedAppends, ReplicatedRecords
from broker_adapter.metadata.state import MetadataState
from broker_adapter.namesrv.registration import EVERY_S, RegistrarStatus
from broker_adapter.pop.state import DeliveryState
from broker_adapter.remoting.executors import Processor
from broker_adapter.store.dispatcher import Dispatcher
from dledger import NodeConfig, NodeServer
from dledger.platform import NodeTrace


class BrokerParts(Protocol):
    """What of a broker's program a log's own works use."""

    settings: BrokerSettings
    metadata: MetadataState
    delivery_state: DeliveryState

    @property
    def is_master(self) -> bool: ...

    def registrations(self) -> Mapping[str, RegistrarStatus]: ...


class Beside(Protocol):
    """A work beside the broker: `start` behind it, `stop` when it writes no more. It keeps its own errors."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class LogHost(Protocol):
    """`format`, `root` (of derived files) and `slave_id` (RocketMQ's id of this broker as slave) are there
    from the beginning, the rest after `make_node`."""

    @property
    def format(self) -> RecordFormat: ...

    @property
    def root(self) -> Path: ...

    @property
    def slave_id(self) -> int: ...

    def make_node(
        self,
        machine: Dispatcher,
        metadata: MetadataState,
        delivery: DeliveryState,
        trace: NodeTrace | None,
        options: Mapping[str, Any],
    ) -> BrokerNode:
        """`options`: further ones of the node, for tests."""

    @property
    def appends(self) -> AppendLog: ...

    @property
    def records(self) -> RecordLog: ...

    @property
    def master_role(self) -> BrokerRole:
        """Of a node that was started."""

    @property
    def ha_address(self) -> str:
        """host:port where slaves fetch the log; "": logs find their own ways."""

    @property
    def slaves_read(self) -> bool:
        """Whether a node that is not the master answers reads itself."""

    @property
    def register_every_s(self) -> float:
        """Seconds: how often NameServers are told, and asked, if nothing changes."""

    def may_register(self, *, is_master: bool) -> bool:
        """Whether NameServers may hear of this role: not of one that is about to end."""

    def beside(self, parts: BrokerParts) -> Sequence[Beside]: ...

    @property
    def own_topics(self) -> Collection[str]:
        """That the broker alone writes, whether there are configurations of them or not."""

    @property
    def deferring(self) -> MakeDeferring:
        """How delayed messages and halves of transactions are kept."""

    @property
    def reads_here(self) -> bool:
        """Who reads at a slave means that slave. False where slaves read: what it has is not to be read."""

    def suggested_reader(self, physical_offset: int) -> int:
        """The id of the broker at which somebody had better go on reading who has come so far."""

    def commands(self) -> Mapping[int, Processor]:
        """Request codes by which operators change this log."""

    def told_settings(self) -> Mapping[str, str]:
        """As RocketMQ names them, for whoever asks for a broker's settings."""

    def shown(self) -> Mapping[str, Any]:
        """For the status."""

    def metrics(self) -> Iterable[Metric]:
        """Of this log's own; any others than those of the node."""


class ReplicatedHost:
    """Implements LogHost: the log is that of a NodeServer."""

    format = ENTRIES
    ha_address = ""
    slaves_read = False
    register_every_s = EVERY_S
    reads_here = False
    own_topics = ()
    deferring = staticmethod(in_commands)

    def __init__(self, config: NodeConfig, settings: BrokerSettings) -> None:
        self._config = config
        directory = config.directory
        self.root = settings.directory or directory.with_name(f"{directory.name}-broker")
        self.slave_id = 1 + sorted(config.members).index(config.node_id)

    def make_node(
        self,
        machine: Dispatcher,
        metadata: MetadataState,
        delivery: DeliveryState,
        trace: NodeTrace | None,
        options: Mapping[str, Any],
    ) -> NodeServer:
        told = None if trace is None else _DispatchTrace(trace)
        self._node = node = NodeServer(self._config, machine, owned=True, trace=told, **options)
        self.appends, self.records = ReplicatedAppends(node), ReplicatedRecords(node)
        return node

    @property
    def master_role(self) -> BrokerRole:
        is_sync = self._node.node_status().flush_mode == "SYNC_FLUSH"
        return BrokerRole.SYNC_MASTER if is_sync else BrokerRole.ASYNC_MASTER

    def may_register(self, *, is_master: bool) -> bool:
        return True

    def beside(self, parts: BrokerParts) -> Sequence[Beside]:
        return ()

    def suggested_reader(self, physical_offset: int) -> int:
        return MASTER_ID

    def commands(self) -> Mapping[int, Processor]:
        return {}

    def told_settings(self) -> Mapping[str, str]:
        return {}

    def shown(self) -> Mapping[str, Any]:
        return {}

    def metrics(self) -> Iterable[Metric]:
        return ()


class _DispatchTrace:
    """Implements `NodeTrace`: what the node tells, and how far the queues are built. The Dispatcher
    is its state machine, so that is as far as the node has applied, or loaded."""

    def __init__(self, trace: NodeTrace) -> None:
        self._trace = trace
        self.begin = trace.begin

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        self._trace.event(ev, e, fields)
        if e == "apply":
            self._trace.event("store", "reput", {"lidx": fields["last"]})
        elif e == "load":
            self._trace.event("store", "reput", {"lidx": fields["lidx"]})
