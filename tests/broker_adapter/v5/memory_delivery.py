"""Delivery without a log: messages, and what consumers hold of them, in one object.

Slow and obvious: what `broker_adapter.delivery.api` says holds here, but for what only a log can promise.
Time passes as that of the event loop does, or by `pass_ms`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from broker_adapter.api import GroupConfig, OutgoingMessage, TopicConfig
from broker_adapter.delivery.api import AckStatus, Delivery, DeliveryApi, Filter, ReceivedBatch
from broker_adapter.delivery_state.duplicate_filter import Position
from broker_adapter.errors import (
    BrokerError,
    IllegalMessage,
    ReadFailed,
    Status,
    TopicRefused,
)
from broker_adapter.put.committer import PutRequest, RequestOutcome
from broker_adapter.put.sender import PutResult, Send, SendApi, StartedSend, SubmittedSend
from broker_adapter.scheduled.deferring import HalfName, OrphanedHalf, Resolution, StoredDelayed, StoredHalf
from broker_adapter.wire.host import NO_HOST, Host
from broker_adapter.wire.message import MessageRecord, decode, encode, patch_offsets
from broker_adapter.wire.properties import TAGS, UNIQ_KEY, join_properties, split_properties
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, check_topic_name

RENEWED_MS = 60_000
MAX_DELAY_MS = 86_400_000
#: Of handles and ids that are none: one that has no meaning outside of these calls.
_NOT_POPPED = Status.RECORD_FIELD


@dataclass
class Popped:
    """One message of a group that is not done with."""

    record: bytes
    queue_id: int
    queue_offset: int
    attempts: int = 0
    invisible_until_ms: int = 0
    handle: str = ""
    client_id: str = ""
    attempt_id: str = ""


@dataclass
class GroupState:
    cursors: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    popped: list[Popped] = field(default_factory=list)


@dataclass
class WaitingHalf:
    record_of: Callable[[int], None]
    half: OrphanedHalf


class MemoryDelivery(SendApi, DeliveryApi):
    """`fail_with` is raised by the next call. `orderly` are the groups that consume in order."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, GroupConfig] = {}
        self.orderly: set[str] = set()
        self.queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.heard: list[tuple[str, str]] = []  # client, group
        self.released: list[tuple[str, str]] = []
        self.receives: list[tuple[str, str, int, int]] = []  # group, topic, invisible_ms, wait_ms
        self.reached: list[bytes] = []  # bodies that were passed on
        self.given_back: list[bytes] = []
        self.batches: list[ReceivedBatch] = []
        self.closed = 0
        self.fail_with: BrokerError | None = None
        self.auto_create = True
        self.check_after_ms = 6_000
        self._groups: dict[tuple[str, str], GroupState] = defaultdict(GroupState)
        self._sent: dict[tuple[str, str], PutResult] = {}
        self._delayed: dict[str, tuple[str, str, asyncio.TimerHandle]] = {}
        self._halves: dict[str, WaitingHalf] = {}
        self._ended: dict[str, Resolution] = {}
        self._turns: dict[str, int] = defaultdict(int)
        self._numbers = count(1)
        self._ask: Callable[[OrphanedHalf], None] = lambda half: None
        self._changed = asyncio.Event()
        self._passed_ms = 1_700_000_000_000

    # -- topics and time, as the service wants to know them

    def topic(self, name: str) -> TopicConfig | None:
        return self.topics.get(name)

    def group(self, name: str) -> GroupConfig | None:
        return self.groups.get(name)

    def existing_topic(self, name: str) -> TopicConfig | None:
        return self.topics.get(name)

    def topic_or_default(self, name: str) -> TopicConfig:
        self._may_fail()
        return self.topics.get(name) or self._default(name)

    async def ensure_topic(self, name: str, remote: str = "") -> TopicConfig:
        if name not in self.topics:
            self._may_fail()
        return self._topic(name)

    async def topic_comes(self, name: str, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while name not in self.topics:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return True

    def now_ms(self) -> int:
        return self._passed_ms + int(asyncio.get_running_loop().time() * 1000)

    def pass_ms(self, ms: int) -> None:
        self._passed_ms += ms
        self._wake()

    # -- producers

    async def send(self, sends: Sequence[Send]) -> list[PutResult | BrokerError]:
        found: list[PutResult | BrokerError] = []
        for send in sends:
            try:
                found.append(await self.send_one(send))
            except BrokerError as error:
                found.append(error)
        return found

    def start(self, send: Send) -> StartedSend:
        topic, (message,) = send.config.name, send.messages
        if (found := self._sent.get((topic, send.message_id))) is not None:
            return Position(found.queue_id, found.queue_offset)
        try:
            self._may_fail()
            sent = self._store(topic, message, send.message_id, send.queue_id, send.born_host)
        except BrokerError as error:
            return error
        self._sent[topic, send.message_id] = sent
        request = PutRequest()
        request.settle(RequestOutcome([sent.queue_offset], []))
        return SubmittedSend(request, sent.queue_id)

    async def send_one(self, send: Send) -> PutResult:
        self._may_fail()
        topic, (message,) = send.config.name, send.messages
        if (found := self._sent.get((topic, send.message_id))) is not None:
            return found._replace(is_repeated=True)
        sent = self._store(topic, message, send.message_id, send.queue_id, send.born_host)
        self._sent[topic, send.message_id] = sent
        return sent

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
        self._may_fail()
        wait_ms = max(0, deliver_at_ms - self.wall_ms())
        if wait_ms > MAX_DELAY_MS:
            raise IllegalMessage(Status.DELAY_TOO_LONG, f"a delay of {wait_ms} ms")
        handle = f"recall-{next(self._numbers)}"

        def due() -> None:
            self._delayed.pop(handle, None)
            self._store(topic, message, message_id, queue_id, born_host)

        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, due)
        self._delayed[handle] = (topic, message_id, timer)
        return StoredDelayed(handle)

    def wall_ms(self) -> int:
        """What producers take for the time."""
        import time

        return time.time_ns() // 1_000_000

    async def recall(self, topic: str, recall_handle: str) -> str:
        self._may_fail()
        found = self._delayed.get(recall_handle)
        if found is None or found[0] != topic:
            raise ReadFailed(_NOT_POPPED, "there is no such delayed message")
        found[2].cancel()
        del self._delayed[recall_handle]
        return found[1]

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
        self._may_fail()
        if check_after_ms > MAX_DELAY_MS:
            raise IllegalMessage(Status.DELAY_TOO_LONG, f"a check after {check_after_ms} ms")
        transaction_id = f"tx-{message_id}"
        record = self._record(topic, message, message_id, 0, born_host)
        after_s = (check_after_ms or self.check_after_ms) / 1000
        half = OrphanedHalf(topic, transaction_id, client_id, record, 0)

        def commit(_: int) -> None:
            properties = {**message.properties, "__transactionId__": transaction_id}
            self._store(topic, message._replace(properties=properties), message_id, queue_id, born_host)

        self._halves[transaction_id] = WaitingHalf(commit, half)
        asyncio.get_running_loop().call_later(after_s, self._check, transaction_id)
        return StoredHalf(transaction_id)

    def _check(self, transaction_id: str) -> None:
        waiting = self._halves.get(transaction_id)
        if waiting is not None:
            waiting.half = waiting.half._replace(checks=waiting.half.checks + 1)
            self._ask(waiting.half)

    async def half_at(self, queue_offset: int, physical_offset: int) -> HalfName | None:
        return None

    async def end_transaction(
        self, topic: str, transaction_id: str, resolution: Resolution, *, producer_group: str = ""
    ) -> None:
        self._may_fail()
        if transaction_id in self._ended:
            return
        waiting = self._halves.get(transaction_id)
        if waiting is None:
            raise ReadFailed(_NOT_POPPED, "there is no such transaction")
        if resolution is Resolution.UNKNOWN:
            return
        del self._halves[transaction_id]
        self._ended[transaction_id] = resolution
        if resolution is Resolution.COMMIT:
            waiting.record_of(0)

    def on_orphan(self, ask: Callable[[OrphanedHalf], None]) -> None:
        self._ask = ask

    # -- consumers

    def passed_on(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        self.reached += self._bodies(topic, deliveries)

    def give_back(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        self.given_back += self._bodies(topic, deliveries)

    def _bodies(self, topic: str, deliveries: Sequence[Delivery]) -> list[bytes]:
        queues = [self.queues[topic, one.queue_id] for one in deliveries]
        return [decode(queue[one.queue_offset]).body for queue, one in zip(queues, deliveries, strict=True)]

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
        self._may_fail()
        self._topic(topic)
        self.receives.append((group, topic, invisible_ms, wait_ms))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            found = self._take(group, topic, client_id, wanted, max_messages, invisible_ms, attempt_id)
            if found or loop.time() >= deadline:
                # kept, so that only `close` can release it
                self.batches.append(ReceivedBatch(found, self._close))
                return self.batches[-1]
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + self._next_expiry_s(group, topic))):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _close(self) -> None:
        self.closed += 1

    async def ack(
        self, group: str, topic: str, handles: Sequence[str], *, timeout_ms: int = 0
    ) -> list[AckStatus]:
        self._may_fail()
        state, results = self._groups[group, topic], []
        for handle in handles:
            popped = self._find(state, handle)
            if popped is not None:
                state.popped.remove(popped)
            results.append(AckStatus.INVALID_HANDLE if popped is None else AckStatus.OK)
        self._wake()
        return results

    async def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        self._may_fail()
        popped = self._popped(group, topic, handle)
        popped.handle, popped.invisible_until_ms = self._handle(), self.now_ms() + invisible_ms
        self._wake()
        return popped.handle

    async def dead_letter(self, group: str, topic: str, handle: str) -> None:
        self._may_fail()
        popped = self._popped(group, topic, handle)
        self._groups[group, topic].popped.remove(popped)
        self._give_up(group, topic, popped)

    def heard_of(self, client_id: str, group: str = "") -> None:
        self.heard.append((client_id, group))

    async def release(self, client_id: str, group: str = "") -> None:
        self._may_fail()
        self.released.append((client_id, group))
        for (name, _), state in self._groups.items():
            for popped in state.popped:
                if popped.client_id == client_id and group in ("", name):
                    popped.invisible_until_ms = min(popped.invisible_until_ms, self.now_ms() + 1_000)
        self._wake()

    # -- inside

    def _may_fail(self) -> None:
        if (error := self.fail_with) is not None:
            self.fail_with = None
            raise error

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _topic(self, name: str) -> TopicConfig:
        if name not in self.topics:
            self.topics[name] = self._default(name)
        return self.topics[name]

    def _default(self, name: str) -> TopicConfig:
        check_topic_name(name)
        if not self.auto_create and not name.startswith(DEAD_LETTER_PREFIX):
            raise TopicRefused(Status.TOPIC_UNKNOWN, f"there is no topic {name}")
        return TopicConfig(name)

    def _record(
        self, topic: str, message: OutgoingMessage, message_id: str, queue_id: int, born_host: str
    ) -> bytes:
        properties = {**message.properties, UNIQ_KEY: message_id}
        record = encode(
            MessageRecord(
                topic,
                message.body,
                join_properties(properties),
                queue_id,
                sys_flag=message.sys_flag,
                born_timestamp=message.born_timestamp or self.now_ms(),
                born_host=Host.parse(born_host) if born_host else NO_HOST,
                store_timestamp=self.now_ms(),
                store_host=Host.parse("127.0.0.1:10911"),
            )
        )
        patch_offsets(record, len(self.queues[topic, queue_id]), next(self._numbers) * 1_000)
        return bytes(record)

    def _store(
        self, topic: str, message: OutgoingMessage, message_id: str, queue_id: int, born_host: str
    ) -> PutResult:
        config = self._topic(topic)
        if queue_id < 0:
            self._turns[topic] += 1
            queue_id = self._turns[topic] % config.write_queues
        queue = self.queues[topic, queue_id]
        queue.append(self._record(topic, message, message_id, queue_id, born_host))
        self._wake()
        return PutResult(queue_id, len(queue) - 1)

    def _take(
        self,
        group: str,
        topic: str,
        client_id: str,
        wanted: Filter,
        most: int,
        invisible_ms: int,
        attempt_id: str,
    ) -> list[Delivery]:
        state, now = self._groups[group, topic], self.now_ms()
        limit = self.groups.get(group, GroupConfig(group)).retry_max_times + 1
        for popped in [
            popped for popped in state.popped if popped.invisible_until_ms <= now and popped.attempts >= limit
        ]:
            state.popped.remove(popped)
            self._give_up(group, topic, popped)
        again = [popped for popped in state.popped if attempt_id and popped.attempt_id == attempt_id]
        taken = again or [popped for popped in state.popped if popped.invisible_until_ms <= now]
        for queue_id in range(self.topics[topic].read_queues):
            queue = self.queues[topic, queue_id]
            while not again and state.cursors[queue_id] < len(queue) and len(taken) < most:
                if group in self.orderly and any(
                    popped.queue_id == queue_id and popped not in taken for popped in state.popped
                ):
                    break
                offset = state.cursors[queue_id]
                state.cursors[queue_id] += 1
                if _matches(queue[offset], wanted):
                    fresh = Popped(queue[offset], queue_id, offset)
                    state.popped.append(fresh)
                    taken.append(fresh)
        for popped in taken[:most]:
            popped.attempts += 0 if again else 1
            popped.invisible_until_ms = now + (invisible_ms or RENEWED_MS)
            popped.handle, popped.client_id, popped.attempt_id = self._handle(), client_id, attempt_id
        return [
            Delivery(
                popped.record,
                popped.queue_id,
                popped.queue_offset,
                popped.attempts,
                popped.handle,
                popped.invisible_until_ms,
            )
            for popped in taken[:most]
        ]

    def _next_expiry_s(self, group: str, topic: str) -> float:
        untils = [popped.invisible_until_ms for popped in self._groups[group, topic].popped]
        return max(0.001, (min(untils) - self.now_ms()) / 1000) if untils else 3_600.0

    def _handle(self) -> str:
        return f"handle-{next(self._numbers)}"

    def _find(self, state: GroupState, handle: str) -> Popped | None:
        now = self.now_ms()
        return next(
            (
                popped
                for popped in state.popped
                if popped.handle == handle and popped.invisible_until_ms > now
            ),
            None,
        )

    def _popped(self, group: str, topic: str, handle: str) -> Popped:
        popped = self._find(self._groups[group, topic], handle)
        if popped is None:
            raise ReadFailed(_NOT_POPPED, "nothing was popped with this handle")
        return popped

    def _give_up(self, group: str, topic: str, popped: Popped) -> None:
        message = decode(popped.record)
        properties = split_properties(message.properties)
        message_id = properties.pop(UNIQ_KEY, "")
        properties |= {"DLQ_ORIGIN_TOPIC": topic, "DLQ_ORIGIN_MESSAGE_ID": message_id}
        outgoing = OutgoingMessage(message.body, properties, born_timestamp=message.born_timestamp)
        self._store(DEAD_LETTER_PREFIX + group, outgoing, message_id, -1, "")


def _matches(record: bytes, wanted: Filter) -> bool:
    properties = split_properties(decode(record).properties)
    if wanted.tags and properties.get(TAGS) not in wanted.tags:
        return False
    return wanted.matches is None or wanted.matches(properties)
