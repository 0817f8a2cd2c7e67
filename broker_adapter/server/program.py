"""The broker program of a node: `factory = "broker_adapter.server.program:broker"` in `[program]`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from typing import Any

from broker_adapter.api import BrokerInfo
from broker_adapter.config.settings import BrokerSettings, parse_settings
from broker_adapter.delivery.service import DeliveryService, Runtime, TopicAccess
from broker_adapter.delivery_state.commands import Outcome as DeliveryOutcome
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.endpoints.access.guard import Guard, signature_time
from broker_adapter.endpoints.forwarding.forwarder import Forwarder
from broker_adapter.endpoints.forwarding.members import Members
from broker_adapter.endpoints.forwarding.service import ForwardService
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4 import serving
from broker_adapter.endpoints.v4.access import RemotingAccess, read_check
from broker_adapter.endpoints.v4.calls import LocalReads, NodeClients
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.endpoints.v4.locks import LockProcessor
from broker_adapter.endpoints.v4.node_queries import NodeReport
from broker_adapter.endpoints.v4.pulls import ReadRules
from broker_adapter.endpoints.v4.replies import ReplyProcessor
from broker_adapter.endpoints.v4.requests import request_of
from broker_adapter.endpoints.v4.sends import SendRules
from broker_adapter.endpoints.v4.transactions import ask_producer
from broker_adapter.endpoints.v5.calls.handlers import MessagingHandlers
from broker_adapter.endpoints.v5.clients import ClientStreams
from broker_adapter.endpoints.v5.front import NodeCalls
from broker_adapter.endpoints.v5.ports import ClientPorts
from broker_adapter.endpoints.v5.serving import ClientService, ReplicatedDirectory, client_service
from broker_adapter.errors import BrokerError
from broker_adapter.log.node import BrokerNode
from broker_adapter.metadata.commands import (
    METADATA_TOPIC,
    Command,
    DeleteTopic,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.metadata.expiry import LastUse
from broker_adapter.metadata.group_expiry import GroupExpiry
from broker_adapter.metadata.group_service import GroupService
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.rules_upgrade import RulesUpgrade
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_expiry import TopicExpiry
from broker_adapter.metadata.values import CommandOutcome
from broker_adapter.metadata.writable_topics import TopicCreation, TopicGate
from broker_adapter.namesrv.registration import Registrar, RegistrarStatus
from broker_adapter.namesrv.topic_routes import TopicRoutes
from broker_adapter.namesrv.values import Registration
from broker_adapter.put.committer import ROUND_ENTRIES
from broker_adapter.put.message_writer import MessageWriter, PutLimits
from broker_adapter.role.broker_role import BrokerRoleAdapter
from broker_adapter.role.role_change import RoleChangeHandler, RoleChangeLimits
from broker_adapter.scheduled.delay_file import FILE_NAME as DELAY_FILE_NAME
from broker_adapter.scheduled.delay_file import DelayFile
from broker_adapter.server.broker import Broker
from broker_adapter.server.broker_status import BrokerStatus
from broker_adapter.server.connected_members import ConnectedMembers
from broker_adapter.server.derived_upkeep import DerivedUpkeep
from broker_adapter.server.dispatched_files import DispatchedFiles, holdings, needed_from
from broker_adapter.server.host_choice import host_for
from broker_adapter.server.imports import Imports
from broker_adapter.server.log_host import BackgroundService, LogHost
from broker_adapter.server.reader_threads import reader_threads
from broker_adapter.server.record_limits import (
    COMMAND_OVERHEAD,
    batch_entries,
    largest_body,
    make_sender,
    resolve_store_host,
)
from broker_adapter.server.recorded_locks import RecordedLocks
from broker_adapter.server.replicated_state import ReplicatedState
from broker_adapter.store.dispatcher import Arrivals, Dispatcher, StoreOptions
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.wire.index_layout import IndexShape
from dledger import NodeConfig, TlsFiles
from dledger.infra.files.watching import FileWatch
from dledger.infra.logs import get_logger
from dledger.infra.transport.host import GrpcService
from dledger.infra.transport.peer_names import AdminNames, PeerNames
from dledger.node.setup.trace import NodeTrace

_log = get_logger("broker")

#: Timeout in seconds for calls and batches in flight when the process stops.
_DRAIN_S = 2.0
#: Time in seconds for requests that arrive while the node stops listening.
_LAST_CALLS_S = 0.5
#: Number of role change steps in the status.
_HISTORY = 16


def broker(config: NodeConfig, settings: Mapping[str, Any]) -> BrokerProgram:
    """Create the program. Raises ConfigError if the settings are invalid."""
    return BrokerProgram(config, parse_settings(settings))


class BrokerProgram:
    """The broker of a node. Implements `dledger.Program`.

    Creates and connects the parts of the broker, and starts and stops them in order.
    """

    def __init__(
        self,
        config: NodeConfig,
        settings: BrokerSettings,
        *,
        trace: NodeTrace | None = None,
        host: LogHost | None = None,
    ) -> None:
        """Create the program.

        `trace` receives events of the node and the broker. `host`: the log to use instead of the configured
        one.
        """
        self.config = config
        self.settings = settings
        self._trace = trace
        self.host = host or host_for(config, settings)
        self._background_services: Sequence[BackgroundService] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = reader_threads()
        self._upkeep: DerivedUpkeep | None = None
        self._files: FileWatch | None = None
        self._guard: Guard | None = None
        self._access: RemotingAccess | None = None
        self._registrar: Registrar | None = None
        self._topic_routes = TopicRoutes(settings.namesrv, self._name_server_tls())
        self._topics: Mapping[str, Any] = {}
        self._topics_version = 0
        self.remoting_clients = RemotingClients()
        self.delivery_state = DeliveryState(
            on_outcomes=self._on_outcomes,
            first_offset=lambda *queue: self.metadata.first_offset(*queue),
            cursor_floor=lambda *queue: self.metadata.cursor_floor(*queue),
            index=DelayFile(self.host.root / DELAY_FILE_NAME),
        )
        self.metadata = MetadataState(
            on_result=self._on_result,
            on_topic_cut=self._on_topic_cut,
            on_done=self._on_metadata_done,
            on_logged=self.host.command_logged,
            delivered=self.delivery_state.of_group,
            begin_queue=lambda *queue: self.dispatcher.begin_queue(*queue),
        )
        self.traffic = Traffic(time.monotonic, _day)
        self.topic_use, self.group_use = LastUse(), LastUse()
        self.topic_gate = TopicGate(self.metadata, self.topic_use, self.host.own_topics)
        self.dispatcher = self._make_dispatcher()

    def make_node(self, **options: Any) -> BrokerNode:
        """Create the node. `options`: additional node arguments, for tests."""
        config, settings = self.config, self.settings
        self.node = node = self.host.make_node(
            self.dispatcher, self.metadata, self.delivery_state, self._trace, options
        )
        self._replies = ReplyProcessor(
            self.remoting_clients, lambda: str(self.writer.store_host), node.cluster_time_ms
        )
        max_record, max_entries = config.limits.max_body_bytes, batch_entries(config.limits.max_batch_entries)
        largest = min(settings.max_body_bytes, largest_body(max_record, node.max_batch_bytes))
        self.files = files = DispatchedFiles(node, self.dispatcher)
        self.writer = writer = MessageWriter(
            self.host.appends,
            resolve_store_host(settings.remoting.message_id_address(config.address)),
            PutLimits(largest, max_record - COMMAND_OVERHEAD, settings.send_timeout_ms),
            master=self.master_address,
            on_refused=self._on_refused,
            topics=self.topic_gate,
            stored=self.traffic.put,
        )
        self.committer, self.sender = make_sender(
            settings, self.delivery_state, writer, node, min(ROUND_ENTRIES, max_entries)
        )
        self.proposals = Proposals(
            lambda command: writer.put_command(METADATA_TOPIC, command, self.topic_gate.appending(command)),
            new_request_id=lambda: os.urandom(16),
            publish_catalog=self.host.publish_catalog,
        )
        self.topic_creation = TopicCreation(
            self.metadata, self.proposals.propose, writer.check_master, settings, self.topic_use.touch
        )
        self.groups = groups = GroupService(
            self.metadata,
            self.proposals,
            files,
            ConnectedMembers(self.remoting_clients, settings.name, lambda: self.clients.streams.groups()),
            monotonic_ms=_monotonic_ms,
            auto_create=settings.auto_create_groups,
            auto_create_up_to=settings.auto_create_up_to,
            auto_create_per_client=settings.auto_create_per_client,
            used=self.group_use.touch,
        )
        node.members.on_change(self._role_changed)
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
        self.delivery = self._make_delivery(files, reader, groups)
        self.locks = LockProcessor(
            RecordedLocks(self.metadata, self.proposals, node),
            time.monotonic,
            settings.remoting.lock_live_ms / 1000,
            self.remoting_clients.consumes,
        )
        self._serve_clients(largest)
        self.adapter = self._make_adapter(groups)
        limits = RoleChangeLimits(patience_s=settings.role_change_report_ms / 1000, history=_HISTORY)
        self.handler = RoleChangeHandler(node, self.adapter, limits=limits, trace=self._trace)
        self._status = BrokerStatus(self)
        node.show_status(self._status.shown)
        node.add_metrics(self._status.metrics)
        return node

    def _make_adapter(self, groups: GroupService) -> BrokerRoleAdapter:
        return BrokerRoleAdapter(
            self.writer,
            self.files,
            [
                RulesUpgrade(self.metadata, self.proposals),
                groups,
                self.delivery,
                self.topic_expiry,
                self.group_expiry,
                self.locks,
            ],
            slave_id=lambda: self.host.slave_id,
            on_change=self._role_changed,
            on_writable=self._log_unlogged,
        )

    def _make_expiries(self, files: DispatchedFiles) -> None:
        self.topic_expiry = TopicExpiry(
            self.metadata,
            self.proposals,
            self.topic_use,
            holdings(files, self.dispatcher, self.delivery_state, self.writer),
            expire_ms=self.settings.auto_create_expire_ms,
        )
        self.group_expiry = GroupExpiry(
            self.metadata,
            self.proposals,
            self.group_use,
            expire_ms=self.settings.auto_create_groups_expire_ms,
            has_pending=self.delivery_state.has_pending,
        )

    def _make_delivery(
        self, files: DispatchedFiles, reader: QueueReader, groups: GroupService
    ) -> DeliveryService:
        node = self.node
        return DeliveryService(
            self.settings,
            self.delivery_state,
            self.metadata,
            self.writer,
            self.committer,
            self.sender,
            reader,
            files,
            TopicAccess(
                self.topic_creation.ensure,
                self.topic_creation.make,
                groups.make_known,
                self.topic_use.touch,
                groups.known,
                self.traffic.given,
            ),
            node,
            Runtime(node.cluster_time_ms, self._readers.run, self._readers.read, self._readers.run_filter),
            self.host.deferring,
        )

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.adapter.master_role = self.host.master_role
        if self.settings.namesrv:
            self._registrar = Registrar(
                self.settings.namesrv,
                self._name_server_tls(),
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
            looks = [
                self.ports.reload_changed_files,
                self.remoting.reload_changed_files,
                *([] if self._guard is None else [self._guard.reload_changed_files]),
            ]
            self._files = FileWatch(None, looks)
            self._files.start()
        self.handler.start()
        self._background_services = self.host.background_services(self)
        for work in self._background_services:
            work.start()
        self._upkeep = DerivedUpkeep(self.dispatcher, self._readers.run, lambda: self.node.begin_pos)
        self._upkeep.start()

    async def stop(self) -> None:
        """Stop the broker. Leadership is given up first. Further client calls wait for the new master."""
        self.writer.stop()
        # Appended entries are committed shortly. Wait, so that their senders receive a definite response.
        await asyncio.gather(self.clients.handlers.drain(_DRAIN_S), self._sends.drain(_DRAIN_S))
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
        await self._topic_routes.close()
        self.clients.service.stop()
        self.forwarding.stop()
        await self.forwarder.stop()
        if self._files is not None:
            await self._files.stop()
        if self._upkeep is not None:
            await self._upkeep.stop()
        for work in self._background_services:
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
        """Return the address of the master that this node knows. It may be outdated."""
        leader = self.node.leader_id
        return None if leader is None else self.node.members.get(leader)

    @property
    def is_master(self) -> bool:
        return self.adapter.is_master

    def registrations(self) -> Mapping[str, RegistrarStatus]:
        return {} if self._registrar is None else self._registrar.status()

    # -- internal -----------------------------------------------------------------------------------------

    def _serve_clients(self, max_body_bytes: int) -> None:
        """Create the service for RocketMQ 5 clients, and the service that forwards calls between nodes."""
        self.clients = clients = self._make_client_service(max_body_bytes)
        settings = self.settings.rocketmq_v2
        self.ports = ClientPorts(
            clients.service, settings, self._tls_files(), allow_plaintext=self.config.allow_plaintext
        )
        members, is_open = Members(self.config, self.node.members), self.writer.is_open
        self.forwarding = ForwardService(
            self.answering, members, clients.connected, settings, is_open, request_of, self._sends
        )
        self.remoting = serving.remoting_port(
            self.settings,
            self.config,
            LocalReads(self.answering, self.forwarder, lambda: self.host.reads_here)
            if self.host.slaves_read
            else self.forwarder,
            serving.NodeTopics(self.directory, self._topic_routes.readable),
            NodeClients(self.remoting_clients, self._replies, self.locks.member_left),
            serving.OperatorRules(self._access, self._operator_check(), self.host.commands()),
            NodeReport(
                self.settings,
                lambda: self.adapter.broker_id,
                self.traffic,
                self.host.rocketmq_settings,
                lambda: self._status.log_rows(),
            ),
            self._sends,
        )
        if settings.enabled:
            self.node.add_service(GrpcService(clients.service.name, clients.service.handler))
            self.node.add_service(GrpcService(self.forwarding.name, self.forwarding.handler))

    def _make_client_service(self, max_body_bytes: int) -> ClientService:
        settings = self.settings
        self.directory = ReplicatedDirectory(self.metadata, self.topic_creation)
        if settings.rocketmq_v2.access_control is not None:
            now_s = signature_time(self.node.members, self.node.cluster_time_ms)
            self._guard = Guard(settings.rocketmq_v2.access_control, now_s)
            self._access = RemotingAccess(self._guard)
        return client_service(
            settings.name,
            self.node.members,
            settings.rocketmq_v2,
            sends=self.sender,
            delivery=self.delivery,
            broker=self.broker,
            directory=self.directory,
            max_body_bytes=max_body_bytes,
            now_ms=self.node.cluster_time_ms,
            node_calls=partial(self._make_forwarder, max_body_bytes),
            guard=self._guard,
            node_has_tls=self.config.tls is not None,
        )

    def _make_forwarder(
        self, max_body_bytes: int, handlers: MessagingHandlers, streams: ClientStreams
    ) -> NodeCalls:
        """Create the forwarder of client calls to the current master, and the sends of this node."""
        settings, node_id = self.settings.rocketmq_v2, self.config.node_id
        imports = Imports(self.writer, self.proposals, self.broker.read_queue)
        master = serving.master_processors(
            self.settings,
            serving.Store(self.broker, self.sender, self.delivery, self.delivery, imports, self.traffic),
            serving.TopicsAndGroups(
                self.directory,
                lambda: self.metadata.applied_index,
                self.groups.make_known,
                self.topic_creation,
            ),
            SendRules(
                lambda: self.writer.store_host,
                max_body_bytes,
                node_id,
                self.settings.cluster,
                self.settings.name if self.settings.delivery.retry_span_ms else "",
            ),
            ReadRules(lambda: self.adapter.is_master, self.host.suggested_reader, read_check(self._access)),
            self.locks,
            self._replies,
        )
        self.answering = serving.both_protocols(handlers, master)
        self.forwarder = Forwarder(
            node_id,
            Members(self.config, self.node.members),
            self.answering,
            streams,
            settings,
            self.writer.is_open,
            lambda: self.host.reads_here,
            reads_alone=not self.host.slaves_read,
        )
        timeout_s = self.settings.send_timeout_ms / 1000
        self._sends = serving.node_sends(
            master, handlers.producers, self.writer.is_open, self.forwarder.forward_list, timeout_s
        )
        return NodeCalls(self.forwarder, self._sends)

    def _may_end(self, account: str, topic: str) -> bool:
        return self._guard is None or self._guard.may_end(account, topic)

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
            on_incarnation=self._on_incarnation,
            options=options,
        )

    def _operator_check(self) -> serving.CheckOperator | None:
        """Return a function that checks whether a client is an operator.

        As at the node itself, certificates identify operators.
        """
        tls = self.config.tls
        if tls is None or tls.client_auth == "none":
            return None
        return AdminNames(tls.admin_names, PeerNames(self.node.members, tls.peer_names)).check

    def _tls_files(self) -> TlsFiles | None:
        tls = self.config.tls
        return None if tls is None else TlsFiles(tls.ca, tls.certificate, tls.key)

    def _name_server_tls(self) -> TlsFiles | None:
        return self._tls_files() if self.settings.remoting.client_tls else None

    def _role_changed(self) -> None:
        """Handle a role change, or other members. The registration runs in tasks of its own."""
        self.broker.long_polls.wake_all()
        self.delivery.wake_all()
        self.directory.role_changed()
        self.register()

    def register(self) -> None:
        """Register with the NameServers, unless this node has no role or no advertised address yet."""
        if self._registrar is None or self.adapter.broker_id < 0 or not self.remoting.advertised:
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
                address=self.remoting.advertised,
                term=self.adapter.term,
                role_epoch=self.adapter.role_epoch,
                http_address=self.config.http_members.get(self.config.node_id, self.config.http_listen),
                data_version=self._topics_version,
                topics=(
                    *topics.values(),
                    *(one for one in serving.default_topics(self.settings) if one.name not in topics),
                ),
                ha_address=self.host.ha_address,
                send_address=self.remoting.send_advertised,
                node_address=self.config.address,
                members=tuple(self.node.members),
            )
        )

    def _on_result(self, request_id: bytes, outcome: CommandOutcome) -> None:
        """Handle the result of a command. Called on the machine's thread."""
        self.proposals.on_result(request_id, outcome)
        self._call_soon(self._topics_may_have_changed)

    def _on_metadata_done(self, command: Command) -> None:
        """Handle a metadata command that took effect. Called on the machine's thread."""
        self.delivery_state.metadata_changed(command)
        if isinstance(command, PutTopic | DeleteTopic):
            self._call_soon(self._topics_may_have_changed)
        if isinstance(command, PutGroup):
            self._call_soon(self.clients.streams.group_changed, command.config.name)
        elif isinstance(command, ResetOffsets):
            self._call_soon(self.broker.offsets_reset, command.offsets)

    def _on_outcomes(self, request_id: bytes, outcomes: list[DeliveryOutcome]) -> None:
        """Handle the outcomes of delivery commands. Called on the machine's thread."""
        self.delivery.on_outcomes(request_id, outcomes)

    def _on_topic_cut(self, topic: str) -> None:
        self.dispatcher.queues.delete_topic(topic)
        self.delivery_state.topic_cut(topic)

    def _on_incarnation(self, topic: str, queue_id: int) -> None:
        """Drop the stored offsets of a recreated queue, which belong to a deleted topic.

        Called on the machine's thread.
        """
        self.metadata.drop_queue(topic, queue_id)
        self.delivery_state.drop_queue(topic, queue_id)
        self.host.queue_restarted(topic, queue_id)

    def _log_unlogged(self) -> None:
        self.host.log_unlogged(lambda command: self.writer.append_command(METADATA_TOPIC, encode(command)))

    def _on_arrival(self, arrivals: Arrivals) -> None:
        """Handle dispatched messages. Called on the machine's thread.

        Waking the event loop is expensive, so it is done only if there are waiters. Later waiters check the
        queues before they wait.
        """
        self.host.arrived(arrivals)
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
            with suppress(RuntimeError):  # the loop is closed, so there are no waiters
                loop.call_soon_threadsafe(call, *arguments)

    def _topics_may_have_changed(self) -> None:
        self.directory.topics_changed()
        if self.metadata.topics is not self._topics:
            self.register()


def _day() -> int:
    """Return the number of the day in this machine's calendar."""
    return date.today().toordinal()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
