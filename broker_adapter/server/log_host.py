"""Interface between a broker's program and the kind of log that it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.core import Metric

from broker_adapter.api import BrokerRole
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.log.node import BrokerNode
from broker_adapter.log.protocol import AppendLog, RecordFormat, RecordLog
from broker_adapter.log.replicated import ENTRIES, ReplicatedAppends, ReplicatedRecords
from broker_adapter.metadata.commands import Command
from broker_adapter.metadata.state import MetadataState
from broker_adapter.namesrv.registration import EVERY_S, RegistrarStatus
from broker_adapter.remoting.executors import Processor
from broker_adapter.scheduled.deferring import MakeDeferredStore, in_commands
from broker_adapter.store.dispatcher import Arrivals, Dispatcher
from broker_adapter.wire.broker_ids import MASTER_ID
from dledger import AppendOutcome, NodeConfig, NodeServer
from dledger.core.values import UNKNOWN_UID
from dledger.node.setup.trace import NodeTrace


class BrokerParts(Protocol):
    """The parts of a broker's program that a log's own services use."""

    settings: BrokerSettings
    metadata: MetadataState
    delivery_state: DeliveryState

    @property
    def is_master(self) -> bool: ...

    def registrations(self) -> Mapping[str, RegistrarStatus]: ...


class BackgroundService(Protocol):
    """A service that runs while the broker runs. It handles its own errors.

    `start` is called after the broker has started, and `stop` when the broker no longer writes.
    """

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class LogHost(Protocol):
    """A kind of log, with the services and settings that depend on it.

    `format`, `root` (directory of derived files) and `slave_id` (RocketMQ's broker id as a slave) are
    available immediately, all other members after `make_node`.
    """

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
        """Create the node. `options`: additional node arguments, for tests."""

    @property
    def appends(self) -> AppendLog: ...

    @property
    def records(self) -> RecordLog: ...

    @property
    def master_role(self) -> BrokerRole:
        """The role that a master of this log has. Requires a started node."""

    @property
    def ha_address(self) -> str:
        """host:port at which slaves fetch the log; "" if replication uses no separate address."""

    @property
    def slaves_read(self) -> bool:
        """True if slaves serve reads instead of forwarding them."""

    @property
    def register_every_s(self) -> float:
        """Interval of NameServer registrations without changes, in seconds."""

    def may_register(self, *, is_master: bool) -> bool:
        """Return False if the role is about to change, so that it must not be registered with NameServers
        yet.
        """

    def background_services(self, parts: BrokerParts) -> Sequence[BackgroundService]: ...

    async def publish_catalog(self) -> None:
        """Write topics and groups to the files that another broker reads when it is started on this
        directory.
        """

    def log_unlogged(self, append: Callable[[Command], asyncio.Future[AppendOutcome]]) -> None:
        """Append the commands that the state includes but the log lacks, in the current event-loop step.

        A new master calls this before any other write.
        """

    def arrived(self, arrivals: Arrivals) -> None:
        """Handle dispatched messages. Called on the machine's thread."""

    def command_logged(self, command: Command) -> None:
        """Handle a command of the log, applied or refused. Called on the machine's thread."""

    def queue_restarted(self, topic: str, queue_id: int) -> None:
        """Handle a queue that restarts at offset 0. Called on the machine's thread."""

    @property
    def own_topics(self) -> Collection[str]:
        """Topics that only the broker writes, with or without a config."""

    @property
    def deferring(self) -> MakeDeferredStore:
        """Storage of delayed messages and half messages."""

    @property
    def reads_here(self) -> bool:
        """True if a slave may serve reads from its own data.

        If `slaves_read` is set and the result is False, this node's data must not be read.
        """

    def suggested_reader(self, physical_offset: int) -> int:
        """Return the id of the broker from which a consumer at this position should continue to read."""

    def commands(self) -> Mapping[int, Processor]:
        """Return the processors of operator requests for this log, by request code."""

    def rocketmq_settings(self) -> Mapping[str, str]:
        """Return the broker settings under RocketMQ's names."""

    def shown(self) -> Mapping[str, Any]:
        """Return values for the status."""

    def metrics(self) -> Iterable[Metric]:
        """Return metrics of this log, in addition to the node's metrics."""


class ReplicatedHost:
    """Host of the replicated log of a NodeServer. Implements LogHost."""

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

    @property
    def slave_id(self) -> int:
        """The same for as long as the node is a member, and no other member has it."""
        uid, first = self._node.uid, self._node.first_members
        return uid if uid > 0 else 1 + sorted(first).index(self._config.node_id)

    def make_node(
        self,
        machine: Dispatcher,
        metadata: MetadataState,
        delivery: DeliveryState,
        trace: NodeTrace | None,
        options: Mapping[str, Any],
    ) -> NodeServer:
        node_trace = None if trace is None else _DispatchTrace(trace)
        self._node = node = NodeServer(self._config, machine, owned=True, trace=node_trace, **options)
        self.appends, self.records = ReplicatedAppends(node), ReplicatedRecords(node)
        return node

    @property
    def master_role(self) -> BrokerRole:
        is_sync = self._node.node_status().flush_mode == "SYNC_FLUSH"
        return BrokerRole.SYNC_MASTER if is_sync else BrokerRole.ASYNC_MASTER

    def may_register(self, *, is_master: bool) -> bool:
        return self._node.uid != UNKNOWN_UID  # before that, it is no member

    def background_services(self, parts: BrokerParts) -> Sequence[BackgroundService]:
        return ()

    async def publish_catalog(self) -> None: ...

    def log_unlogged(self, append: Callable[[Command], asyncio.Future[AppendOutcome]]) -> None: ...

    def arrived(self, arrivals: Arrivals) -> None: ...

    def command_logged(self, command: Command) -> None: ...

    def queue_restarted(self, topic: str, queue_id: int) -> None:
        raise AssertionError("queues of a replicated log never restart")

    def suggested_reader(self, physical_offset: int) -> int:
        return MASTER_ID

    def commands(self) -> Mapping[int, Processor]:
        return {}

    def rocketmq_settings(self) -> Mapping[str, str]:
        return {}

    def shown(self) -> Mapping[str, Any]:
        return {}

    def metrics(self) -> Iterable[Metric]:
        return ()


class _DispatchTrace:
    """Forwards the node's trace events and adds the progress of the queues. Implements `NodeTrace`.

    The Dispatcher is the state machine, so it has processed exactly the entries that the node has applied or
    loaded.
    """

    def __init__(self, trace: NodeTrace) -> None:
        self._trace = trace
        self.begin = trace.begin

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        self._trace.event(ev, e, fields)
        if e == "apply":
            self._trace.event("store", "reput", {"lidx": fields["last"]})
        elif e == "load":
            self._trace.event("store", "reput", {"lidx": fields["lidx"]})
