"""Sends lines as messages, in order within each queue, with batches of the lines that wait for a queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_adapter.client import Message, Producer, QueueNumber, Selector, SendResult, select_by_hash
from broker_adapter.errors import BrokerError, PutIndeterminate, PutRefused, Status, TopicRefused
from broker_adapter.wire.java_hash import java_hash

_PAUSE_SECONDS = 0.1
#: Number of lanes for keys. Lines with the same key are in the same lane.
_KEY_LANES = 1024
#: Maximum size of a batch, with an estimate of each message's own properties. Far below the brokers' limit
#: for a request (4 MiB by default), so that a batch is not refused where its messages would not be.
_BATCH_BYTES = 256 << 10
_PROPERTIES_BYTES = 128


@dataclass(frozen=True, slots=True)
class MessageRule:
    """How lines are converted into messages."""

    topic: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    key_field: int | None = None  # counted from 1
    separator: str | None = None  # None: white space
    ordered: bool = False
    queue: int | None = None

    def keys_of(self, line: bytes) -> tuple[str, ...]:
        if self.key_field is None:
            return self.keys
        fields = line.decode(errors="replace").split(self.separator)
        found = fields[self.key_field - 1].split() if self.key_field <= len(fields) else []
        return (*self.keys, *found)

    def message(self, line: bytes) -> Message:
        return Message(self.topic, line, tags=self.tag or "", keys=self.keys_of(line))


class StoredLines(NamedTuple):
    """The positions at which lines were stored, which are consecutive in one queue."""

    queue_id: int
    last_offset: int


@dataclass(slots=True, eq=False)
class _PendingLine:
    """A line in a lane. `outcome` is None until its batch has ended."""

    message: Message
    key: str  # determines the queue; "" if the order does not depend on keys
    outcome: StoredLines | BrokerError | None = None

    @property
    def size(self) -> int:
        message = self.message
        return len(message.body) + sum(map(len, message.keys)) + len(message.tags) + _PROPERTIES_BYTES


@dataclass(slots=True)
class _Lane:
    """The lines of one queue, or of the keys with one hash, in order. At most one batch is in flight.

    The next batch consists of the lines that arrived meanwhile: a slow disk makes batches larger instead of
    the rate smaller. Several batches in flight would be stored in another order if one had to be repeated.
    """

    number: int | None  # of the queue; None: the queue follows from the key
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending: deque[_PendingLine] = field(default_factory=deque)

    def next_batch(self, max_lines: int) -> list[_PendingLine]:
        """Remove the first lines that fit one batch and have the same key: at least one line."""
        batch = [self.pending.popleft()]
        size = batch[0].size
        while self.pending and len(batch) < max_lines:
            line = self.pending[0]
            size += line.size
            if line.key != batch[0].key or size > _BATCH_BYTES:
                break
            batch.append(self.pending.popleft())
        return batch


class LineSender:
    """Sends lines, preserving their order within a queue.

    Lines that were certainly not stored are sent again for up to `timeout` seconds. After a failure, no
    further batch is sent.
    """

    def __init__(
        self, producer: Producer, rule: MessageRule, timeout: float, *, max_lines: int, again: bool
    ) -> None:
        """`max_lines`: limit of a batch. `again`: also send lines again whose outcome is unknown."""
        self._producer = producer
        self._rule = rule
        self._timeout = timeout
        self._max_lines = max_lines
        self._again = again
        self._queue_lanes: dict[int, _Lane] = {}
        self._key_lanes: defaultdict[int, _Lane] = defaultdict(lambda: _Lane(None))
        self._assigning = asyncio.Lock()  # fair: lines are assigned to lanes in their order
        self._turn = -1
        self._error: BrokerError | None = None

    async def send(self, body: bytes) -> StoredLines:
        """Send a line. Raises the error of its batch, or PutRefused if it was not sent after a failure."""
        message = self._rule.message(body)
        line = _PendingLine(message, " ".join(message.keys) if self._rule.ordered else "")
        async with self._assigning:
            lane = await self._lane_of(line)
            lane.pending.append(line)
            if lane.number is None and not line.key:
                # The topic does not exist yet. This line creates it, and the next one may find its queues.
                await self._send_lane(lane, line)
        async with lane.lock:
            await self._send_lane(lane, line)
        if isinstance(line.outcome, BrokerError):
            raise line.outcome
        assert line.outcome is not None
        return line.outcome

    async def _lane_of(self, line: _PendingLine) -> _Lane:
        if line.key:
            return self._key_lanes[java_hash(line.key) % _KEY_LANES]
        number = self._rule.queue if self._rule.queue is not None else await self._next_queue()
        if number is None:
            return _Lane(None)
        return self._queue_lanes.setdefault(number, _Lane(number))

    async def _next_queue(self) -> int | None:
        """Return the next queue, round-robin, or None if the topic has no queues yet."""
        self._turn += 1
        turn = self._turn
        try:
            numbers = sorted({queue.queue_id for queue in await self._producer.queues(self._rule.topic)})
        except BrokerError:
            return None  # if the send fails as well, its error shows the reason
        return numbers[turn % len(numbers)] if numbers else None

    async def _send_lane(self, lane: _Lane, line: _PendingLine) -> None:
        """Send the next batch of a lane, which contains `line`, unless an earlier batch contained it."""
        if line.outcome is not None:
            return
        batch = lane.next_batch(self._max_lines)
        if self._error is not None:
            outcome: StoredLines | BrokerError = _not_sent(self._error)
        else:
            try:
                outcome = await self._send_until_stored(batch, lane.number)
            except BrokerError as error:
                outcome = self._error = error
        for sent in batch:
            sent.outcome = outcome

    async def _send_until_stored(self, batch: Sequence[_PendingLine], number: int | None) -> StoredLines:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while True:
            try:
                result = await self._send_once([line.message for line in batch], batch[0].key, number)
                return StoredLines(result.queue.queue_id, result.queue_offset + len(batch) - 1)
            except BrokerError as error:
                if not self._is_repeated(error) or loop.time() + _PAUSE_SECONDS > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    def _is_repeated(self, error: BrokerError) -> bool:
        if isinstance(error, TopicRefused):
            return error.status is Status.QUEUE_UNKNOWN  # no master is known yet
        return isinstance(error, PutRefused) or (self._again and isinstance(error, PutIndeterminate))

    async def _send_once(self, messages: list[Message], key: str, number: int | None) -> SendResult:
        selector: Selector | None = None
        if number is not None:
            selector = QueueNumber(number)
        elif key:
            selector = select_by_hash
        if len(messages) > 1:
            return await self._producer.send_batch(messages, selector=selector, arg=key)
        return await self._producer.send(messages[0], selector=selector, arg=key)


def _not_sent(error: BrokerError) -> BrokerError:
    """Return the error of lines that were not sent after a failure: certainly not stored."""
    if not isinstance(error, PutIndeterminate):
        return error
    text = f"not sent, because the outcome of other lines is unknown: {error.message}"
    return PutRefused(error.status, text)
