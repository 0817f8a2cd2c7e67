"""Stores delayed and half messages in RocketMQ's format.

Messages that this format cannot represent are stored in commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from broker_adapter.delivery_state.commands import SystemOffset
from broker_adapter.delivery_state.duplicate_filter import DELAYED
from broker_adapter.errors import IllegalMessage
from broker_adapter.put.committer import PutRequest
from broker_adapter.put.message_writer import QueuedRecords
from broker_adapter.put.record_writer import retry_fields
from broker_adapter.put.sender import wait_for_result, with_id
from broker_adapter.scheduled.deferring import (
    DeferredStore,
    DeferredStoreParts,
    DeferRequest,
    HalfName,
    OrphanedHalf,
    StoredDelayed,
    StoredHalf,
    TransactionEnd,
)
from broker_adapter.scheduled.due_loop import DueLoop
from broker_adapter.scheduled.lost_tail import LostTail
from broker_adapter.scheduled.system_records import read_records
from broker_adapter.scheduled.transactions import TransactionQueues
from broker_adapter.scheduled.waiting import PendingMessage, put_aside, waiting
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit
from broker_adapter.wire.delay_levels import DELAY_LEVEL, LEVELS_MS, SCHEDULE_TOPIC, fitting_level
from broker_adapter.wire.host import known_host
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, HALF_TOPIC, OP_TOPIC, RETRY_PREFIX

# Topics to which only the broker writes.
OWN_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC})


class SystemQueues:
    """Implements DeferredStore with RocketMQ's system topics.

    `own` stores messages whose delay is given as a time instead of a level. It may also contain messages from
    before a change of format. Half messages older than `reserved_ms` are given up.
    """

    def __init__(self, own: DeferredStore, parts: DeferredStoreParts, *, reserved_ms: int) -> None:
        self._own = own
        self._levels = LevelDelivery(parts)
        self._transactions = TransactionQueues(parts, reserved_ms)

    def start(self) -> None:
        self._own.start()
        self._levels.start()
        self._transactions.start()

    def stop(self) -> None:
        self._own.stop()
        self._levels.stop()
        self._transactions.stop()

    def on_orphan(self, check: Callable[[OrphanedHalf], None]) -> None:
        self._own.on_orphan(check)
        self._transactions.on_orphan(check)

    async def delay(self, put: DeferRequest, deliver_at_ms: int, level: int) -> StoredDelayed:
        if fitting := fitting_level(level):
            return await self._levels.put(put, fitting)
        return await self._own.delay(put, deliver_at_ms, level)

    async def half(self, put: DeferRequest, client_id: str, check_after_ms: int) -> StoredHalf:
        return await self._transactions.put(put, check_after_ms)

    async def recall(self, topic: str, handle: str, timeout_ms: int) -> str:
        return await self._own.recall(topic, handle, timeout_ms)

    async def end_transaction(self, end: TransactionEnd, timeout_ms: int) -> None:
        if not await self._transactions.end_transaction(end, timeout_ms):
            await self._own.end_transaction(end, timeout_ms)

    async def half_at(self, queue_offset: int, physical_offset: int) -> HalfName | None:
        found = await self._transactions.half_at(queue_offset, physical_offset)
        return found or await self._own.half_at(queue_offset, physical_offset)


# Delayed messages are in SCHEDULE_TOPIC_XXXX, which has a queue per delay level in the order of due times.
# The tag code of a message's ConsumeQueue unit is its due time (`Route.delay_ms`). One append moves due
# messages into their queues and stores the level's delivery offset, so that each is delivered exactly once
# even if the broker crashes. delayOffset.json passes these offsets to RocketMQ brokers.

_log = structlog.get_logger(part="delivery")
# Limits of one append.
_STEP_MESSAGES, _STEP_BYTES = 100, 1 << 20


class _LevelProgress(NamedTuple):
    """The progress of one level.

    `due_ms`: due time of the next message, or None if there is none or if messages were moved.
    """

    has_moved: bool = False
    due_ms: int | None = None


class LevelDelivery:
    """Delivers the messages of delay levels. Runs on the master's event loop."""

    def __init__(self, parts: DeferredStoreParts) -> None:
        self._parts = parts
        self._loop = DueLoop("delay-levels", self._deliver_due, parts.now_ms)
        self._lost_tail = LostTail(parts, [(SCHEDULE_TOPIC, queue_id) for queue_id in range(len(LEVELS_MS))])
        self.stop = self._loop.stop

    def start(self) -> None:
        self._lost_tail.start()
        self._loop.start()

    async def put(self, put: DeferRequest, level: int) -> StoredDelayed:
        parts, topic, message = self._parts, put.config.name, put.message
        queue_id, sender = parts.writer.queue_of(put.config, put.queue_id), parts.sender
        identity = sender.identity(topic, put.message_id, [message])
        if identity is not None and (earlier := await sender.outcome(identity, put.timeout_ms)) is not None:
            sender.count_duplicate(topic)
            return StoredDelayed("", True, await sender.put_status_of(earlier, put.timeout_ms))
        if put.message_id:
            message = with_id(message, put.message_id)
        aside = put_aside(message, topic, queue_id, {DELAY_LEVEL: str(level)})
        own = retry_fields(topic, aside.properties)
        host = known_host(put.born_host)
        records = parts.writer.records(SCHEDULE_TOPIC, level - 1, [aside], born_host=host, own=own)

        def stored(_: PutRequest) -> None:
            """Schedule the delivery. Runs even if the sender has stopped waiting."""
            self._loop.expect(parts.now_ms() + LEVELS_MS[level - 1])

        request = sender.request(
            identity, queued=[records], id_queue_id=DELAYED, released=stored, born_host=put.born_host
        )
        done = await wait_for_result(put.timeout_ms, request.done)
        return StoredDelayed("", put_status=done.put_status)

    # -- internal

    async def _deliver_due(self) -> int | None:
        if await self._parts.files.wait_applied() < 0:
            return None  # the log is empty
        await self._lost_tail.settle()
        while True:  # round-robin, because one level may have due messages all the time
            found = [await self._deliver_level(queue_id) for queue_id in range(len(LEVELS_MS))]
            if not any(one.has_moved for one in found):
                return min((one.due_ms for one in found if one.due_ms is not None), default=None)

    async def _deliver_level(self, queue_id: int) -> _LevelProgress:
        """Deliver due messages of one level in one append."""
        parts = self._parts
        least, end = parts.files.bounds(SCHEDULE_TOPIC, queue_id)
        begin = min(max(least, parts.state.system_offset(SCHEDULE_TOPIC, queue_id)), end)
        if begin >= end:
            return _LevelProgress()
        read = partial(parts.files.units, SCHEDULE_TOPIC, queue_id, begin, min(_STEP_MESSAGES, end - begin))
        units: Sequence[ConsumeQueueUnit] = await parts.run(read, "")
        if not units:
            return _LevelProgress()
        now_ms = parts.now_ms()
        count = _due(units, now_ms, now_ms + LEVELS_MS[queue_id])
        if not count:
            return _LevelProgress(due_ms=units[0].tag_code)
        await self._move(queue_id, begin, units[:count])
        return _LevelProgress(has_moved=True)

    async def _move(self, queue_id: int, begin: int, units: Sequence[ConsumeQueueUnit]) -> None:
        parts, state = self._parts, self._parts.state
        records = await parts.run(partial(read_records, parts.reader, units), "")
        queued = [one for record in records if (one := await self._queued(record)) is not None]
        request = PutRequest(
            queued=queued,
            elements=[SystemOffset(SCHEDULE_TOPIC, queue_id, begin + len(units))],
            is_due=lambda: state.system_offset(SCHEDULE_TOPIC, queue_id) <= begin,
        )
        await parts.committer.submit(request)

    async def _queued(self, record: bytes | None) -> QueuedRecords | None:
        """Return the record for its queue, or None if the topic was deleted or the record is missing or
        invalid.
        """
        found = None if record is None else waiting(record)
        if found is None:
            _log.error("a delayed message is missing from the log, or its record is invalid")
            return None
        topic, writer = found.topic, self._parts.writer
        queue_id = writer.topics.fitting_queue(topic, found.queue_id)
        if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) and writer.topics.refusal(topic, queue_id):
            await self._parts.make_topic(topic)
        if (refusal := writer.topics.refusal(topic, queue_id)) is not None:
            _log.warning("a delayed message is dropped", topic=topic, reason=str(refusal))
            return None
        return self._records(found, queue_id)

    def _records(self, found: PendingMessage, queue_id: int) -> QueuedRecords | None:
        own = retry_fields(found.topic, found.properties)
        own = own._replace(reconsume_times=max(own.reconsume_times, found.reconsume_times))
        host = found.message.born_host
        try:
            return self._parts.writer.records(
                found.topic, queue_id, [found.restored()], born_host=host, is_moved=True, own=own
            )
        except IllegalMessage as error:
            _log.error("a delayed message does not fit any queue", topic=found.topic, reason=str(error))
            return None


def _due(units: Sequence[ConsumeQueueUnit], now_ms: int, latest_ms: int) -> int:
    """Return the number of due units.

    `latest_ms`: the time at which the delay of the level ends for a message stored now. A unit that is due
    later than this counts as due, because the clock was set back.
    """
    size = 0
    for count, unit in enumerate(units):
        size += unit.size if unit.is_message() else 0
        if now_ms < unit.tag_code <= latest_ms or (count and size > _STEP_BYTES):
            return count
    return len(units)
