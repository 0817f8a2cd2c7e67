"""Delayed messages in SCHEDULE_TOPIC_XXXX: a queue for each level, each in the order in which they are due.

The unit of a message in the ConsumeQueue has the time when it is due (`Route.delay_ms`). Messages that are
due are put into their queues in one append with the offset up to which their level is delivered: each comes
once, whatever ends the broker. delayOffset.json has these offsets for brokers of RocketMQ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import structlog

from broker_adapter.commitlog.put_gathering import QueuedRecords
from broker_adapter.deferred.deferring import DeferringParts, ToDefer
from broker_adapter.errors import IllegalMessage
from broker_adapter.format.consume_queue_unit import ConsumeQueueUnit
from broker_adapter.format.delay_levels import DELAY_LEVEL, LEVELS_MS, SCHEDULE_TOPIC
from broker_adapter.format.host import known_host
from broker_adapter.format.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from broker_adapter.pop.api import Delayed
from broker_adapter.pop.commands import SystemOffset
from broker_adapter.pop.committer import Request
from broker_adapter.pop.handles import id_digest
from broker_adapter.pop.sender import settled, with_id
from broker_adapter.system_queues.due_loop import DueLoop
from broker_adapter.system_queues.lost_tail import LostTail
from broker_adapter.system_queues.records import read_records
from broker_adapter.system_queues.waiting import Waiting, fields_of, put_aside, waiting

_log = structlog.get_logger(part="delivery")
#: Of one append.
_STEP_MESSAGES, _STEP_BYTES = 100, 1 << 20


class _Delivered(NamedTuple):
    """Of a level. `due_ms`: of the next message, if that has to wait; None: there is none, or more is due."""

    has_moved: bool = False
    due_ms: int | None = None


class LevelDelivery:
    """On the master's event loop."""

    def __init__(self, parts: DeferringParts) -> None:
        self._parts = parts
        self._loop = DueLoop("delay-levels", self._look, parts.now_ms)
        self._lost_tail = LostTail(parts, [(SCHEDULE_TOPIC, queue_id) for queue_id in range(len(LEVELS_MS))])
        self.stop = self._loop.stop

    def start(self) -> None:
        self._lost_tail.start()
        self._loop.start()

    async def put(self, put: ToDefer, level: int) -> Delayed:
        parts, topic, message = self._parts, put.config.name, put.message
        queue_id, digest = parts.writer.queue_of(put.config, put.queue_id), b""
        if message_id := put.message_id:
            if (first := await parts.sender.outcome(topic, message_id, put.timeout_ms)) is not None:
                return Delayed("", True, await parts.sender.shortfall_of(first, put.timeout_ms))
            message, digest = with_id(message, message_id), id_digest(topic, message_id)
        aside = put_aside(message, topic, queue_id, {DELAY_LEVEL: str(level)})
        own = fields_of(topic, aside.properties)
        host = known_host(put.born_host)
        records = parts.writer.records(SCHEDULE_TOPIC, level - 1, [aside], born_host=host, own=own)

        def stored(_: Request) -> None:
            """Also if whoever sent it was told that it is in doubt."""
            self._loop.expect(parts.now_ms() + LEVELS_MS[level - 1])

        request = parts.sender.request(digest, queued=[records], released=stored)
        done = await settled(put.timeout_ms, request.done)
        return Delayed("", shortfall=done.shortfall)

    # -- inside

    async def _look(self) -> int | None:
        if await self._parts.files.wait_applied() < 0:
            return None  # the log is empty
        await self._lost_tail.settle()
        while True:  # in turns: one level may have more that is due than can be delivered meanwhile
            found = [await self._deliver_some(queue_id) for queue_id in range(len(LEVELS_MS))]
            if not any(one.has_moved for one in found):
                return min((one.due_ms for one in found if one.due_ms is not None), default=None)

    async def _deliver_some(self, queue_id: int) -> _Delivered:
        """One append of what is due of a level."""
        parts = self._parts
        least, end = parts.files.bounds(SCHEDULE_TOPIC, queue_id)
        begin = min(max(least, parts.state.system_offset(SCHEDULE_TOPIC, queue_id)), end)
        if begin >= end:
            return _Delivered()
        read = partial(parts.files.units, SCHEDULE_TOPIC, queue_id, begin, min(_STEP_MESSAGES, end - begin))
        units: Sequence[ConsumeQueueUnit] = await parts.run(read, "")
        if not units:
            return _Delivered()
        now_ms = parts.now_ms()
        count = _due(units, now_ms, now_ms + LEVELS_MS[queue_id])
        if not count:
            return _Delivered(due_ms=units[0].tag_code)
        await self._move(queue_id, begin, units[:count])
        return _Delivered(has_moved=True)

    async def _move(self, queue_id: int, begin: int, units: Sequence[ConsumeQueueUnit]) -> None:
        parts, state = self._parts, self._parts.state
        records = await parts.run(partial(read_records, parts.reader, units), "")
        queued = [one for record in records if (one := await self._queued(record)) is not None]
        request = Request(
            queued=queued,
            elements=[SystemOffset(SCHEDULE_TOPIC, queue_id, begin + len(units))],
            is_due=lambda: state.system_offset(SCHEDULE_TOPIC, queue_id) <= begin,
        )
        await parts.committer.submit(request)

    async def _queued(self, record: bytes | None) -> QueuedRecords | None:
        """For its queue. None: it has none any more, as its topic was deleted; or there is no such record."""
        found = None if record is None else waiting(record)
        if found is None:
            _log.error("a delayed message is no more in the log, or none")
            return None
        topic, writer = found.topic, self._parts.writer
        queue_id = writer.topics.fitting_queue(topic, found.queue_id)
        if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) and writer.topics.refusal(topic, queue_id):
            await self._parts.make_topic(topic)
        if (refusal := writer.topics.refusal(topic, queue_id)) is not None:
            _log.warning("a delayed message is dropped", topic=topic, reason=str(refusal))
            return None
        return self._records(found, queue_id)

    def _records(self, found: Waiting, queue_id: int) -> QueuedRecords | None:
        own = fields_of(found.topic, found.properties)
        own = own._replace(reconsume_times=max(own.reconsume_times, found.reconsume_times))
        host = found.message.born_host
        try:
            return self._parts.writer.records(
                found.topic, queue_id, [found.restored()], born_host=host, is_moved=True, own=own
            )
        except IllegalMessage as error:
            _log.error("a delayed message fits into no queue", topic=found.topic, reason=str(error))
            return None


def _due(units: Sequence[ConsumeQueueUnit], now_ms: int, latest_ms: int) -> int:
    """How many come next. One that says it waits for longer than its level does not wait: a clock was set."""
    size = 0
    for count, unit in enumerate(units):
        size += unit.size if unit.is_message() else 0
        if now_ms < unit.tag_code <= latest_ms or (count and size > _STEP_BYTES):
            return count
    return len(units)
