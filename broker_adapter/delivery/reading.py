"""Reads queues for a receive, on reader threads, before messages are delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from struct import Struct

from broker_adapter.api import GetMessageStatus
from broker_adapter.delivery.api import MAX_FILTER_STEPS, Filter
from broker_adapter.delivery_state.commands import MAX_SPAN, QueueKey
from broker_adapter.delivery_state.queue_state import PoppedMessage
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import TAGS, split_properties

#: Maximum number of messages that a receive scans in one queue if few of them match the filter.
_MAX_SCANNED = 4096
_queue_offset = Struct(">q").unpack_from
_QUEUE_OFFSET_AT = 20


@dataclass(slots=True)
class QueueReadPlan:
    """The messages to read from one queue: redeliveries, and new messages from offset `begin` onward."""

    key: QueueKey
    again: list[tuple[int, PoppedMessage]]
    begin: int
    most_fresh: int


@dataclass(slots=True)
class QueueReadResult:
    """The messages that were read for a plan.

    `unwanted`: delivered messages that are never delivered again, because they are purged or do not match the
    filter.
    """

    plan: QueueReadPlan
    end: int
    records: dict[int, bytes] = field(default_factory=dict)
    again: list[tuple[int, PoppedMessage]] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    unwanted: list[tuple[int, PoppedMessage]] = field(default_factory=list)
    does_not_fit: bool = False  # the next message does not fit


def read_plans(
    reader: QueueReader,
    plans: list[QueueReadPlan],
    wanted: Filter,
    max_messages: int,
    max_bytes: int,
    *,
    only_fitting: bool = False,
) -> list[QueueReadResult]:
    """Read up to `max_messages` and `max_bytes`.

    If the first message is larger than that, returns it alone, unless `only_fitting`. Blocks.
    """
    found: list[QueueReadResult] = []
    steps_left = MAX_FILTER_STEPS
    for plan in plans:
        has_some = any(result.records for result in found)
        scan = _Scan(reader, wanted, max_messages, max_bytes, steps_left, only_fitting or has_some)
        result = scan.run(plan)
        max_messages -= len(result.records)
        max_bytes -= sum(map(len, result.records.values()))
        steps_left = scan.steps_left
        found.append(result)
        if max_messages <= 0 or max_bytes <= 0 or steps_left <= 0:
            break
    return found


class _Scan:
    def __init__(
        self,
        reader: QueueReader,
        wanted: Filter,
        max_messages: int,
        max_bytes: int,
        steps_left: int,
        only_fitting: bool,
    ) -> None:
        self._reader = reader
        self._wanted = wanted
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._only_fitting = only_fitting
        self.steps_left = steps_left  # for evaluating the filter

    def run(self, plan: QueueReadPlan) -> QueueReadResult:
        found = QueueReadResult(plan, plan.begin)
        self._read_redeliveries(plan, found)
        if found.does_not_fit:
            return found
        is_all = len(found.again) + len(found.unwanted) == len(plan.again)
        if is_all and plan.most_fresh > 0 and self._max_messages > 0 and self._max_bytes > 0:
            self._read_new(plan, found)
        return found

    def _read_redeliveries(self, plan: QueueReadPlan, found: QueueReadResult) -> None:
        by_offset = dict(plan.again)
        for _, run in groupby(enumerate(sorted(by_offset)), lambda one: one[1] - one[0]):
            offsets = [offset for _, offset in run]
            while offsets and self._can_continue(found):
                result = self._reader.read(
                    plan.key.topic,
                    plan.key.queue_id,
                    offsets[0],
                    max_messages=min(self._max_messages, len(offsets)),
                    max_bytes=self._max_bytes,
                    tags=frozenset(),
                )
                if result.status is GetMessageStatus.OFFSET_ILLEGAL:
                    gone = [offset for offset in offsets if offset < result.min_offset]
                    found.unwanted += [(offset, by_offset[offset]) for offset in gone]
                    if not gone:
                        break  # this broker is still rebuilding the queue
                    offsets = offsets[len(gone) :]
                    continue
                if result.next_offset <= offsets[0]:
                    break
                examined = 0
                records = {_queue_offset(one, _QUEUE_OFFSET_AT)[0]: one for one in result.records}
                for offset in offsets:
                    if offset >= result.next_offset or self.steps_left <= 0:
                        break
                    popped, record = (offset, by_offset[offset]), records.get(offset)
                    if record is not None and self._matches(record):
                        if not self._add(found, offset, record):
                            break
                        found.again.append(popped)
                    else:
                        found.unwanted.append(popped)
                    examined += 1
                offsets = offsets[examined:]

    def _read_new(self, plan: QueueReadPlan, found: QueueReadResult) -> None:
        key, limit, left = plan.key, plan.begin + _MAX_SCANNED, min(plan.most_fresh, self._max_messages)
        while left > 0 and self._can_continue(found) and found.end < limit:
            result = self._reader.read(
                key.topic,
                key.queue_id,
                found.end,
                max_messages=left,
                max_bytes=self._max_bytes,
                tags=self._wanted.tags,
            )
            if result.next_offset <= found.end:
                break  # at the end of the queue, or beyond it if this broker has not dispatched all messages
            # A purged or deleted range may exceed the maximum span of a command. The next scan continues
            # after it.
            found.end = min(result.next_offset, plan.begin + MAX_SPAN)
            for record in result.records:
                offset = _queue_offset(record, _QUEUE_OFFSET_AT)[0]
                if self.steps_left <= 0:
                    found.end = offset  # the next scan continues here
                    break
                if self._matches(record):
                    if not self._add(found, offset, record):
                        found.end = offset
                        break
                    found.fresh.append(offset)
                    left -= 1

    def _can_continue(self, found: QueueReadResult) -> bool:
        return (
            not found.does_not_fit and self._max_messages > 0 and self._max_bytes > 0 and self.steps_left > 0
        )

    def _add(self, found: QueueReadResult, offset: int, record: bytes) -> bool:
        """Add a message. Return False if the message does not fit."""
        if len(record) > self._max_bytes and (self._only_fitting or found.records):
            found.does_not_fit = True
            return False
        found.records[offset] = record
        self._max_messages -= 1
        self._max_bytes -= len(record)
        return True

    def _matches(self, record: bytes) -> bool:
        tags, matches, _ = self._wanted
        if not tags and matches is None:
            return True
        self.steps_left -= self._wanted.work(record)
        properties = split_properties(decode(record, verify_body=False).properties)
        return (not tags or properties.get(TAGS, "") in tags) and (matches is None or matches(properties))
