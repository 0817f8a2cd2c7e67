"""One life of a simulated broker: the real parts, put together as `broker_adapter.server.program` does it,
around a simulated node, files and clock. It is the program that owns the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, cast

from broker_adapter.api import BrokerInfo, BrokerRole, OutgoingMessage
from broker_adapter.config.settings import BrokerSettings, DeliverySettings
from broker_adapter.delivery.service import DeliveryService, Runtime, TopicAccess
from broker_adapter.delivery_state.commands import Outcome as DeliveryOutcome
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.log.replicated import ENTRIES, ReplicatedAppends, ReplicatedRecords
from broker_adapter.metadata.commands import METADATA_TOPIC
from broker_adapter.metadata.expiry import LastUse
from broker_adapter.metadata.group_expiry import GroupExpiry
from broker_adapter.metadata.group_service import GroupService
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.reset_barriers import NoGroupClients
from broker_adapter.metadata.rules_upgrade import RulesUpgrade
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_expiry import TopicExpiry
from broker_adapter.metadata.values import CommandOutcome
from broker_adapter.metadata.writable_topics import TopicCreation, TopicGate
from broker_adapter.put.committer import Committer
from broker_adapter.put.message_writer import MessageWriter, PutLimits
from broker_adapter.put.sender import PutResult, Send, Sender
from broker_adapter.role.broker_role import BrokerRoleAdapter
from broker_adapter.role.role_change import RoleChangeHandler, RoleChangeLimits
from broker_adapter.scheduled.delay_file import DelayFile
from broker_adapter.server.broker import Broker
from broker_adapter.server.dispatched_files import DispatchedFiles, holdings, needed_from
from broker_adapter.server.reader_threads import ReaderThreads
from broker_adapter.server.replicated_state import ReplicatedState
from broker_adapter.store.dispatcher import Arrivals, Dispatcher, StoreOptions
from broker_adapter.store.job_queue import JobQueue
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.wire.host import Host
from broker_adapter.wire.index_layout import IndexShape
from dledger import AppendOutcome, Assigned, NodeServer, Role
from dledger.infra.loops.polling import when_idle
from dledger.testing import Violation
from dledger.testing.owned_node import OwnedNode
from tests.broker_adapter.simulator.derived import ROOT, DerivedFiles, LateJobQueue
from tests.broker_adapter.simulator.machine import CheckedDispatcher

if TYPE_CHECKING:
    from dledger.replica.shell import RoleNotice
    from dledger.testing.world import NodeLife

#: Small, so that files roll, times and limits are met, and members come and go within a run.
STORE = StoreOptions(
    units_per_file=16,
    index_shape=IndexShape(slots=7, items=30),
    max_open_files=3,
    index_backlog=5,
    checkpoint_interval_s=0.3,
    checkpoint_bytes=1 << 40,
)
ROLES = RoleChangeLimits(patience_s=0.4, retry_first_s=0.02, retry_most_s=0.2, unfit_s=2.0, stop_s=1.0)
SETTINGS = BrokerSettings(
    default_queues=2,
    auto_create_expire_ms=500,
    auto_create_groups_expire_ms=400,
    max_body_bytes=600,
    max_wait_ms=500,
    send_timeout_ms=600,
    delivery=DeliverySettings(
        invisible_ms=400,
        max_renewed_ms=1500,
        heard_ms=300,
        release_ms=50,
        max_pending_per_queue=40,
        max_pending=60,
        abandoned_ms=2000,
        upkeep_ms=300,
        max_held_bytes=80_000,
        check_first_ms=150,
        check_again_ms=200,
        max_checks=3,
    ),
)
_PROPOSAL_MS = 1000
_DELAYS_BATCH = 3
_PURGE_LOOK_S = 0.1
_MAX_COMMAND_BYTES = 880
#: The simulated log's limit of a batch, or sometimes more than that: then what came at once goes one by one.
_MAX_ROUND_BYTES = 600


class SimBroker:
    """Implements `dledger.testing.world.NodeOwner`. `broker` is what clients talk to."""

    def __init__(
        self,
        process: NodeLife,
        files: DerivedFiles,
        rng: Random,
        opened: Callable[[tuple[int, int]], None],
    ) -> None:
        """`opened` is told (term, role_epoch) whenever the broker begins to take writes."""
        self.process = process
        self.node_id = process.node_id
        self._opened = opened
        self._files = files
        self._rng = rng
        self._closing = False
        self.loop = process.loop
        self.loop.when_idle = self._check_gate
        self._readers = ReaderThreads()  # the loop has its own idea of threads
        self.node = OwnedNode(process, self.loop, rng, SETTINGS.send_timeout_ms)
        self.delivery_state = DeliveryState(
            on_outcomes=self._on_outcomes,
            first_offset=lambda *queue: self.metadata.first_offset(*queue),
            cursor_floor=lambda *queue: self.metadata.cursor_floor(*queue),
            index=DelayFile(files.delays, synchronous="OFF", batch=_DELAYS_BATCH),
        )
        self.metadata = MetadataState(
            on_result=self._on_result,
            on_topic_cut=self._on_topic_cut,
            on_done=self.delivery_state.metadata_changed,
            delivered=self.delivery_state.of_group,
            begin_queue=lambda *queue: self.dispatcher.begin_queue(*queue),
        )
        self.topic_use, self.group_use = LastUse(process.now_ms), LastUse(process.now_ms)
        self.topic_gate = TopicGate(self.metadata, self.topic_use)
        self.dispatcher = self._make_dispatcher(process)
        self.machine = CheckedDispatcher(
            self.dispatcher, self.metadata, self.delivery_state, lambda: process.store.base.pos
        )
        self._make_broker()

    def _make_dispatcher(self, process: NodeLife) -> Dispatcher:
        def job_queue(name: str, limit: int) -> JobQueue:
            return LateJobQueue(limit, self._rng, self._on_job_queue)

        replicated = ReplicatedState(self.metadata, self.delivery_state)
        return Dispatcher(
            ROOT,
            replicated,
            delivery=replicated.apply_delivery,
            durable_index=lambda: process.store.durable_index,
            log=ENTRIES,
            on_arrival=self._on_arrival,
            options=STORE,
            disk=self._files.disk,
            clock=lambda: process.now_ms() / 1000,
            job_queue=job_queue,
        )

    def _make_broker(self) -> None:
        node = cast(NodeServer, self.node)
        host = Host(bytes((10, 0, 0, int(self.node_id[1:]))), 10911)
        self.files = files = DispatchedFiles(node, self.dispatcher)
        self.writer = MessageWriter(
            ReplicatedAppends(GatedAppends(self)),
            host,
            PutLimits(
                max_body_bytes=SETTINGS.max_body_bytes,
                max_command_bytes=_MAX_COMMAND_BYTES,
                timeout_ms=SETTINGS.send_timeout_ms,
            ),
            master=lambda: self.node.leader_id,
            topics=self.topic_gate,
        )
        self.proposals = Proposals(
            lambda command: self.writer.put_command(
                METADATA_TOPIC, command, self.topic_gate.appending(command)
            ),
            new_request_id=lambda: self._rng.randbytes(16),
            timeout_ms=_PROPOSAL_MS,
        )
        self.topic_creation = TopicCreation(
            self.metadata,
            self.proposals.propose,
            self.writer.check_master,
            SETTINGS,
            self.topic_use.touch,
        )
        self.groups = GroupService(
            self.metadata,
            self.proposals,
            files,
            NoGroupClients(),
            monotonic_ms=self.process.now_ms,
            auto_create=SETTINGS.auto_create_groups,
            used=self.group_use.touch,
        )
        self.reader = QueueReader(files, ReplicatedRecords(node))
        self.broker = Broker(
            SETTINGS,
            node,
            self.writer,
            files,
            self.reader,
            self.metadata,
            self.proposals,
            self.groups,
            self._readers,
            self._info,
            self.delivery_state,
            self.topic_use.touch,
        )
        self._make_expiries()
        self.committer, self.sender = self._make_sender()
        self.delivery = self._make_delivery()
        self.adapter = BrokerRoleAdapter(
            self.writer,
            files,
            [
                RulesUpgrade(self.metadata, self.proposals),
                self.groups,
                self.delivery,
                self.topic_expiry,
                self.group_expiry,
            ],
            slave_id=lambda: 1,
            on_change=self._on_change,
        )
        self.handler = RoleChangeHandler(node, self.adapter, limits=ROLES, wall_ms=self.process.wall_ms)

    async def send(
        self, topic: str, messages: Sequence[OutgoingMessage], *, message_id: str = "", queue_id: int = -1
    ) -> PutResult:
        """As endpoints do: a topic that is not there may be created."""
        config = await self.topic_creation.ensure(topic, "")
        is_batch = len(messages) > 1
        return await self.sender.send_one(Send(config, messages, message_id, queue_id, is_batch=is_batch))

    def _make_sender(self) -> tuple[Committer, Sender]:
        committer = Committer(
            self.writer,
            new_request_id=lambda: self._rng.randbytes(16),
            max_waiting_bytes=SETTINGS.delivery.max_waiting_bytes,
            when_idle=when_idle,
            max_round_bytes=_MAX_ROUND_BYTES,
        )
        sender = Sender(
            self.delivery_state,
            committer,
            self.writer,
            now_ms=self.node.cluster_time_ms,
            retry_span_ms=SETTINGS.delivery.retry_span_ms,
            timeout_ms=SETTINGS.send_timeout_ms,
        )
        return committer, sender

    def _make_delivery(self) -> DeliveryService:
        return DeliveryService(
            SETTINGS,
            self.delivery_state,
            self.metadata,
            self.writer,
            self.committer,
            self.sender,
            self.reader,
            self.files,
            TopicAccess(
                self.topic_creation.ensure,
                self.topic_creation.make,
                self.groups.make_known,
                self.topic_use.touch,
                self.groups.known,
            ),
            cast(NodeServer, self.node),
            Runtime(
                now_ms=self.node.cluster_time_ms,
                run=self._readers.run,
                read=self._readers.read,
                run_filter=self._readers.run_filter,
            ),
        )

    def _make_expiries(self) -> None:
        self.group_expiry = GroupExpiry(
            self.metadata,
            self.proposals,
            self.group_use,
            expire_ms=SETTINGS.auto_create_groups_expire_ms,
            has_pending=self.delivery_state.has_pending,
        )
        self.topic_expiry = TopicExpiry(
            self.metadata,
            self.proposals,
            self.topic_use,
            holdings(self.files, self.dispatcher, self.delivery_state, self.writer),
            expire_ms=SETTINGS.auto_create_expire_ms,
        )

    def _info(self) -> BrokerInfo:
        adapter = self.adapter
        return BrokerInfo(
            cluster=SETTINGS.cluster,
            broker_name=SETTINGS.name,
            broker_id=adapter.broker_id,
            role=adapter.role,
            term=adapter.term,
            role_epoch=adapter.role_epoch,
            node_id=self.process.node_id,
            address=self.process.node_id,
            master_address=self.node.leader_id,
        )

    @property
    def is_writable(self) -> bool:
        return self.writer.expected is not None

    # -- NodeOwner

    def start(self) -> None:
        def begin() -> None:
            self.node.keep_log_from(needed_from(self.dispatcher, self.delivery_state))
            self.handler.start()
            self.loop.create_task(self._follow_purges())

        if self.process.alive:
            self.process.post(begin)

    def role_changed(self, notice: RoleNotice) -> None:
        self.node.role_changed(notice)

    def died(self) -> None:
        pass

    def stop(self, done: Callable[[], None]) -> None:
        """As the program stops, before its node does. In a turn of the process."""

        async def stop() -> None:
            self.writer.stop()
            self.broker.long_polls.close()
            self.delivery.wake_all()
            await self.handler.stop()
            done()

        if not self._closing:
            self._closing = True
            self.loop.create_task(stop())

    # -- inside

    def _on_result(self, request_id: bytes, outcome: CommandOutcome) -> None:
        self.proposals.on_result(request_id, outcome)

    def _on_outcomes(self, request_id: bytes, outcomes: list[DeliveryOutcome]) -> None:
        self.delivery.on_outcomes(request_id, outcomes)

    def _on_change(self) -> None:
        self.broker.long_polls.wake_all()
        self.delivery.wake_all()

    def _on_topic_cut(self, topic: str) -> None:
        self.dispatcher.queues.delete_topic(topic)
        self.delivery_state.topic_cut(topic)

    def _on_arrival(self, arrivals: Arrivals) -> None:
        if beyond := self.writer.arrived(arrivals):
            self.loop.call_soon_threadsafe(self.writer.skip_to, beyond)
        self.loop.call_soon_threadsafe(self.broker.long_polls.arrived, arrivals)
        self.loop.call_soon_threadsafe(self.delivery.arrived, arrivals)

    def _on_job_queue(self, delay_ms: int, job: Callable[[], None]) -> None:
        """On the job queue's thread, where the machine may go down."""
        self.process.sim.clock.after(delay_ms, lambda: self.process.on_disk(job))

    async def _follow_purges(self) -> None:
        begin = -1
        while True:
            if self.node.begin_pos != begin:
                begin = self.node.begin_pos
                await self.loop.run_in_executor(None, self.dispatcher.purge_below, begin)
            await self.loop.run_in_executor(None, self.dispatcher.tend)
            await asyncio.sleep(_PURGE_LOOK_S)

    def _check_gate(self) -> None:
        """Between two turns: the gate is open for the leadership that the node has, unless the loop has still
        to be told of a change; and who takes writes calls itself master, in the same leadership."""
        expected, adapter = self.writer.expected, self.adapter
        if expected is None:
            return
        if self.node.pending_roles == 0:
            self._check_leads(expected)
        if adapter.role is BrokerRole.SLAVE or (adapter.term, adapter.role_epoch) != expected:
            raise Violation("writable master", f"{self.node_id}: writes for {expected} as {adapter.role}")
        self._opened(expected)

    def check_taking(self, expected: tuple[int, int], assigned: Assigned) -> None:
        """The log takes a batch of this broker: at this moment gate and node have the same leadership."""
        self._check_leads(expected)
        if self.writer.expected != expected or assigned.term != expected[0]:
            raise Violation("writable master", f"{self.node_id}: {assigned} taken for {expected}")

    def _check_leads(self, expected: tuple[int, int]) -> None:
        core = self.process.replica.core
        has = (core.term, core.role_epoch)
        if core.role is not Role.LEADER or has != expected:
            raise Violation("writable master", f"{self.node_id}: writes for {expected} as {core.role} {has}")


class GatedAppends:
    """The node's appends as the MessageWriter has them; the simulator sees what is taken, and when."""

    def __init__(self, owner: SimBroker) -> None:
        self._owner = owner

    def cluster_time_ms(self) -> int:
        return self._owner.node.cluster_time_ms()

    @property
    def steps_ms(self) -> int:
        return self._owner.node.steps_ms

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Callable[[Assigned], Sequence[bytes]],
        *,
        expected: tuple[int, int],
        timeout: float | None = None,
    ) -> asyncio.Future[AppendOutcome]:
        owner = self._owner

        def watched(assigned: Assigned) -> Sequence[bytes]:
            owner.check_taking(expected, assigned)
            return fill(assigned)

        return owner.node.append_batch(sizes, watched, expected=expected, timeout=timeout)
