"""The service that delivers single messages on the master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from broker_adapter.api import GroupConfig, OutgoingMessage, TopicConfig
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.delivery.api import AckStatus, Delivery, Filter, PeekedMessage, ReceivedBatch
from broker_adapter.delivery.dead_letters import DeadLetters
from broker_adapter.delivery.peeker import Peeker
from broker_adapter.delivery.receive_queues import GroupTopic, ReceiveQueues
from broker_adapter.delivery.receiver import Receive, ReceiveLimits, Receiver, not_passed_on
from broker_adapter.delivery.renewals import Renewals
from broker_adapter.delivery.upkeep import Upkeep
from broker_adapter.delivery_state.commands import Ack, ChangeOutcome, ChangeVisibility, QueueKey
from broker_adapter.delivery_state.handles import Receipt, parse_receipt, receipt_handle
from broker_adapter.delivery_state.queue_state import PoppedMessage
from broker_adapter.delivery_state.state import DeliveryState, index_of
from broker_adapter.errors import (
    IllegalMessage,
    PutIndeterminate,
    ReadFailed,
    Status,
    error_for,
)
from broker_adapter.metadata.state import MetadataState
from broker_adapter.put.committer import Committer, PutRequest
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.put.sender import Sender, check_writable, wait_for_result, wait_with_timeout
from broker_adapter.scheduled.carrier import Carrier, KeptLog
from broker_adapter.scheduled.deferred_delivery import DeferredDelivery
from broker_adapter.scheduled.deferring import (
    DeferredStoreParts,
    DeferRequest,
    DispatchedQueues,
    HalfName,
    MakeDeferredStore,
    OrphanedHalf,
    Resolution,
    StoredDelayed,
    StoredHalf,
    TransactionEnd,
    in_commands,
)
from broker_adapter.store.queue_reader import QueueReader
from dledger.infra.quotas import FairQueue, client_of

_MAX_MESSAGES = 1_024
_MAX_BYTES = 16 << 20
_PEEKED_BYTES = 1 << 20
_CARRIER_LOOK_MS = 1_000


class DeliveryFigures(NamedTuple):
    """Metrics of delivery."""

    pending: int
    held_messages: int  # named so in the status
    held_bytes: int
    kept_log_bytes: int
    carried: int
    waiting_receives: int
    refused_fresh: int
    dead_letters: int
    rounds: int
    damaged: int
    known_ids: int
    ids_left_early: int


class TopicAccess(NamedTuple):
    """Functions that look up and create topics and groups, and record that they are used."""

    #: Return a topic by name, for a client at host:port; create it if the settings permit.
    ensure: Callable[[str, str], Awaitable[TopicConfig]]
    make: Callable[[str], Awaitable[object]]  # create a topic of the broker itself
    # check or create a group by name, for a client at host:port
    know_group: Callable[[str, str], Awaitable[None]]
    # called with the name of each topic that a client sends to or receives from
    used: Callable[[str], None] = lambda _: None
    # called with the name of each group that a client names as its own
    used_group: Callable[[str], object] = lambda _: None
    #: Called with (group, topic, messages, bytes) after each receive that returned messages.
    received: Callable[[str, str, int, int], None] = lambda group, topic, messages, size: None


class Runtime(NamedTuple):
    """The clocks and executors of the node's process."""

    now_ms: Callable[[], int]  # cluster time
    run: Callable[
        [Callable[[], Any], str], Awaitable[Any]
    ]  # runs blocking work on behalf of an address, on a reader thread
    # the same for a small read, which runs on the event loop if its data are in the page cache
    read: Callable[[Callable[[], Any], str], Awaitable[Any]]
    # evaluates a filter on behalf of an address
    run_filter: Callable[[Callable[[], Any], str], Awaitable[Any]]


class DeliveryService:
    """Implements `DeliveryApi` and `PeekApi` of `broker_adapter.delivery.api`, and
    `broker_adapter.role.broker_role.MasterService`. One instance serves all leaderships of this node.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        state: DeliveryState,
        metadata: MetadataState,
        writer: MessageWriter,
        committer: Committer,
        sender: Sender,
        reader: QueueReader,
        files: DispatchedQueues,
        topics: TopicAccess,
        log: KeptLog,
        runtime: Runtime,
        deferring: MakeDeferredStore = in_commands,
    ) -> None:
        """`deferring` selects how delayed messages and half messages are stored."""
        self._settings = settings
        self._state = state
        self._metadata = metadata
        self._writer = writer
        self._topics = topics
        self._now_ms = now_ms = runtime.now_ms
        delivery = settings.delivery
        self._committer, self._sender = committer, sender
        self._receive_queues = ReceiveQueues()
        self._dead_letters = DeadLetters(committer, writer, topics.make, taken_ms=delivery.release_ms)
        limits = ReceiveLimits(
            delivery.max_pending_per_queue,
            delivery.max_pending,
            delivery.invisible_ms,
            delivery.max_given_bytes,
        )
        self._receiver = Receiver(
            state,
            committer,
            reader,
            files,
            self._receive_queues,
            self._dead_letters,
            now_ms=self._awake_ms,
            steps_ms=lambda: writer.steps_ms,
            run=runtime.run,
            read=runtime.read,
            run_filter=runtime.run_filter,
            limits=limits,
        )
        self._peeker = Peeker(
            state, self._receiver, reader, files, self._receive_queues, now_ms=self._awake_ms, run=runtime.run
        )
        deferred = DeferredDelivery(
            state,
            committer,
            writer,
            self._sender,
            read=lambda places: runtime.run(partial(reader.bodies_at, places), ""),
            run=runtime.run,
            now_ms=now_ms,
            settings=delivery,
            broker_name=settings.name,
        )
        used = (state, committer, writer, self._sender, reader, files)
        parts = DeferredStoreParts(*used, topics.make, now_ms, runtime.run, delivery)
        self._deferred = deferring(deferred, parts)
        self._carrier = Carrier(
            state,
            committer,
            deferred.whole,
            log,
            run=runtime.run,
            look_ms=min(_CARRIER_LOOK_MS, delivery.upkeep_ms),
        )
        awake_ms, queues = self._awake_ms, self._receive_queues
        self._renewals = Renewals(state, committer, queues, now_ms=awake_ms, settings=delivery)
        self._upkeep = Upkeep(state, committer, queues, files, now_ms=awake_ms, settings=delivery)

    # -- MasterService ------------------------------------------------------------------------------------

    def start(self, term: int, role_epoch: int) -> None:
        self._deferred.start()
        self._carrier.start()
        self._renewals.start()
        self._upkeep.start()

    async def stop(self) -> None:
        self._deferred.stop()
        self._carrier.stop()
        self._renewals.stop()
        self._upkeep.stop()
        text = "this broker is no longer the master"
        refused = error_for(Status.NOT_MASTER, text)
        self._committer.abandon(refused, PutIndeterminate(Status.OUTCOME_UNKNOWN, text))
        self._sender.clear()
        self._receive_queues.clear()

    # -- for the program ----------------------------------------------------------------------------------

    @property
    def on_outcomes(self) -> Callable[[bytes, list[Any]], None]:
        """The callback for the state machine, which runs it on its own thread."""
        return self._committer.on_outcomes

    @property
    def room(self) -> FairQueue:
        """The limit on the memory of messages in flight to consumers."""
        return self._receiver.room

    @property
    def is_awaited(self) -> bool:
        """True if receives are waiting."""
        return self._receive_queues.is_awaited

    def arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        """Wake receives after queues have grown. Each item is (topic, queue id, max offset)."""
        self._receive_queues.arrived(dict.fromkeys(topic for topic, _, _ in arrivals))

    def wake_all(self) -> None:
        """Wake all receives. If this broker no longer accepts writes, they end."""
        self._receive_queues.wake_all()

    def figures(self) -> DeliveryFigures:
        state = self._state
        return DeliveryFigures(
            state.pending_count,
            len(state.deferred),
            state.deferred.bytes,
            self._carrier.kept_bytes,
            self._carrier.carried,
            len(self._receive_queues),
            self._receiver.refused_fresh,
            self._dead_letters.moved,
            self._committer.rounds,
            state.damaged,
            len(state.ids),
            state.ids_left_early,
        )

    @property
    def duplicates(self) -> Mapping[str, int]:
        """Number of duplicate sends that this node has detected as master, by topic."""
        return self._sender.duplicates

    # -- sending ------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._now_ms()

    async def send_delayed(
        self,
        topic: str,
        message: OutgoingMessage,
        *,
        message_id: str,
        deliver_at_ms: int,
        level: int = 0,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
        config: TopicConfig | None = None,
    ) -> StoredDelayed:
        config = await self._to_write(topic, born_host, config)
        put = DeferRequest(config, message, message_id, queue_id, born_host, self._timeout(timeout_ms))
        return await self._deferred.delay(put, deliver_at_ms, level)

    async def recall(self, topic: str, recall_handle: str) -> str:
        self._writer.check_master()
        return await self._deferred.recall(topic, recall_handle, self._timeout(0))

    async def send_half(
        self,
        topic: str,
        message: OutgoingMessage,
        *,
        message_id: str,
        client_id: str,
        check_after_ms: int = 0,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
        config: TopicConfig | None = None,
    ) -> StoredHalf:
        config = await self._to_write(topic, born_host, config)
        put = DeferRequest(config, message, message_id, queue_id, born_host, self._timeout(timeout_ms))
        return await self._deferred.half(put, client_id, check_after_ms)

    async def end_transaction(
        self, topic: str, transaction_id: str, resolution: Resolution, *, producer_group: str = ""
    ) -> None:
        self._writer.check_master()
        end = TransactionEnd(topic, transaction_id, resolution, producer_group)
        await self._deferred.end_transaction(end, self._timeout(0))

    async def half_at(self, queue_offset: int, physical_offset: int) -> HalfName | None:
        self._writer.check_master()
        return await self._deferred.half_at(queue_offset, physical_offset)

    def on_orphan(self, check: Callable[[OrphanedHalf], None]) -> None:
        self._deferred.on_orphan(check)

    # -- receiving ----------------------------------------------------------------------------------------

    async def receive(
        self,
        group: str,
        topic: str,
        *,
        client_id: str,
        wanted: Filter = Filter(),  # noqa: B008 - immutable
        max_messages: int = 32,
        max_bytes: int = 4 << 20,
        invisible_ms: int = 0,
        wait_ms: int = 0,
        attempt_id: str = "",
        in_order: bool = False,
        remote: str = "",
    ) -> ReceivedBatch:
        self._writer.check_master()
        config = self._to_read(topic)
        if max_messages < 1 or max_bytes < 1 or invisible_ms < 0 or wait_ms < 0:
            text = f"max_messages {max_messages}, max_bytes {max_bytes}, {invisible_ms} ms, wait {wait_ms} ms"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        await self._topics.know_group(group, remote)
        group_config = self._consuming(group)
        self._check_waiting()
        self._renewals.receives(client_id, group)
        call = Receive(
            GroupTopic(group, topic),
            group_config,
            config.read_queues,
            partial(self._first_offset, group, topic),
            client_id,
            wanted,
            min(max_messages, _MAX_MESSAGES),
            min(max_bytes, _MAX_BYTES),
            invisible_ms,
            attempt_id,
            client_of(remote),
        )
        call, deadline = _ordered(call, in_order), self._deadline(wait_ms)
        received = await self._receiver.receive(call, deadline, partial(self._check_open, group, topic))
        if received:
            self._topics.received(group, topic, len(received), sum(len(one.record) for one in received))
        return received

    def passed_on(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        self._renewals.passed_on(_place_of(group, topic, one) for one in deliveries if one.is_renewed)

    def give_back(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        back = []
        for one in deliveries:
            key, offset, pop = _place_of(group, topic, one)
            back.append(not_passed_on(key, offset, pop, is_repeated=one.is_repeated))
        if back:
            self._receiver.give_back(GroupTopic(group, topic), back)

    async def ack(
        self, group: str, topic: str, handles: Sequence[str], *, timeout_ms: int = 0
    ) -> list[AckStatus]:
        places, elements = self._acks(group, topic, handles)
        done: Sequence[object] = []
        if elements:
            request = PutRequest(elements=elements, release=self._wake(group, topic))
            done = await self._commit(request, timeout_ms)
        statuses = _ack_statuses(len(handles), places, done)
        return [
            AckStatus.OK
            if status is AckStatus.INVALID_HANDLE and self._is_from_before_reset(group, topic, handle)
            else status
            for status, handle in zip(statuses, handles, strict=True)
        ]

    def _is_from_before_reset(self, group: str, topic: str, handle: str) -> bool:
        """Return True if a reset of the group's offsets has invalidated this handle.

        Acknowledging such a handle is not an error of the consumer and has no effect. Delivery continues at
        the new offset.
        """
        receipt = parse_receipt(topic, handle)
        if receipt is None:
            return False
        return index_of(receipt.pop) < self.reset_index(group, topic, receipt.queue_id)

    def reset_index(self, group: str, topic: str, queue_id: int) -> int:
        known = self._metadata.group(group)
        barrier = None if known is None else known.barriers.get((topic, queue_id))
        return -1 if barrier is None else barrier.reset_index

    async def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        self._writer.check_master()
        if invisible_ms < 0:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"invisible_ms {invisible_ms} is out of range")
        key, receipt, popped = self._find(group, topic, handle)
        if popped is None:
            raise _invalid()
        change = ChangeVisibility(key, receipt.offset, receipt.pop, invisible_ms)
        (outcome,) = await self._commit(PutRequest(elements=[change], release=self._wake(group, topic)))
        if not isinstance(outcome, ChangeOutcome):
            raise _invalid()
        return receipt_handle(topic, key.queue_id, receipt.offset, outcome.pop)

    async def dead_letter(self, group: str, topic: str, handle: str) -> None:
        self._writer.check_master()
        key, receipt, popped = self._find(group, topic, handle)
        if popped is None or receipt.offset in (receives := self._receive_queues.queue(key)).reserved:
            raise _invalid()
        reserved, who = receives.reserved, GroupTopic(group, topic)
        reserved.add(receipt.offset)

        async def move() -> bool:
            try:
                record = await self._receiver.record(key, receipt.offset)
                return await self._dead_letters.move(key, receipt.offset, popped, record)
            finally:
                reserved.discard(receipt.offset)
                self._receive_queues.wake_one(who)

        # The move continues if the client disconnects.
        moving = asyncio.ensure_future(move())
        moving.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not await wait_with_timeout(self._timeout(0), asyncio.shield(moving)):
            raise _invalid()

    def heard_of(self, client_id: str, group: str = "") -> None:
        self._topics.used_group(group)
        self._renewals.heard_of(client_id, group)

    async def release(self, client_id: str, group: str = "") -> None:
        self._writer.check_master()
        await wait_with_timeout(
            self._timeout(0), asyncio.shield(self._renewals.release_client(client_id, group))
        )

    # -- peeking ----------------------------------------------------------------------------------------

    async def peek(
        self, group: str, topic: str, *, queue_id: int, max_messages: int, remote: str = ""
    ) -> list[PeekedMessage]:
        call = self._peek_call(group, topic, max_messages, remote)
        if queue_id >= call.queues:
            raise error_for(Status.QUEUE_UNKNOWN, f"topic {topic} has no queue {queue_id}")
        return await self._peeker.peek(call, range(call.queues) if queue_id < 0 else [queue_id])

    async def wait_for_message(
        self, group: str, topic: str, *, wait_ms: int, in_order: bool = False, remote: str = ""
    ) -> bool:
        call = _ordered(self._peek_call(group, topic, 1, remote), in_order)
        self._check_waiting()
        check = partial(self._check_open, group, topic)
        return await self._peeker.wait(call, self._deadline(wait_ms), check)

    def waiting_receives(self, group: str, topic: str) -> int:
        self._writer.check_master()
        self._check_open(group, topic)
        return self._receive_queues.waiting_of(GroupTopic(group, topic))

    def newest_pop(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        self._writer.check_master()
        with self._state.lock:
            queue = self._state.queue(QueueKey(group, topic, queue_id))
            popped = None if queue is None else queue.pending.get(offset)
        return None if popped is None else popped.pop

    def _peek_call(self, group: str, topic: str, max_messages: int, remote: str) -> Receive:
        self._check_open(group, topic)
        return Receive(
            GroupTopic(group, topic),
            self._consuming(group),
            self._to_read(topic).read_queues,
            partial(self._first_offset, group, topic),
            "",
            Filter(),
            max_messages,
            _PEEKED_BYTES,
            0,
            "",
            client_of(remote),
        )

    # -- internal -----------------------------------------------------------------------------------------

    async def _to_write(self, topic: str, remote: str, config: TopicConfig | None) -> TopicConfig:
        self._writer.check_master()
        if config is None:
            config = await self._topics.ensure(topic, remote)
        self._topics.used(topic)
        return check_writable(config)

    def _to_read(self, topic: str) -> TopicConfig:
        config = self._metadata.topic(topic)
        if config is None:
            raise error_for(Status.TOPIC_UNKNOWN, f"topic {topic[:255]!r} does not exist")
        if not config.is_readable:
            text = f"topic {topic} is not readable (perm {config.perm})"
            raise error_for(Status.TOPIC_NOT_READABLE, text)
        self._topics.used(topic)
        return config

    def _consuming(self, group: str) -> GroupConfig:
        """Return the group's config.

        Raises ReadFailed (GROUP_NOT_ENABLED) if consumption is disabled for the group.
        """
        known = self._metadata.group(group)
        if known is None or not known.config.consume_enable:
            text = f"group {group} may not consume (consume_enable is off)"
            raise ReadFailed(Status.GROUP_NOT_ENABLED, text)
        return known.config

    def _check_waiting(self) -> None:
        if len(self._receive_queues) >= self._settings.max_held_pulls:
            text = f"{len(self._receive_queues)} receives wait for messages; try again later"
            raise ReadFailed(Status.TOO_MANY_HELD_PULLS, text)

    def _awake_ms(self) -> int:
        """Return cluster time without its steps, which advances only while the cluster runs."""
        # read before the time: if a step occurs in between, messages stay invisible slightly longer
        now_ms = self._now_ms()
        return now_ms - self._writer.steps_ms

    def _deadline(self, wait_ms: int) -> float:
        """Return the deadline in loop time."""
        return asyncio.get_running_loop().time() + min(wait_ms, self._settings.max_wait_ms) / 1000

    def _first_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the group's stored offset in a queue, or 0 (the oldest message) if it has none.

        The state machine checks the offset again when it applies the receive, because a reset may have
        changed it.
        """
        known = self._metadata.group(group)
        return 0 if known is None else known.offsets.get((topic, queue_id), 0)

    def _check_open(self, group: str, topic: str) -> None:
        """Check that a waiting receive may continue.

        Raises an error if its topic was deleted or is no longer readable, if its group was deleted, or if the
        master changed.
        """
        self._writer.check_master()
        self._to_read(topic)
        if self._metadata.group(group) is None:
            raise error_for(Status.GROUP_UNKNOWN, f"group {group[:255]!r} no longer exists")

    def _find(self, group: str, topic: str, handle: str) -> tuple[QueueKey, Receipt, PoppedMessage | None]:
        """Return the queue and receipt of a handle, and its message, or None if the handle is invalid.

        The state of this node may be outdated. The state machine makes the decision when it applies the
        command.
        """
        receipt = parse_receipt(topic, handle) or Receipt(-1, -1, -1)
        key = QueueKey(group, topic, receipt.queue_id)
        with self._state.lock:
            queue = self._state.queue(key)
            popped = None if queue is None else queue.pending.get(receipt.offset)
        if popped is None or popped.pop != receipt.pop or popped.invisible_until_ms <= self._awake_ms():
            return key, receipt, None
        return key, receipt, popped

    def _acks(self, group: str, topic: str, handles: Sequence[str]) -> tuple[list[int], list[Ack]]:
        """Return the indexes and acknowledgments of the handles that are valid in this node's state."""
        self._writer.check_master()
        places: list[int] = []
        elements: list[Ack] = []
        for place, handle in enumerate(handles):
            key, receipt, popped = self._find(group, topic, handle)
            if popped is not None:
                places.append(place)
                elements.append(Ack(key, receipt.offset, receipt.pop))
        return places, elements

    async def _commit(self, request: PutRequest, timeout_ms: int = 0) -> list[Any]:
        self._committer.submit(request)
        limit = self._timeout(0)
        return (await wait_for_result(min(timeout_ms or limit, limit), request.done)).outcomes

    def _wake(self, group: str, topic: str) -> Callable[[], None]:
        """Return a function that wakes a receive.

        The receive may be waiting for the next message of an ordered queue, or until a message expires whose
        expiry has changed.
        """
        return partial(self._receive_queues.wake_one, GroupTopic(group, topic))

    def _timeout(self, timeout_ms: int) -> int:
        return timeout_ms or self._settings.send_timeout_ms


def _place_of(group: str, topic: str, one: Delivery) -> tuple[QueueKey, int, int]:
    receipt = parse_receipt(topic, one.handle)
    assert receipt is not None
    return QueueKey(group, topic, receipt.queue_id), receipt.offset, receipt.pop


def _ack_statuses(count: int, places: Sequence[int], outcomes: Sequence[object]) -> list[AckStatus]:
    statuses = [AckStatus.INVALID_HANDLE] * count
    for place, outcome in zip(places, outcomes, strict=True):
        if outcome:
            statuses[place] = AckStatus.OK
    return statuses


def _ordered(call: Receive, in_order: bool) -> Receive:
    """Return the call, in order if requested: otherwise the group decides."""
    return replace(call, group=call.group._replace(consume_orderly=True)) if in_order else call


def _invalid() -> ReadFailed:
    return ReadFailed(
        Status.HANDLE_INVALID, "the handle is unreadable, expired, or was replaced by a newer one"
    )
