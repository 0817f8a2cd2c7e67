"""The broker on its node: `factory = "broker_adapter.server.program:broker"` in `[program]` of the node."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from typing import Any

from broker_adapter.api import BrokerInfo
from broker_adapter.commitlog.message_writer import MessageWriter, PutLimits
from broker_adapter.config.settings import BrokerSettings, parse_settings
from broker_adapter.deferred.delay_file import FILE_NAME as DELAY_FILE_NAME
from broker_adapter.deferred.delay_file import DelayFile
from broker_adapter.errors import BrokerError
from broker_adapter.format.host import Host
from broker_adapter.format.index_layout import IndexShape
from broker_adapter.format.message import Version, record_size
from broker_adapter.format.properties import MAX_PROPERTIES_BYTES
from broker_adapter.format.topic_names import MAX_DERIVED_TOPIC_LENGTH
from broker_adapter.log.node import BrokerNode
from broker_adapter.metadata.commands import METADATA_TOPIC, Command, PutGroup
from broker_adapter.metadata.expiry import LastUse
from broker_adapter.metadata.group_expiry import GroupExpiry
from broker_adapter.metadata.group_service import GroupService
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_expiry import TopicExpiry
from broker_adapter.metadata.topic_gate import TopicGate
from broker_adapter.metadata.values import Outcome
from broker_adapter.namesrv.registration import Registrar, RegistrarStatus
from broker_adapter.namesrv.values import Registration
from broker_adapter.pop.commands import Outcome as DeliveryOutcome
from broker_adapter.pop.committer import LEAST_ROUND_ENTRIES, ROUND_BYTES, ROUND_ENTRIES
from broker_adapter.pop.service import DeliveryService, RoundLimits, Runtime, Topics
from broker_adapter.pop.state import DeliveryState
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.processor.pulls import ReadRules
from broker_adapter.processor.replies import ReplyProcessor
from broker_adapter.processor.request import request_of
from broker_adapter.processor.transactions import ask_producer
from broker_adapter.proxy.access.guard import Guard
from broker_adapter.proxy.calls.handlers import MessagingHandlers
from broker_adapter.proxy.clients import ClientStreams
from broker_adapter.proxy.forwarding.forwarder import Forwarder
from broker_adapter.proxy.forwarding.members import Members
from broker_adapter.proxy.forwarding.service import ForwardService
from broker_adapter.proxy.ports import ClientPorts
from broker_adapter.proxy.serving import ClientService, ReplicatedDirectory, client_service
from broker_adapter.remoting_door.access import RemotingAccess
from broker_adapter.remoting_door.local_reads import LocalReads
from broker_adapter.remoting_door.serving import Making, both_protocols, default_topics, remoting_port
from broker_adapter.role.broker_role import BrokerRoleAdapter
from broker_adapter.role.role_change import RoleChangeHandler, RoleChangeLimits
from broker_adapter.server.broker import Broker
from broker_adapter.server.broker_status import BrokerStatus
from broker_adapter.server.dispatched_files import DispatchedFiles, holdings, needed_from
from broker_adapter.server.hosts import host_for
from broker_adapter.server.imports import Imports
from broker_adapter.server.log_host import Beside, LogHost
from broker_adapter.server.reader_threads import reader_threads
from broker_adapter.server.replicated_state import ReplicatedState
from broker_adapter.store.dispatcher import Arrivals, Dispatcher, StoreOptions
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.traffic.traffic import Traffic
from dledger import Code, ConfigError, NodeConfig, TlsFiles
from dledger.platform import AdminNames, GrpcService, NodeTrace, PeerNames, get_logger

_log = get_logger("broker")

_PURGE_LOOK_S = 1.0
_FILES_LOOK_S = 1.0
#: Batches under way may take so long when the process is asked to end.
_DRAIN_S = 2.0
#: For what clients ask in the moment in which the node stops listening (seconds).
_LAST_CALLS_S = 0.5
#: Steps of role changes that the status shows.
_HISTORY = 16
#: What a record may have beside its body; the same of a command, which has no properties.
_MAX_OVERHEAD = record_size(0, MAX_DERIVED_TOPIC_LENGTH, MAX_PROPERTIES_BYTES, version=Version.V2, v6_hosts=2)
_COMMAND_OVERHEAD = record_size(0, MAX_DERIVED_TOPIC_LENGTH, 0, version=Version.V2, v6_hosts=2)
#: What an append has beside a message: the headers of entries, the time, a command that tells of it.
_APPEND_OVERHEAD = 4 << 10


def broker(config: NodeConfig, settings: Mapping[str, Any]) -> BrokerProgram:
    """The factory. ConfigError for wrong settings."""
    return BrokerProgram(config, parse_settings(settings))


def largest_body(max_body_bytes: int, max_batch_bytes: int) -> int:
    """What the log's limits of a body and of a batch leave for that of a message. ConfigError: nothing."""
    if max_body_bytes <= _MAX_OVERHEAD:
        text = f"limits.max_body_bytes {max_body_bytes}: a broker needs {_MAX_OVERHEAD} more"
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    if max_batch_bytes <= (beside := _MAX_OVERHEAD + _APPEND_OVERHEAD):
        text = (
            f"limits.max_batch_bytes {max_batch_bytes}: a broker needs {beside} more, and data files for it"
        )
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return min(max_body_bytes, max_batch_bytes - _APPEND_OVERHEAD) - _MAX_OVERHEAD


def batch_entries(most: int) -> int:
    """The log's limit of entries in a batch, if a broker can work with it. ConfigError."""
    if most < LEAST_ROUND_ENTRIES:
        text = f"limits.max_batch_entries {most}: a broker needs {LEAST_ROUND_ENTRIES} at least"
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return most


class BrokerProgram:
    """Implements `dledger.Program`: makes the parts, connects them, starts and stops them in order."""

    def __init__(
        self,
        config: NodeConfig,
        settings: BrokerSettings,
        *,
        trace: NodeTrace | None = None,
        host: LogHost | None = None,
    ) -> None:
        """`trace`: is told what the node and the broker on it do. `host`: the log, if not as settings say."""
        self.config = config
        self.settings = settings
        self._trace = trace
        self.host = host or host_for(config, settings)
        self._beside: Sequence[Beside] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = reader_threads()
        self._purging: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._complaints: dict[str, str] = {}  # of work that comes round again: what was logged last
        self._guard: Guard | None = None
        self._access: RemotingAccess | None = None
        self._registrar: Registrar | None = None
        self._topics: Mapping[str, Any] = {}
        self._topics_version = 0
        self.remoting_clients = RemotingClients()
        self._replies = ReplyProcessor(self.remoting_clients, settings.remoting.told_address(config.address))
        self.delivery_state = DeliveryState(
            on_outcomes=self._on_outcomes,
            first_offset=lambda *queue: self.metadata.first_offset(*queue),
            index=DelayFile(self.host.root / DELAY_FILE_NAME),
        )
        self.metadata = MetadataState(
            on_result=self._on_result,
            on_topic_cut=self._on_topic_cut,
            on_done=self._on_metadata_done,
            delivered=self.delivery_state.of_group,
            begin_queue=lambda *queue: self.dispatcher.begin_queue(*queue),
        )
        self.traffic = Traffic(time.monotonic, _day)
        self.topic_use, self.group_use = LastUse(_monotonic_ms), LastUse(_monotonic_ms)
        self.topic_gate = TopicGate(self.metadata, self.topic_use, self.host.own_topics)
        self.dispatcher = self._make_dispatcher()

    def make_node(self, **options: Any) -> BrokerNode:
        """`options`: further ones of the node, for tests."""
        config, settings = self.config, self.settings
        self.node = node = self.host.make_node(
            self.dispatcher, self.metadata, self.delivery_state, self._trace, options
        )
        max_record, max_entries = config.limits.max_body_bytes, batch_entries(config.limits.max_batch_entries)
        largest = min(settings.max_body_bytes, largest_body(max_record, node.max_batch_bytes))
        self.files = files = DispatchedFiles(node, self.dispatcher)
        self.writer = writer = MessageWriter(
            self.host.appends,
            _store_host(settings.remoting.told_address(config.address)),
            self._put_limits(node, largest, max_entries),
            master=self.master_address,
            node_id=config.node_id,
            on_refused=self._on_refused,
            topics=self.topic_gate,
            stored=self.traffic.put,
        )
        self.proposals = Proposals(
            lambda command: writer.put_command(METADATA_TOPIC, command, self.topic_gate.appending(command)),
            new_request_id=lambda: os.urandom(16),
        )
        self.groups = groups = GroupService(
            self.metadata,
            self.proposals,
            files,
            monotonic_ms=_monotonic_ms,
            auto_create=settings.auto_create_groups,
            auto_create_up_to=settings.auto_create_up_to,
            auto_create_per_client=settings.auto_create_per_client,
            used=self.group_use.touch,
        )
        node.keep_log_from(needed_from(self.dispatcher, self.delivery_state))
        reader = QueueReader(files, self.host.records)
        self.broker = Broker(
            settings,
            node,
            writer,
            files,
            reader,
            self.metadata,
            self.proposals,
            groups,
            self._readers,
            self.info,
            self.delivery_state,
            self.topic_use.touch,
            self.traffic.given,
        )
        self._make_expiries(files)
        self.delivery = self._make_delivery(files, reader, groups, max_entries)
        self._serve_clients(largest)
        self.adapter = BrokerRoleAdapter(
            writer,
            files,
            [groups, self.delivery, self.topic_expiry, self.group_expiry],
            slave_id=self.host.slave_id,
            on_change=self._role_changed,
        )
        limits = RoleChangeLimits(patience_s=settings.role_change_report_ms / 1000, history=_HISTORY)
        self.handler = RoleChangeHandler(node, self.adapter, limits=limits, trace=self._trace)
        self._status = BrokerStatus(self)
        node.show_status(self._status.shown)
        node.add_metrics(self._status.metrics)
        return node

    def _put_limits(self, node: BrokerNode, max_body_bytes: int, max_messages: int) -> PutLimits:
        return PutLimits(
            max_body_bytes=max_body_bytes,
            max_command_bytes=self.config.limits.max_body_bytes - _COMMAND_OVERHEAD,
            max_append_bytes=node.max_batch_bytes,
            max_append_messages=max_messages,
            timeout_ms=self.settings.send_timeout_ms,
        )

    def _make_expiries(self, files: DispatchedFiles) -> None:
        self.topic_expiry = TopicExpiry(
            self.metadata,
            self.proposals,
            self.topic_use,
            holdings(files, self.dispatcher, self.delivery_state, self.writer),
            expire_ms=self.settings.auto_create_expire_ms,
            run=self._readers.run,
        )
        self.group_expiry = GroupExpiry(
            self.metadata,
            self.proposals,
            self.group_use,
            expire_ms=self.settings.auto_create_groups_expire_ms,
            has_pending=self.delivery_state.has_pending,
        )

    def _make_delivery(
        self, files: DispatchedFiles, reader: QueueReader, groups: GroupService, max_entries: int
    ) -> DeliveryService:
        node = self.node
        return DeliveryService(
            self.settings,
            self.delivery_state,
            self.metadata,
            self.writer,
            reader,
            files,
            Topics(
                self.broker.topic_to_write,
                self.broker.make_topic,
                groups.make_known,
                self.topic_use.touch,
                groups.known,
                self.traffic.given,
            ),
            node,
            Runtime(
                node.cluster_time_ms,
                _wall_ms,
                self._readers.run,
                self._readers.run_filter,
                lambda: os.urandom(16),
            ),
            RoundLimits(min(ROUND_BYTES, node.max_batch_bytes // 2), min(ROUND_ENTRIES, max_entries)),
            self.host.deferring,
        )

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.adapter.master_role = self.host.master_role
        if self.settings.namesrv or self.settings.remoting.namesrv:
            self._registrar = Registrar(
                self.settings.namesrv,
                self._tls_files(),
                by_remoting=self.settings.remoting.namesrv,
                remoting_tls=self.settings.remoting.client_tls,
                every_s=self.host.register_every_s,
            )
        self.delivery.on_orphan(
            partial(
                ask_producer,
                self.remoting_clients,
                otherwise=self.clients.ask_producer,
                may_end=self._may_end,
            )
        )
        if self.settings.rocketmq_v2.enabled:
            self.writer.on_change = self._writable_changed
            self.node.on_role(self.forwarder.role_changed)
            await self.ports.start()
            await self.remoting.start()
            self._looking = asyncio.create_task(self._look_at_files())
        self.handler.start()
        self._beside = self.host.beside(self)
        for work in self._beside:
            work.start()
        self._purging = asyncio.create_task(self._follow_purges())

    async def stop(self) -> None:
        """Leadership goes first. Until clients have been told to go elsewhere, their calls are held for the
        new master and handed on to it."""
        self.writer.stop()
        # What is in the log already is committed in a moment: better an answer than a doubt.
        await self.clients.handlers.drain(_DRAIN_S)
        self.broker.long_polls.close()
        self.delivery.wake_all()
        await self.node.step_aside()
        await self.clients.service.drain(_DRAIN_S)
        closing = asyncio.gather(
            self.node.stop_serving(_LAST_CALLS_S),
            self.ports.stop(_LAST_CALLS_S),
            self.remoting.stop(_LAST_CALLS_S),
        )
        self.clients.service.send_away()
        await closing
        await self.handler.stop()
        if self._registrar is not None:
            await self._registrar.stop()
        self.clients.service.stop()
        self.forwarding.stop()
        await self.forwarder.stop()
        if self._looking is not None:
            self._looking.cancel()
        if self._purging is not None:
            self._purging.cancel()
            await asyncio.gather(self._purging, return_exceptions=True)
        for work in self._beside:
            await work.stop()
        self._readers.stop()

    def info(self) -> BrokerInfo:
        config, adapter = self.config, self.adapter
        return BrokerInfo(
            cluster=self.settings.cluster,
            broker_name=self.settings.name,
            broker_id=adapter.broker_id,
            role=adapter.role,
            term=adapter.term,
            role_epoch=adapter.role_epoch,
            node_id=config.node_id,
            address=config.address,
            master_address=config.address if adapter.is_master else self.master_address(),
        )

    def master_address(self) -> str | None:
        """What this node believes; a client looks further if it is wrong."""
        leader = self.node.leader_id
        return None if leader is None else self.config.members.get(leader)

    @property
    def is_master(self) -> bool:
        return self.adapter.is_master

    def registrations(self) -> Mapping[str, RegistrarStatus]:
        return {} if self._registrar is None else self._registrar.status()

    # -- inside -------------------------------------------------------------------------------------------

    def _serve_clients(self, max_body_bytes: int) -> None:
        """The service for clients of RocketMQ 5, and the one by which nodes pass their calls on."""
        self.clients = clients = self._make_client_service(max_body_bytes)
        settings = self.settings.rocketmq_v2
        self.ports = ClientPorts(
            clients.service, settings, self._tls_files(), allow_plaintext=self.config.allow_plaintext
        )
        self.forwarding = ForwardService(
            self.answering, Members(self.config), clients.connected, settings, self._is_writable, request_of
        )
        operators = self._operators()
        self.remoting = remoting_port(
            self.settings,
            self.config,
            LocalReads(self.answering, self.forwarder, lambda: self.host.reads_here)
            if self.host.slaves_read
            else self.forwarder,
            self.directory,
            self.remoting_clients,
            self._replies,
            self._tls_files(),
            lambda: self.adapter.broker_id,
            self.traffic,
            check_operator=None if operators is None else operators.check,
            access=self._access,
            commands=self.host.commands(),
            more_settings=self.host.told_settings,
            log_rows=lambda: self._status.log_rows(),
        )
        if settings.enabled:
            self.node.add_service(GrpcService(clients.service.name, clients.service.handler))
            self.node.add_service(GrpcService(self.forwarding.name, self.forwarding.handler))

    def _make_client_service(self, max_body_bytes: int) -> ClientService:
        settings, broker = self.settings, self.broker
        self.directory = ReplicatedDirectory(self.metadata, broker.ensure_topic, broker.topic_or_default)
        if settings.rocketmq_v2.access_control is not None:
            self._guard = Guard(settings.rocketmq_v2.access_control, time.time)
            self._access = RemotingAccess(self._guard)
        return client_service(
            settings.name,
            self.config.members,
            settings.rocketmq_v2,
            delivery=self.delivery,
            broker=self.broker,
            directory=self.directory,
            max_body_bytes=max_body_bytes,
            now_ms=self.node.cluster_time_ms,
            answering=partial(self._make_forwarder, max_body_bytes),
            guard=self._guard,
            node_has_tls=self.config.tls is not None,
        )

    def _make_forwarder(
        self, max_body_bytes: int, handlers: MessagingHandlers, streams: ClientStreams
    ) -> Forwarder:
        """Calls of clients to the master, wherever it is."""
        settings, node_id = self.settings.rocketmq_v2, self.config.node_id
        self.answering = both_protocols(
            handlers,
            broker=self.broker,
            traffic=self.traffic,
            imports=Imports(self.writer, self.proposals, self.broker.read_queue),
            delivery=self.delivery,
            peeks=self.delivery,
            directory=self.directory,
            making=Making(self.broker.make_topic, self.groups.make_known),
            broker_name=self.settings.name,
            store_host=self.writer.store_host,
            max_body_bytes=max_body_bytes,
            node_id=node_id,
            lock_live_s=self.settings.remoting.lock_live_ms / 1000,
            is_member=self.remoting_clients.consumes,
            cluster=self.settings.cluster,
            replies=self._replies,
            version=lambda: self.metadata.applied_index,
            defaults=default_topics(self.settings),
            rules=ReadRules(lambda: self.adapter.is_master, self.host.suggested_reader),
            access=self._access,
        )
        self.forwarder = Forwarder(
            node_id,
            Members(self.config),
            self.answering,
            streams,
            settings,
            self._is_writable,
            lambda: self.host.reads_here,
            reads_alone=not self.host.slaves_read,
        )
        return self.forwarder

    def _may_end(self, account: str, topic: str) -> bool:
        return self._guard is None or self._guard.may_end(account, topic)

    def _is_writable(self) -> bool:
        return self.writer.expected is not None

    async def _look_at_files(self) -> None:
        """Certificates and accounts of clients."""
        looks = [self.ports.look, self.remoting.look, *([] if self._guard is None else [self._guard.look])]
        while True:
            await asyncio.sleep(_FILES_LOOK_S)
            for look in looks:
                await self._carry_out(look, "certificates or accounts could not be looked at")

    def _writable_changed(self) -> None:
        self.forwarder.changed()
        self.forwarding.announce()

    def _make_dispatcher(self) -> Dispatcher:
        settings = self.settings
        options = StoreOptions(
            units_per_file=settings.units_per_file,
            index_shape=IndexShape(settings.index_slots, settings.index_items),
            checkpoint_interval_s=settings.checkpoint_ms / 1000,
        )
        replicated = ReplicatedState(self.metadata, self.delivery_state)
        return Dispatcher(
            self.host.root,
            replicated,
            delivery=replicated.apply_delivery,
            durable_index=lambda: self.node.durable_index,
            log=self.host.format,
            on_arrival=self._on_arrival,
            options=options,
        )

    def _operators(self) -> AdminNames | None:
        """Whose certificates may change what belongs to all, as at the node itself."""
        tls = self.config.tls
        if tls is None or tls.client_auth == "none":
            return None
        return AdminNames(tls.admin_names, PeerNames(self.config.members, tls.peer_names))

    def _tls_files(self) -> TlsFiles | None:
        tls = self.config.tls
        return None if tls is None else TlsFiles(tls.ca, tls.certificate, tls.key)

    def _role_changed(self) -> None:
        """Beside the role and never in its way: the registrar has tasks of its own."""
        self.broker.long_polls.wake_all()
        self.delivery.wake_all()
        self.directory.role_changed()
        self._register()

    def _register(self) -> None:
        if self._registrar is None or self.adapter.broker_id < 0:
            return
        if not self.host.may_register(is_master=self.adapter.is_master):
            return
        topics = self.metadata.topics
        if topics is not self._topics:
            self._topics = topics
            self._topics_version = max(self._topics_version + 1, self.metadata.applied_index)
        self._registrar.update(
            Registration(
                cluster=self.settings.cluster,
                broker_name=self.settings.name,
                node_id=self.config.node_id,
                broker_id=self.adapter.broker_id,
                role=self.adapter.role,
                address=self.config.address,
                term=self.adapter.term,
                role_epoch=self.adapter.role_epoch,
                http_address=self.config.http_members.get(self.config.node_id, self.config.http_listen),
                data_version=self._topics_version,
                topics=(*topics.values(), *default_topics(self.settings)),
                ha_address=self.host.ha_address,
                remoting_address=self.remoting.advertised,
            )
        )

    def _on_result(self, request_id: bytes, outcome: Outcome) -> None:
        """On the machine's thread."""
        self.proposals.on_result(request_id, outcome)
        self._call_soon(self._topics_may_have_changed)

    def _on_metadata_done(self, command: Command) -> None:
        """On the machine's thread."""
        self.delivery_state.metadata_changed(command)
        if isinstance(command, PutGroup):
            self._call_soon(self.clients.streams.group_changed, command.config.name)

    def _on_outcomes(self, request_id: bytes, outcomes: list[DeliveryOutcome]) -> None:
        """On the machine's thread."""
        self.delivery.on_outcomes(request_id, outcomes)

    def _on_topic_cut(self, topic: str) -> None:
        self.dispatcher.queues.delete_topic(topic)
        self.delivery_state.topic_cut(topic)

    def _on_arrival(self, arrivals: Arrivals) -> None:
        """On the machine's thread. Waking the loop is expensive; later waiters look themselves."""
        if beyond := self.writer.arrived(arrivals):
            self._call_soon(self.writer.skip_to, beyond)
        if len(self.broker.long_polls):
            self._call_soon(self.broker.long_polls.arrived, arrivals)
        if self.delivery.is_awaited:
            self._call_soon(self.delivery.arrived, arrivals)

    def _on_refused(self, error: BrokerError) -> None:
        if self._trace is not None:
            term, code = self.adapter.term, error.status.name
            self._trace.event("role", "refused", {"term": term, "code": code})

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(call, *arguments)

    def _topics_may_have_changed(self) -> None:
        self.directory.topics_changed()
        if self.metadata.topics is not self._topics:
            self._register()

    async def _follow_purges(self) -> None:
        """ConsumeQueues and indexes begin where the log does; what is not needed any more goes."""
        begin = -1
        while True:
            await self._carry_out(self.dispatcher.tend, "derived files could not be synced")
            now = self.node.begin_pos
            if now != begin:
                purge = partial(self.dispatcher.purge_below, now)
                if await self._carry_out(purge, "derived files could not be purged"):
                    begin = now
            await asyncio.sleep(_PURGE_LOOK_S)

    async def _carry_out(self, work: Callable[[], None], failure: str) -> bool:
        """A piece of work that comes round again. Whatever happens to it, it is not the last time."""
        try:
            await self._readers.run(work)
        except Exception as error:
            if self._complaints.get(failure) != repr(error):  # once, not each time
                self._complaints[failure] = repr(error)
                _log.error(failure, exc_info=error)
            return False
        self._complaints.pop(failure, None)
        return True


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _day() -> int:
    """Of this machine's calendar."""
    return date.today().toordinal()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _store_host(address: str) -> Host:
    """Records and message ids have room for an address, not for a name."""
    host, _, port = address.rpartition(":")
    try:
        return Host.parse(address)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"members: {address}: {error}", code=Code.CONFIG_INVALID) from error
    family, _, _, _, where = sorted(found, key=lambda one: one[0] != socket.AF_INET)[0]
    text = f"[{where[0]}]" if family == socket.AF_INET6 else str(where[0])
    return Host.parse(f"{text}:{port}")
