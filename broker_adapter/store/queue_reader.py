"""Reads messages by (topic, queue, offset), by commit-log offset, by key, and by time.

All functions block and run on reader threads. ConsumeQueues contain only committed messages.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from broker_adapter.api import GetMessageResult, GetMessageStatus
from broker_adapter.errors import ReadFailed, Status, StoredDataDamaged
from broker_adapter.log.protocol import RecordLog
from broker_adapter.wire.consume_queue_unit import FILLER_SIZE, ConsumeQueueUnit
from broker_adapter.wire.index_layout import index_keys
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import KEYS, TAGS, UNIQ_KEY, split_properties
from dledger import Code, InvalidRequest, StorageError
from dledger import ReadFailed as LogReadFailed
from dledger.infra.files.cached_reads import NotCached, is_only_cached

#: A read of at most this many messages is small: it can run on the event loop.
MAX_SMALL_READ = 64
# Maximum units scanned in one pull for a rare tag; more than the second number are scanned on a thread.
_MAX_SCANNED = 4096
_MAX_SMALL_SCAN = 256
_FIRST_SCAN = 64
# Maximum bytes of a query result with several messages, because forwarded responses are limited in size.
_MAX_QUERIED_BYTES = 4 << 20
_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = 20
_STORE_TIMESTAMP = struct.Struct(">q")
# No limit: the body size was checked when the message was stored.
_ANY_BODY = 1 << 30
_SYS_FLAG_AT, _BORN_HOST_V6 = 36, 0x10


class QueueFiles(Protocol):
    """Interface to the dispatched ConsumeQueues and indexes of this node."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (min offset, max offset), or (0, 0) for a queue that was never written."""

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[ConsumeQueueUnit]:
        """Return up to `count` units starting at `offset`, which must be within the queue.

        Returns fewer at the end of the queue.
        """

    def find_keys(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> Sequence[int]:
        """Return commit-log offsets of messages that may have this key, newest first."""

    def first_position(self, topic: str, queue_id: int) -> int:
        """Return the physical offset before which messages belong to a deleted topic with the same name."""


class QueueRange(NamedTuple):
    topic: str
    queue_id: int
    begin: int
    end: int


class QueueReader:
    def __init__(self, files: QueueFiles, log: RecordLog) -> None:
        self._files = files
        self._log = log

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        tags: frozenset[str],
    ) -> GetMessageResult:
        """Read messages for a pull.

        If the offset is outside the queue, the result contains the nearest valid offset.
        """
        least, end = self._files.bounds(topic, queue_id)
        if not least <= offset <= end:
            nearest = least if offset < least else end
            return GetMessageResult(GetMessageStatus.OFFSET_ILLEGAL, nearest, least, end)
        if offset == end:
            return GetMessageResult(GetMessageStatus.NO_NEW_MESSAGE, offset, least, end)
        queue = QueueRange(topic, queue_id, offset, end)
        chosen, next_offset = self._scan(queue, max_messages, max_bytes, tags)
        try:
            records = self._records(chosen)
        except LogReadFailed as error:
            if error.code is not Code.INDEX_LESS_THAN_LOCAL_BEGIN:
                raise
            first = self._first_kept(topic, queue_id)
            return GetMessageResult(GetMessageStatus.OFFSET_ILLEGAL, first, first, end)
        read_offset = _QUEUE_OFFSET.unpack_from
        for (at, _), record in zip(chosen, records, strict=True):
            if read_offset(record, _QUEUE_OFFSET_AT)[0] != at:
                raise StoredDataDamaged(
                    Status.UNIT_DAMAGED, f"unit {at} of {topic}-{queue_id} refers to another message"
                )
        if tags:  # another tag may have the same hash
            records = [record for record in records if tag_of(record) in tags]
        status = GetMessageStatus.FOUND if records else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, next_offset, least, end, records)

    def message_at(self, physical_offset: int) -> bytes:
        """Return the record at a commit-log offset. Raises ReadFailed (MESSAGE_NOT_FOUND)."""
        try:
            return self._log.record_at(physical_offset)
        except (LogReadFailed, InvalidRequest) as error:
            text = f"no message at {physical_offset}: {error.message}"
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, text) from error
        except StorageError as error:
            raise _being_repaired(error) from error

    def bodies_at(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bodies of messages in records at (position in the log, size), of any size.

        Raises ReadFailed: MESSAGE_NOT_FOUND if a message was purged, or BEING_REPAIRED.
        """
        try:
            records = self._log.read_positions(places)
            return [decode(record, max_body_bytes=_ANY_BODY, verify_body=False).body for record in records]
        except (LogReadFailed, InvalidRequest) as error:
            raise ReadFailed(
                Status.MESSAGE_NOT_FOUND, f"the message is not in the log: {error.message}"
            ) from error
        except StorageError as error:
            raise _being_repaired(error) from error

    def query(self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_messages: int) -> list[bytes]:
        """Return messages of the topic with this key, stored between the times, newest first.

        The total size of the result is limited, but it includes the first match whatever its size. The index
        stores only hashes, so every candidate is read. The index also has entries of deleted topics: a
        message before its queue's first position belongs to an earlier topic with the same name.
        """
        found: list[bytes] = []
        size = 0
        for physical_offset in self._files.find_keys(topic, key, begin_ms, end_ms, max_messages * 4):
            try:
                record = self.message_at(physical_offset)
            except ReadFailed:
                continue  # purged meanwhile
            message = decode(record, verify_body=False)
            properties = split_properties(message.properties)
            has_key = f"{topic}#{key}" in index_keys(topic, properties.get(UNIQ_KEY), properties.get(KEYS))
            if message.topic != topic or not has_key or not begin_ms <= message.store_timestamp <= end_ms:
                continue
            queue_id = message.queue_id
            is_earlier = physical_offset < self._files.first_position(topic, queue_id)
            if not is_earlier and message.queue_offset >= self._files.bounds(topic, queue_id)[0]:
                size += len(record)
                if found and size > _MAX_QUERIED_BYTES:
                    break
                found.append(record)
                if len(found) == max_messages:
                    break
        return found

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, is_upper: bool = False) -> int:
        """Return the offset of the first message stored at or after this time, or the end of the queue if
        there is none.

        `is_upper`: instead return the offset of the last message stored at or before this time, or the first
        offset if there is none. Store timestamps are cluster time, which never decreases.
        """
        least, end = self._files.bounds(topic, queue_id)

        def stored_ms(offset: int) -> int:
            return self._store_timestamp(topic, queue_id, offset)

        if is_upper:
            later = least + bisect_right(range(least, end), timestamp_ms, key=stored_ms)
            return max(least, later - 1)
        return least + bisect_left(range(least, end), timestamp_ms, key=stored_ms)

    def newest_ms(self, topic: str, queue_id: int) -> int:
        """Read the newest message and return its store timestamp, or 0 if there are no messages."""
        least, end = self._files.bounds(topic, queue_id)
        return max(0, self._store_timestamp(topic, queue_id, end - 1)) if least < end else 0

    def _store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return a message's store timestamp, or -1 if the log has purged the message and the queue has not
        done so yet.
        """
        try:
            (unit,) = self._files.units(topic, queue_id, offset, 1)
            if unit.size == FILLER_SIZE:  # a filler has the position of the next message
                return store_timestamp_of(self.message_at(unit.physical_offset))
            return store_timestamp_of(self._records([(offset, unit)])[0])
        except ReadFailed as error:
            if error.status is not Status.OFFSET_BELOW_MINIMUM:
                raise
        except LogReadFailed as error:
            if error.code is not Code.INDEX_LESS_THAN_LOCAL_BEGIN:
                raise
        return -1

    def _first_kept(self, topic: str, queue_id: int) -> int:
        """Return the first offset of the queue whose message the log has not purged.

        The queue's own minimum is updated later.
        """
        least, end = self._files.bounds(topic, queue_id)
        begin = self._log.begin_offset

        def physical_offset(offset: int) -> int:
            return self._files.units(topic, queue_id, offset, 1)[0].physical_offset

        return least + bisect_left(range(least, end), begin, key=physical_offset)

    def _scan(
        self, queue: QueueRange, max_messages: int, max_bytes: int, tags: frozenset[str]
    ) -> tuple[list[tuple[int, ConsumeQueueUnit]], int]:
        """Return the units to read, and the offset after the last examined unit.

        With tags, later reads of units are longer, because most pulls need only a few.
        """
        topic, queue_id, begin, end = queue
        chosen: list[tuple[int, ConsumeQueueUnit]] = []
        at, count = begin, _FIRST_SCAN if tags else max_messages
        while True:
            units = self._files.units(topic, queue_id, at, min(count, end - at))
            at, is_full = _choose(chosen, units, at, max_messages, max_bytes, tags)
            left = min(begin + _MAX_SCANNED, end) - at
            if is_full or left <= 0 or not tags or not units:
                return chosen, at
            if is_only_cached() and at - begin > _MAX_SMALL_SCAN:
                raise NotCached
            count = min(4 * count, left)

    def _records(self, chosen: Sequence[tuple[int, ConsumeQueueUnit]]) -> list[bytes]:
        """Read records. Raises `dledger.ReadFailed` if some were purged, or ReadFailed (BEING_REPAIRED)."""
        if not chosen:
            return []
        places = [(unit.physical_offset, unit.size) for _, unit in chosen]
        try:
            return self._log.read_records(places)
        except StorageError as error:
            raise _being_repaired(error) from error


def _being_repaired(error: StorageError) -> ReadFailed:
    text = f"damaged on this node and under repair; read it from another broker: {error.message}"
    return ReadFailed(Status.BEING_REPAIRED, text)


def tag_of(record: bytes) -> str:
    return split_properties(decode(record, verify_body=False).properties).get(TAGS, "")


def store_timestamp_of(record: bytes) -> int:
    """Read the store timestamp. It follows the born host, whose size depends on a bit of sys_flag."""
    (sys_flag,) = struct.unpack_from(">i", record, _SYS_FLAG_AT)
    at = 56 + (12 if sys_flag & _BORN_HOST_V6 else 0)
    return int(_STORE_TIMESTAMP.unpack_from(record, at)[0])


def _choose(
    chosen: list[tuple[int, ConsumeQueueUnit]],
    units: Sequence[ConsumeQueueUnit],
    offset: int,
    max_messages: int,
    max_bytes: int,
    tags: frozenset[str],
) -> tuple[int, bool]:
    """Add the units to read. Return the offset after the last examined unit, and whether they are enough.

    If a tag matches, there is at least one unit. Fillers are skipped.
    """
    sizes = [unit.size for unit in units]
    if not tags and max(sizes, default=0) < FILLER_SIZE:
        sums = list(accumulate(sizes))
        count = min(max(1, bisect_right(sums, max_bytes)), max_messages, len(units))
        chosen += zip(range(offset, offset + count), units, strict=False)
        return offset + count, True
    codes = {tag_code(tag) for tag in tags}
    size = sum(unit.size for _, unit in chosen)
    for unit in units:
        if unit.size != FILLER_SIZE and (not tags or unit.tag_code in codes):
            if chosen and (size + unit.size > max_bytes or len(chosen) == max_messages):
                return offset, True
            chosen.append((offset, unit))
            size += unit.size
        offset += 1
    return offset, False
