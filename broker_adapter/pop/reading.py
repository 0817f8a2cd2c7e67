"""What a receive reads of the queues before anything is given: on reader threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from struct import Struct

from broker_adapter.api import PullStatus
from broker_adapter.format.message import decode
from broker_adapter.format.properties import TAGS, split_properties
from broker_adapter.pop.api import MAX_FILTER_STEPS, Filter
from broker_adapter.pop.commands import MAX_SPAN, QueueKey
from broker_adapter.pop.queue_state import PoppedMessage
from broker_adapter.store.queue_reader import QueueReader

#: Messages looked at in one queue for a filter that hardly any of them matches.
_MOST_SCANNED = 4096
_queue_offset = Struct(">q").unpack_from
_QUEUE_OFFSET_AT = 20


@dataclass(slots=True)
class Plan:
    """What to look at in one queue: messages that were given before, and fresh ones, from `begin` on."""

    key: QueueKey
    again: list[tuple[int, PoppedMessage]]
    begin: int
    most_fresh: int


@dataclass(slots=True)
class Found:
    """What there is of a plan. `unwanted` are given again to nobody: purged, or not what the group wants."""

    plan: Plan
    end: int
    records: dict[int, bytes] = field(default_factory=dict)
    again: list[tuple[int, PoppedMessage]] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    unwanted: list[tuple[int, PoppedMessage]] = field(default_factory=list)
    does_not_fit: bool = False  # the next one


def look(
    reader: QueueReader,
    plans: list[Plan],
    wanted: Filter,
    most: int,
    max_bytes: int,
    *,
    only_fitting: bool = False,
) -> list[Found]:
    """Up to `most` messages and so many bytes, or a single message that is larger; `only_fitting`: not even
    that. Blocks."""
    found: list[Found] = []
    steps_left = MAX_FILTER_STEPS
    for plan in plans:
        has_some = any(one.records for one in found)
        looking = _Look(reader, wanted, most, max_bytes, steps_left, only_fitting or has_some)
        one = looking.look(plan)
        most -= len(one.records)
        max_bytes -= sum(map(len, one.records.values()))
        steps_left = looking.steps_left
        found.append(one)
        if most <= 0 or max_bytes <= 0 or steps_left <= 0:
            break
    return found


class _Look:
    def __init__(
        self,
        reader: QueueReader,
        wanted: Filter,
        most: int,
        max_bytes: int,
        steps_left: int,
        only_fitting: bool,
    ) -> None:
        self._reader = reader
        self._wanted = wanted
        self._most = most
        self._max_bytes = max_bytes
        self._only_fitting = only_fitting
        self.steps_left = steps_left  # of evaluating the filter

    def look(self, plan: Plan) -> Found:
        found = Found(plan, plan.begin)
        self._look_again(plan, found)
        if found.does_not_fit:
            return found
        is_all = len(found.again) + len(found.unwanted) == len(plan.again)
        if is_all and plan.most_fresh > 0 and self._most > 0 and self._max_bytes > 0:
            self._look_ahead(plan, found)
        return found

    def _look_again(self, plan: Plan, found: Found) -> None:
        by_offset = dict(plan.again)
        for _, run in groupby(enumerate(sorted(by_offset)), lambda one: one[1] - one[0]):
            offsets = [offset for _, offset in run]
            while offsets and self._may_go_on(found):
                result = self._reader.read(
                    plan.key.topic,
                    plan.key.queue_id,
                    offsets[0],
                    max_messages=min(self._most, len(offsets)),
                    max_bytes=self._max_bytes,
                    tags=frozenset(),
                )
                if result.status is PullStatus.OFFSET_ILLEGAL:
                    gone = [offset for offset in offsets if offset < result.min_offset]
                    found.unwanted += [(offset, by_offset[offset]) for offset in gone]
                    if not gone:
                        break  # a queue that this broker has still to make again
                    offsets = offsets[len(gone) :]
                    continue
                if result.next_offset <= offsets[0]:
                    break
                looked_at = 0
                records = {_queue_offset(one, _QUEUE_OFFSET_AT)[0]: one for one in result.records}
                for offset in offsets:
                    if offset >= result.next_offset or self.steps_left <= 0:
                        break
                    popped, record = (offset, by_offset[offset]), records.get(offset)
                    if record is not None and self._matches(record):
                        if not self._take(found, offset, record):
                            break
                        found.again.append(popped)
                    else:
                        found.unwanted.append(popped)
                    looked_at += 1
                offsets = offsets[looked_at:]

    def _look_ahead(self, plan: Plan, found: Found) -> None:
        key, limit, left = plan.key, plan.begin + _MOST_SCANNED, min(plan.most_fresh, self._most)
        while left > 0 and self._may_go_on(found) and found.end < limit:
            result = self._reader.read(
                key.topic,
                key.queue_id,
                found.end,
                max_messages=left,
                max_bytes=self._max_bytes,
                tags=self._wanted.tags,
            )
            if result.next_offset <= found.end:
                break  # its end; or behind it, on a broker whose queues are not all there
            # What was purged or deleted may be more than one command passes over: the next look goes on.
            found.end = min(result.next_offset, plan.begin + MAX_SPAN)
            for record in result.records:
                offset = _queue_offset(record, _QUEUE_OFFSET_AT)[0]
                if self.steps_left <= 0:
                    found.end = offset  # the next look goes on here
                    break
                if self._matches(record):
                    if not self._take(found, offset, record):
                        found.end = offset
                        break
                    found.fresh.append(offset)
                    left -= 1

    def _may_go_on(self, found: Found) -> bool:
        return not found.does_not_fit and self._most > 0 and self._max_bytes > 0 and self.steps_left > 0

    def _take(self, found: Found, offset: int, record: bytes) -> bool:
        """False: it does not fit."""
        if len(record) > self._max_bytes and (self._only_fitting or found.records):
            found.does_not_fit = True
            return False
        found.records[offset] = record
        self._most -= 1
        self._max_bytes -= len(record)
        return True

    def _matches(self, record: bytes) -> bool:
        tags, matches, _ = self._wanted
        if not tags and matches is None:
            return True
        self.steps_left -= self._wanted.work(record)
        properties = split_properties(decode(record, verify_body=False).properties)
        return (not tags or properties.get(TAGS, "") in tags) and (matches is None or matches(properties))
