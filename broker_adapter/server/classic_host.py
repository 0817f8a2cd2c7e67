"""Runs a broker on a classic log: its node, manual role changes, and RocketMQ's tables."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from broker_adapter.api import BrokerRole
from broker_adapter.client.core.route_data import parse_clusters
from broker_adapter.client.instance import ClientInstance
from broker_adapter.client.options import ClientOptions
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.errors import BrokerError, IllegalMessage, ResponseCode, Status
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.node.node import ClassicNode
from broker_adapter.log.classic.node.records import RECORDS
from broker_adapter.log.protocol import AppendLog, RecordLog
from broker_adapter.metadata.commands import Command
from broker_adapter.metadata.state import MetadataState
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Processor
from broker_adapter.scheduled.deferring import DeferredStore, DeferredStoreParts
from broker_adapter.scheduled.system_queues import OWN_TOPICS, SystemQueues
from broker_adapter.server.classic_tables import AdoptedChanges, TableAdoption, TableWriter
from broker_adapter.server.log_host import BackgroundService, BrokerParts
from broker_adapter.server.record_limits import resolve_store_host
from broker_adapter.server.slave_sync import SlaveSync
from broker_adapter.server.table_base import note_clean_stop
from broker_adapter.store.consume_queues import Incarnation
from broker_adapter.store.dispatcher import Arrivals, Dispatcher
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.message import decode
from dledger import AppendOutcome, DLedgerError, NodeConfig, TlsFiles
from dledger.infra.files.disk import OsDisk
from dledger.infra.logs import get_logger
from dledger.infra.transport.tls import ClientTls
from dledger.node.setup.trace import NodeTrace

_RETRY_S = 1.0

#: Appends a command before any other write.
Append = Callable[[Command], asyncio.Future[AppendOutcome]]


class MergeLogger:
    """Appends the commands of a table merge to the log. Implements BackgroundService.

    A merge is pending until all of its commands are in the log. On a slave, it also ends when data arrives
    from the master, because the slave then copies the master's tables.

    While the merge is pending, the base and the tables are not written. Suppose that they were written and
    that the process ended between two commands. The next start would find nothing to merge, and slaves would
    never delete the entries that RocketMQ had deleted.
    """

    def __init__(
        self,
        unlogged: Callable[[], Sequence[Command]],
        end_offset: Callable[[], int],
        leads: Callable[[], bool],
        on_logged: Callable[[], Awaitable[None]],
    ) -> None:
        """Create a logger.

        `unlogged`: returns the commands of the merge that the log lacks. `end_offset`: returns the end of the
        log; may be called on any thread. `leads`: returns True if this broker is master. `on_logged`: called
        and awaited once the log contains all commands.
        """
        self._unlogged = unlogged
        self._end_offset = end_offset
        self._leads = leads
        self._on_logged = on_logged
        self._pending_at: int | None = None  # end of the log at the merge
        self._is_logging = False
        self._task: asyncio.Task[None] | None = None

    def merged(self, commands: Sequence[Command]) -> None:
        """Handle a merge of the tables. Call on the machine's thread."""
        self._pending_at = self._end_offset() if commands else None

    @property
    def is_pending(self) -> bool:
        """True while a merge is pending. May be read on any thread."""
        return self._is_logging or self._pending_at == self._end_offset()

    def start(self) -> None: ...

    def log(self, append: Append) -> None:
        """Append the commands in the current event loop step, when this broker becomes master."""
        if self._task is not None:
            self._task.cancel()
        if not self.is_pending:
            self._pending_at = None
            return
        self._is_logging = True
        self._task = asyncio.create_task(self._log_all(append, self._append_all(append)), name="merge")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- inside

    def _append_all(self, append: Append) -> Sequence[asyncio.Future[AppendOutcome]]:
        """Append the commands up to the first refusal.

        Commands after a refused one must not be appended, because the last command asserts that the log has
        all others.
        """
        appended: list[asyncio.Future[AppendOutcome]] = []
        for command in self._unlogged():
            appended.append(append(command))
            if appended[-1].done() and appended[-1].exception() is not None:
                break
        return appended

    async def _log_all(self, append: Append, appended: Sequence[asyncio.Future[AppendOutcome]]) -> None:
        while problem := await _failure_of(appended):
            _log.error(
                "changes of the tables are not in the log yet and missing on slaves", reason=str(problem)
            )
            await asyncio.sleep(_RETRY_S)
            if not self._leads():
                self._pending_at, self._is_logging = self._end_offset(), False
                return
            appended = self._append_all(append)
        self._pending_at, self._is_logging = None, False
        await self._on_logged()


async def _failure_of(appended: Sequence[asyncio.Future[AppendOutcome]]) -> BaseException | None:
    """Return the first failure after all appends have ended."""
    outcomes = await asyncio.gather(*appended, return_exceptions=True)
    return next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)


_log = get_logger("classic")
#: Timeout of the NameServer query at startup, in seconds.
_NAMESRV_S = 2.0
_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_ROLES = {"master": True, "slave": False}


class ClassicHost:
    """Host of a classic log. Implements LogHost."""

    format = RECORDS
    slaves_read = True
    register_every_s = 5.0  # how soon a slave discovers a new master
    own_topics = OWN_TOPICS

    def __init__(self, config: NodeConfig, settings: BrokerSettings) -> None:
        self._config = config
        self._settings = settings
        self._classic = settings.classic
        self._slave_sync: SlaveSync | None = None
        self._table_writer: TableWriter | None = None
        self.root = config.directory
        self.slave_id = settings.classic.broker_id

    def make_node(
        self,
        machine: Dispatcher,
        metadata: MetadataState,
        delivery: DeliveryState,
        trace: NodeTrace | None,
        options: Mapping[str, Any],
    ) -> ClassicNode:
        self._dispatcher = machine
        slave = HaIdentity(self._settings.cluster, self._settings.name, self.slave_id)

        self._adoption = TableAdoption(self.root / "config", metadata, delivery)
        self._merge_logger = MergeLogger(
            self._adoption.unlogged,
            lambda: self._node.log.complete_end_offset,
            lambda: self._node.roles.leads,
            self._write_tables,
        )
        self._node = ClassicNode(
            self._config,
            self._classic,
            slave,
            machine,
            store_host=resolve_store_host(self._settings.remoting.message_id_address(self._config.address)),
            derived_end=lambda: machine.figures().checkpoint.end_pos,
            other_master=self._other_master,
            adopt=self._adopt,
            settle=self._settle,
            before_open=self._before_open,
            recorded_steps_ms=lambda: delivery.ids.steps_ms,
            **options,
        )
        return self._node

    def _before_open(self) -> None:
        note_clean_stop(OsDisk(), self.root)

    def _adopt(self, is_new: bool) -> tuple[int, Callable[[], None]] | None:
        """Handle the recovery of the derived files. Called on the machine's thread."""
        adoption = self._adoption
        adoption.begin(is_new)
        if adoption.has_changed:
            self._dispatcher.adopted()
        if not is_new:
            return None
        self._dispatcher.hide_earlier(one for one in adoption.incarnations if self._is_at(one))
        return (adoption.position, self._restore) if adoption.position >= 0 else None

    def _is_at(self, incarnation: Incarnation) -> bool:
        """Return True if the log still contains the first message of the incarnation.

        If the log has lost its end, there may be another message at this position.
        """
        topic, _, physical_offset = incarnation
        try:
            message = decode(self._node.records.record_at(physical_offset), verify_body=False)
        except (BrokerError, DLedgerError):
            return False
        return (message.topic, message.queue_offset) == (topic, 0)

    def _restore(self) -> None:
        self._adoption.restore()
        self._dispatcher.adopted()

    def _settle(self) -> None:
        """Handle the end of the initial replay. Called on the machine's thread."""
        was_clean = self._node.log.recovery.was_clean
        incarnations = self._dispatcher.queues.known_incarnations()
        commands = self._adoption.finish(self._max_offset, incarnations, was_clean=was_clean)
        if self._adoption.has_changed:
            self._dispatcher.adopted()
        self._merge_logger.merged(commands)

    def command_logged(self, command: Command) -> None:
        if self._slave_sync is not None:
            self._slave_sync.command_logged(command)

    def queue_restarted(self, topic: str, queue_id: int) -> None:
        if self._slave_sync is not None:
            self._slave_sync.queue_restarted(topic, queue_id)

    def log_unlogged(self, append: Append) -> None:
        self._merge_logger.log(append)

    @property
    def appends(self) -> AppendLog:
        return self._node.appends

    @property
    def records(self) -> RecordLog:
        return self._node.records

    @property
    def reads_here(self) -> bool:
        """False on a slave whose log has diverged, because it may have other messages at the same offsets."""
        return not self._node.replication.has_diverged

    @property
    def master_role(self) -> BrokerRole:
        return BrokerRole.SYNC_MASTER if self._node.waits_for_slaves else BrokerRole.ASYNC_MASTER

    @property
    def ha_address(self) -> str:
        return self._classic.ha_advertise or self._node.replication.address or self._classic.ha_listen

    def may_register(self, *, is_master: bool) -> bool:
        """Return True unless the role is about to change.

        A starting master is initially a slave, with a broker id that another broker may have.
        """
        return is_master == self._node.roles.leads

    def background_services(self, parts: BrokerParts) -> Sequence[BackgroundService]:
        self._slave_sync = SlaveSync(
            self._node,
            parts,
            self._client_tls,
            self._max_offset,
            self._dispatcher.adopted,
            self._readable,
        )
        self._table_writer = TableWriter(
            self.root / "config",
            parts,
            self._node.wait_applied,
            AdoptedChanges(
                lambda: self._adoption.is_finished and not self._merge_logger.is_pending,
                self._count_adopted,
                lambda: self._dispatcher.durable_adopted_count,
                self._make_durable,
            ),
            lambda: self._dispatcher.dispatched.end_pos,
            self._dispatcher.queues.known_incarnations,
        )
        return self._slave_sync, self._merge_logger, self._table_writer

    async def publish_catalog(self) -> None:
        """Write the tables, as RocketMQ does before it acknowledges a change of topics or groups.

        A broker that starts on the directory after a kill then knows the topic of each acknowledged message.
        """
        if self._table_writer is not None:
            await self._table_writer.publish()

    def arrived(self, arrivals: Arrivals) -> None:
        # During a rebuild the base determines the topics: the log also contains messages of deleted topics.
        if self._slave_sync is not None and (self._adoption.is_finished or not self._adoption.has_base):
            self._slave_sync.arrived(arrivals)

    def _readable(self) -> Arrivals:
        queues = self._dispatcher.queues.all()
        return [
            (queue.topic, queue.queue_id, queue.max_offset)
            for queue in queues
            if queue.min_offset < queue.max_offset
        ]

    async def _write_tables(self) -> None:
        """Write the tables and the base, because the log contains the merge.

        Otherwise a restart would merge again.
        """
        if self._table_writer is not None:
            await self._make_durable()
            await self._table_writer.write()

    async def _count_adopted(self) -> int:
        """Return the number of changes outside the log that readers see.

        Each change is counted on the machine's thread, so this method runs a task on that thread to wait for
        changes in progress.
        """
        await self._node.feed.run(lambda: None)
        return self._dispatcher.adopted_count

    async def _make_durable(self) -> None:
        await self._node.flush()
        await self._node.feed.run(self._dispatcher.settle)

    def _max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._dispatcher.queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def suggested_reader(self, physical_offset: int) -> int:
        """Suggest the broker to read from, by RocketMQ's rule.

        The rule assumes that a message is no longer in memory if the data after it exceeds a share of the
        memory.
        """
        classic = self._classic
        behind = self._node.log.end_offset - physical_offset
        is_far = behind > _MEMORY_BYTES * classic.access_message_in_memory_max_ratio // 100
        return classic.which_broker_when_consume_slowly if is_far and classic.slave_read_enable else MASTER_ID

    def commands(self) -> Mapping[int, Processor]:
        return {
            RequestCode.CHANGE_BROKER_ROLE: self._change_role,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._delete_expired,
        }

    def deferring(self, own: DeferredStore, parts: DeferredStoreParts) -> DeferredStore:
        return SystemQueues(own, parts, reserved_ms=3_600_000 * self._classic.file_reserved_hours)

    def rocketmq_settings(self) -> Mapping[str, str]:
        classic = self._classic
        role = self.master_role.value if self._node.roles.leads else BrokerRole.SLAVE.value
        return {
            "brokerRole": role,
            "flushDiskType": classic.flush,
            "haListenPort": self.ha_address.rpartition(":")[2],
            "mappedFileSizeCommitLog": str(classic.file_size),
            "slaveReadEnable": str(classic.slave_read_enable).lower(),
            "storePathRootDir": str(self.root),
        }

    def metrics(self) -> Iterable[Metric]:
        return self._node.replication.metrics()

    def shown(self) -> Mapping[str, Any]:
        log = self._node.log
        recovery = log.recovery
        return {
            "ha": self._node.replication.shown(),
            "commit_log": {
                "begin_offset": log.begin_offset,
                "end_offset": log.end_offset,
                "flushed_offset": log.flushed_offset,
                "refusal": log.refusal,
                "was_clean": recovery.was_clean,
                "cut_bytes": recovery.cut_bytes,
                "damage": recovery.damage,
            },
        }

    async def _other_master(self) -> str:
        """Return the master's address according to the NameServers, or "" if it is unknown."""
        if not self._settings.namesrv:
            return ""
        client = ClientInstance(
            self._settings.namesrv, ClientOptions(request_timeout=_NAMESRV_S), self._client_tls()
        )
        try:
            answer = await client.call_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            clusters = parse_clusters(answer.body)
        except BrokerError as error:
            _log.warning("no NameServer returned the current master", reason=str(error))
            return ""
        finally:
            await client.close()
        brokers = clusters.get(self._settings.cluster, ())
        masters = [known.master for known in brokers if known.name == self._settings.name and known.master]
        own = self._settings.remoting.message_id_address(self._config.address)
        return next((master for master in masters if master != own), "")

    def _client_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for remoting calls of this broker, or None for plain text. Reads files."""
        section = self._config.tls
        if section is None or not self._settings.remoting.client_tls:
            return None
        return ClientTls(TlsFiles(section.ca, section.certificate, section.key)).stream_context()

    async def _delete_expired(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Delete files of old messages now. As in RocketMQ, the response precedes the deletion."""
        self._node.upkeep.clean_now()
        return request.answer(ResponseCode.SUCCESS)

    async def _change_role(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Change the role. Fields: `role` (master or slave), `force` (change the role despite
        missing data).
        """
        role = read.text(request.fields, "role")
        if role not in _ROLES:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"role {role[:32]!r} is neither master nor slave")
        await self._node.change_role(_ROLES[role], force=read.flag(request.fields, "force"))
        return request.answer(ResponseCode.SUCCESS)
