"""The delivery of single messages, put together of its parts: what a master offers to its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from broker_adapter.api import GroupConfig, OutgoingMessage, TopicConfig
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.deferred.carrier import Carrier, KeptLog
from broker_adapter.deferred.deferred_delivery import DeferredDelivery
from broker_adapter.deferred.deferring import (
    DeferringParts,
    DispatchedQueues,
    MakeDeferring,
    ToDefer,
    in_commands,
)
from broker_adapter.errors import (
    IllegalMessage,
    PutIndeterminate,
    ReadFailed,
    Status,
    error_for,
)
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_creation import check_writable
from broker_adapter.pop.api import (
    AckStatus,
    Delayed,
    Delivery,
    Filter,
    Half,
    OrphanedHalf,
    Peeked,
    Resolution,
    Sent,
)
from broker_adapter.pop.commands import Ack, Change, Changed, QueueKey
from broker_adapter.pop.committer import ROUND_BYTES, ROUND_ENTRIES, Committer, Request
from broker_adapter.pop.dead_letters import DeadLetters
from broker_adapter.pop.handles import Receipt, parse_receipt, receipt_handle
from broker_adapter.pop.peeker import Peeker
from broker_adapter.pop.queue_state import PoppedMessage
from broker_adapter.pop.receive_queues import GroupTopic, ReceiveQueues
from broker_adapter.pop.receiver import Receive, ReceiveLimits, Receiver, not_passed_on
from broker_adapter.pop.renewals import Renewals
from broker_adapter.pop.room import Received, Room
from broker_adapter.pop.sender import Sender, settled, within
from broker_adapter.pop.state import DeliveryState
from broker_adapter.pop.upkeep import Upkeep
from broker_adapter.store.queue_reader import QueueReader
from dledger.platform import client_of, when_idle

_MAX_MESSAGES = 1_024
_MAX_BYTES = 16 << 20
_PEEKED_BYTES = 1 << 20
_CARRIER_LOOK_MS = 1_000


class DeliveryFigures(NamedTuple):
    """For metrics."""

    pending: int
    held_messages: int  # a name of the status
    held_bytes: int
    kept_log_bytes: int
    carried: int
    waiting_receives: int
    refused_fresh: int
    dead_letters: int
    rounds: int
    damaged: int


class Topics(NamedTuple):
    """How topics and groups come into being."""

    #: By name, for a client at host:port; BrokerError unless messages may be sent to it.
    to_write: Callable[[str, str], Awaitable[TopicConfig]]
    make: Callable[[str], Awaitable[None]]  # a topic of the broker's own making
    know_group: Callable[[str, str], Awaitable[None]]  # by name, for a client at host:port
    used: Callable[[str], None] = lambda _: None  # told each topic that is sent to or received from
    used_group: Callable[[str], object] = lambda _: None  # told each group that a client says it is of
    #: Told (group, topic, messages, bytes) of each receive that found some.
    told: Callable[[str, str, int, int], None] = lambda group, topic, messages, size: None


class Runtime(NamedTuple):
    """What the process of the node lends it."""

    now_ms: Callable[[], int]  # cluster time
    wall_ms: Callable[[], int]  # what clients go by
    run: Callable[
        [Callable[[], Any], str], Awaitable[Any]
    ]  # what blocks, for an address, on a reader's thread
    run_filter: Callable[[Callable[[], Any], str], Awaitable[Any]]  # what evaluates an address's filter
    new_request_id: Callable[[], bytes]  # 16 bytes that are never given twice, on any node


class RoundLimits(NamedTuple):
    """The most that one append of commands and messages takes."""

    bytes: int = ROUND_BYTES
    entries: int = ROUND_ENTRIES


_ROUNDS = RoundLimits()


class DeliveryService:
    """Implements `DeliveryApi` and `PeekApi` of `broker_adapter.pop.api`, and
    `broker_adapter.role.broker_role.MasterService`; one for all times as master."""

    def __init__(
        self,
        settings: BrokerSettings,
        state: DeliveryState,
        metadata: MetadataState,
        writer: MessageWriter,
        reader: QueueReader,
        files: DispatchedQueues,
        topics: Topics,
        log: KeptLog,
        runtime: Runtime,
        rounds: RoundLimits = _ROUNDS,
        deferring: MakeDeferring = in_commands,
    ) -> None:
        """`deferring`: how delayed messages and halves of transactions are kept."""
        self._settings = settings
        self._state = state
        self._metadata = metadata
        self._writer = writer
        self._topics = topics
        self._now_ms = now_ms = runtime.now_ms
        self._wall_ms = runtime.wall_ms
        delivery = settings.delivery
        self._committer = committer = Committer(
            writer,
            new_request_id=runtime.new_request_id,
            max_waiting_bytes=delivery.max_waiting_bytes,
            when_idle=when_idle,
            max_round_bytes=rounds.bytes,
            max_round_entries=rounds.entries,
        )
        self._receive_queues = ReceiveQueues()
        self._sender = Sender(state, committer, writer)
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
            now_ms=now_ms,
            run=runtime.run,
            run_filter=runtime.run_filter,
            limits=limits,
        )
        self._peeker = Peeker(
            state, self._receiver, reader, files, self._receive_queues, now_ms=now_ms, run=runtime.run
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
        )
        used = (state, committer, writer, self._sender, reader, files)
        parts = DeferringParts(*used, topics.make, now_ms, runtime.run, delivery)
        self._deferred = deferring(deferred, parts)
        self._carrier = Carrier(
            state,
            committer,
            deferred.whole,
            log,
            run=runtime.run,
            look_ms=min(_CARRIER_LOOK_MS, delivery.upkeep_ms),
        )
        self._renewals = Renewals(state, committer, self._receive_queues, now_ms=now_ms, settings=delivery)
        self._upkeep = Upkeep(state, committer, self._receive_queues, files, now_ms=now_ms, settings=delivery)

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
        text = "this broker is not the master any more"
        refused = error_for(Status.NOT_MASTER, text)
        self._committer.abandon(refused, PutIndeterminate(Status.OUTCOME_UNKNOWN, text))
        self._sender.clear()
        self._receive_queues.clear()

    # -- for the program ----------------------------------------------------------------------------------

    @property
    def on_outcomes(self) -> Callable[[bytes, list[Any]], None]:
        """For the state, on the machine's thread."""
        return self._committer.on_outcomes

    @property
    def room(self) -> Room:
        """In memory, for what is on its way to consumers."""
        return self._receiver.room

    @property
    def is_awaited(self) -> bool:
        """Whether an arrival concerns anybody."""
        return self._receive_queues.is_awaited

    def arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        """(topic, queue id, max offset) of queues that have grown."""
        self._receive_queues.arrived(dict.fromkeys(topic for topic, _, _ in arrivals))

    def wake_all(self) -> None:
        """Receives look again, and end if this broker takes no writes."""
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
        )

    # -- sending ------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        message: OutgoingMessage,
        *,
        message_id: str,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
        config: TopicConfig | None = None,
    ) -> Sent:
        config = await self._to_write(topic, born_host, config)
        return await self._sender.send(
            config, message, message_id, queue_id, born_host, self._timeout(timeout_ms)
        )

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
    ) -> Delayed:
        config = await self._to_write(topic, born_host, config)
        put = ToDefer(config, message, message_id, queue_id, born_host, self._timeout(timeout_ms))
        # Cluster time stands still while no node runs, so it may be far behind the time that was meant.
        due_ms = self._now_ms() + deliver_at_ms - self._wall_ms()
        return await self._deferred.delay(put, due_ms, level)

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
    ) -> Half:
        config = await self._to_write(topic, born_host, config)
        put = ToDefer(config, message, message_id, queue_id, born_host, self._timeout(timeout_ms))
        return await self._deferred.half(put, client_id, check_after_ms)

    async def end_transaction(self, topic: str, transaction_id: str, resolution: Resolution) -> None:
        self._writer.check_master()
        await self._deferred.end_transaction(topic, transaction_id, resolution, self._timeout(0))

    def on_orphan(self, ask: Callable[[OrphanedHalf], None]) -> None:
        self._deferred.on_orphan(ask)

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
        remote: str = "",
    ) -> Received:
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
        deadline = self._deadline(wait_ms)
        found = await self._receiver.receive(call, deadline, partial(self._check_open, group, topic))
        if found:
            self._topics.told(group, topic, len(found), sum(len(one.record) for one in found))
        return found

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
        if not elements:
            return _ack_statuses(len(handles), [], [])
        done = await self._commit(Request(elements=elements, release=self._wake(group, topic)), timeout_ms)
        return _ack_statuses(len(handles), places, done)

    async def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        self._writer.check_master()
        if invisible_ms < 0:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"invisible_ms {invisible_ms}")
        key, receipt, popped = self._find(group, topic, handle)
        if popped is None:
            raise _invalid()
        change = Change(key, receipt.offset, receipt.pop, invisible_ms)
        (outcome,) = await self._commit(Request(elements=[change], release=self._wake(group, topic)))
        if not isinstance(outcome, Changed):
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
                return await self._dead_letters.move(key, receipt.offset, receipt.pop, record)
            finally:
                reserved.discard(receipt.offset)
                self._receive_queues.wake_one(who)

        # It goes on if the client goes: then nobody else looks at how it ended.
        moving = asyncio.ensure_future(move())
        moving.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not await within(self._timeout(0), asyncio.shield(moving)):
            raise _invalid()

    def heard_of(self, client_id: str, group: str = "") -> None:
        self._topics.used_group(group)
        self._renewals.heard_of(client_id, group)

    async def release(self, client_id: str, group: str = "") -> None:
        self._writer.check_master()
        await within(self._timeout(0), asyncio.shield(self._renewals.let_go(client_id, group)))

    # -- looking at what would be given -------------------------------------------------------------------

    async def peek(
        self, group: str, topic: str, *, queue_id: int, max_messages: int, remote: str = ""
    ) -> list[Peeked]:
        call = self._peek_call(group, topic, max_messages, remote)
        if queue_id >= call.queues:
            raise error_for(Status.QUEUE_UNKNOWN, f"topic {topic} has no queue {queue_id}")
        return await self._peeker.peek(call, range(call.queues) if queue_id < 0 else [queue_id])

    async def wait_for_message(self, group: str, topic: str, *, wait_ms: int, remote: str = "") -> bool:
        call = self._peek_call(group, topic, 1, remote)
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

    # -- inside -------------------------------------------------------------------------------------------

    async def _to_write(self, topic: str, remote: str, config: TopicConfig | None) -> TopicConfig:
        self._writer.check_master()
        if config is None:
            return await self._topics.to_write(topic, remote)
        self._topics.used(topic)
        return check_writable(config)

    def _to_read(self, topic: str) -> TopicConfig:
        config = self._metadata.topic(topic)
        if config is None:
            raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {topic[:255]!r}")
        if not config.is_readable:
            text = f"topic {topic} gives no messages (perm {config.perm})"
            raise error_for(Status.TOPIC_NOT_READABLE, text)
        self._topics.used(topic)
        return config

    def _consuming(self, group: str) -> GroupConfig:
        """ReadFailed (GROUP_NOT_ENABLED) unless the group may consume."""
        known = self._metadata.group(group)
        if known is None or not known.config.consume_enable:
            text = f"group {group} may not consume (consume_enable is off)"
            raise ReadFailed(Status.GROUP_NOT_ENABLED, text)
        return known.config

    def _check_waiting(self) -> None:
        if len(self._receive_queues) >= self._settings.max_held_pulls:
            text = f"{len(self._receive_queues)} receives wait for messages; try again later"
            raise ReadFailed(Status.TOO_MANY_HELD_PULLS, text)

    def _deadline(self, wait_ms: int) -> float:
        """Of the loop's clock."""
        return asyncio.get_running_loop().time() + min(wait_ms, self._settings.max_wait_ms) / 1000

    def _first_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Where a queue that is new to the group begins now: while a receive waits, that may be reset."""
        known = self._metadata.group(group)
        return 0 if known is None else known.offsets.get((topic, queue_id), 0)

    def _check_open(self, group: str, topic: str) -> None:
        """Whether a receive that waits may go on: the topic may have been deleted meanwhile."""
        self._writer.check_master()
        self._to_read(topic)
        if self._metadata.group(group) is None:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r} any more")

    def _find(self, group: str, topic: str, handle: str) -> tuple[QueueKey, Receipt, PoppedMessage | None]:
        """What a handle stands for; None unless it is valid by what is known here. What counts is what the
        state says when the command is applied."""
        receipt = parse_receipt(topic, handle) or Receipt(-1, -1, -1)
        key = QueueKey(group, topic, receipt.queue_id)
        with self._state.lock:
            queue = self._state.queue(key)
            popped = None if queue is None else queue.pending.get(receipt.offset)
        if popped is None or popped.pop != receipt.pop or popped.invisible_until_ms <= self._now_ms():
            return key, receipt, None
        return key, receipt, popped

    def _acks(self, group: str, topic: str, handles: Sequence[str]) -> tuple[list[int], list[Ack]]:
        """Of the handles that are valid by what is known here: their places, and what acknowledges them."""
        self._writer.check_master()
        places: list[int] = []
        elements: list[Ack] = []
        for place, handle in enumerate(handles):
            key, receipt, popped = self._find(group, topic, handle)
            if popped is not None:
                places.append(place)
                elements.append(Ack(key, receipt.offset, receipt.pop))
        return places, elements

    async def _commit(self, request: Request, timeout_ms: int = 0) -> list[Any]:
        self._committer.submit(request)
        most = self._timeout(0)
        return (await settled(min(timeout_ms or most, most), request.done)).outcomes

    def _wake(self, group: str, topic: str) -> Callable[[], None]:
        """Somebody may wait for what an orderly queue gives next, or for another time."""
        return partial(self._receive_queues.wake_one, GroupTopic(group, topic))

    def _timeout(self, timeout_ms: int) -> int:
        return timeout_ms or self._settings.send_timeout_ms


def _place_of(group: str, topic: str, one: Delivery) -> tuple[QueueKey, int, int]:
    receipt = parse_receipt(topic, one.handle)
    assert receipt is not None
    return QueueKey(group, topic, receipt.queue_id), receipt.offset, receipt.pop


def _ack_statuses(count: int, places: Sequence[int], outcomes: Sequence[object]) -> list[AckStatus]:
    found = [AckStatus.INVALID_HANDLE] * count
    for place, outcome in zip(places, outcomes, strict=True):
        if outcome:
            found[place] = AckStatus.OK
    return found


def _invalid() -> ReadFailed:
    return ReadFailed(Status.HANDLE_INVALID, "the handle is unreadable, over, or was replaced by a newer one")
