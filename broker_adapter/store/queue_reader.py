"""Messages out of the queues: by (topic, queue, offset), by commit-log offset, by key, by time.

All of it blocks, for reader threads. What is read was committed: ConsumeQueues hold nothing else.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from broker_adapter.api import PullResult, PullStatus
from broker_adapter.errors import ReadFailed, Status, StoredDataDamaged
from broker_adapter.format.consume_queue_unit import FILLER_SIZE, ConsumeQueueUnit
from broker_adapter.format.index_layout import index_keys
from broker_adapter.format.java_hash import tag_code
from broker_adapter.format.message import decode
from broker_adapter.format.properties import KEYS, TAGS, UNIQ_KEY, split_properties
from broker_adapter.log.protocol import RecordLog
from dledger import Code, InvalidRequest, StorageError
from dledger import ReadFailed as LogReadFailed

#: Units looked at in one pull for a tag that hardly any message has.
_MAX_SCANNED = 4096
#: An answer to a query has so many bytes, or one message: nodes hand on little more.
_MAX_QUERIED_BYTES = 4 << 20
_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = 20
_STORE_TIMESTAMP = struct.Struct(">q")
#: Of messages that are there: what may be sent was asked then.
_ANY_BODY = 1 << 30
_SYS_FLAG_AT, _BORN_HOST_V6 = 36, 0x10


class QueueFiles(Protocol):
    """The ConsumeQueues and indexes of this node, as far as they are dispatched."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min offset, max offset); (0, 0) for a queue that was never written."""

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[ConsumeQueueUnit]:
        """So many units from an offset inside the bounds on, fewer at the end."""

    def find_keys(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> Sequence[int]:
        """Commit-log offsets that may be of messages with this key, the newest first."""


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
    ) -> PullResult:
        """What a pull finds now. Below the minimum or above the maximum it says where to go on."""
        least, end = self._files.bounds(topic, queue_id)
        if not least <= offset <= end:
            nearest = least if offset < least else end
            return PullResult(PullStatus.OFFSET_ILLEGAL, nearest, least, end)
        if offset == end:
            return PullResult(PullStatus.NO_NEW_MESSAGE, offset, least, end)
        count = _MAX_SCANNED if tags else max_messages
        units = self._files.units(topic, queue_id, offset, min(count, end - offset))
        chosen, next_offset = _choose(units, offset, max_messages, max_bytes, tags)
        try:
            records = self._records(chosen)
        except LogReadFailed as error:
            if error.code is not Code.INDEX_LESS_THAN_LOCAL_BEGIN:
                raise
            first = self._first_kept(topic, queue_id)
            return PullResult(PullStatus.OFFSET_ILLEGAL, first, first, end)
        read_offset = _QUEUE_OFFSET.unpack_from
        for (at, _), record in zip(chosen, records, strict=True):
            if read_offset(record, _QUEUE_OFFSET_AT)[0] != at:
                raise StoredDataDamaged(
                    Status.UNIT_DAMAGED, f"unit {at} of {topic}-{queue_id} points to another message"
                )
        if tags:  # the hash may be that of another tag
            records = [record for record in records if tag_of(record) in tags]
        status = PullStatus.FOUND if records else PullStatus.NO_MATCHED_MESSAGE
        return PullResult(status, next_offset, least, end, records)

    def message_at(self, physical_offset: int) -> bytes:
        """The record at a commit-log offset. ReadFailed (MESSAGE_NOT_FOUND)."""
        try:
            return self._log.record_at(physical_offset)
        except (LogReadFailed, InvalidRequest) as error:
            text = f"no message at {physical_offset}: {error.message}"
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, text) from error
        except StorageError as error:
            raise _being_repaired(error) from error

    def bodies_at(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bodies of the messages in records at (position in the log, size), of any size. ReadFailed
        (MESSAGE_NOT_FOUND if one was purged, BEING_REPAIRED)."""
        try:
            records = self._log.read_positions(places)
            return [decode(one, max_body_bytes=_ANY_BODY, verify_body=False).body for one in records]
        except (LogReadFailed, InvalidRequest) as error:
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, f"not in the log: {error.message}") from error
        except StorageError as error:
            raise _being_repaired(error) from error

    def query(self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_messages: int) -> list[bytes]:
        """Messages of the topic that have this key, stored between the times, the newest first: as many as an
        answer may have, and one at least. The index
        knows hashes only, so every message that it names is looked at; nor does it forget a deleted topic, so
        what is below the begin of its queue is of one that had the same name."""
        found: list[bytes] = []
        size = 0
        for physical_offset in self._files.find_keys(topic, key, begin_ms, end_ms, max_messages * 4):
            try:
                record = self.message_at(physical_offset)
            except ReadFailed:
                continue  # purged meanwhile
            message = decode(record, verify_body=False)
            properties = split_properties(message.properties)
            wanted = f"{topic}#{key}" in index_keys(topic, properties.get(UNIQ_KEY), properties.get(KEYS))
            if message.topic != topic or not wanted or not begin_ms <= message.store_timestamp <= end_ms:
                continue
            if message.queue_offset >= self._files.bounds(topic, message.queue_id)[0]:
                size += len(record)
                if found and size > _MAX_QUERIED_BYTES:
                    break
                found.append(record)
                if len(found) == max_messages:
                    break
        return found

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the first message stored at this time or later; the end if there is none. Store
        timestamps are cluster time, which never falls."""
        least, end = self._files.bounds(topic, queue_id)
        offsets = range(least, end)
        return least + bisect_left(
            offsets, timestamp_ms, key=lambda offset: self._store_timestamp(topic, queue_id, offset)
        )

    def newest_ms(self, topic: str, queue_id: int) -> int:
        """Store timestamp of the newest message; 0 without one. Reads it."""
        least, end = self._files.bounds(topic, queue_id)
        return max(0, self._store_timestamp(topic, queue_id, end - 1)) if least < end else 0

    def _store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """-1 for a message that was purged: queues follow the log with a delay."""
        try:
            (unit,) = self._files.units(topic, queue_id, offset, 1)
            if unit.size == FILLER_SIZE:  # that of the message after it
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
        """The log was purged, and the queue's own minimum is about to follow."""
        least, end = self._files.bounds(topic, queue_id)
        begin = self._log.begin_offset

        def physical_offset(offset: int) -> int:
            return self._files.units(topic, queue_id, offset, 1)[0].physical_offset

        return least + bisect_left(range(least, end), begin, key=physical_offset)

    def _records(self, chosen: Sequence[tuple[int, ConsumeQueueUnit]]) -> list[bytes]:
        """`dledger.ReadFailed` if some were purged; ReadFailed (BEING_REPAIRED)."""
        if not chosen:
            return []
        places = [(unit.physical_offset, unit.size) for _, unit in chosen]
        try:
            return self._log.read_records(places)
        except StorageError as error:
            raise _being_repaired(error) from error


def _being_repaired(error: StorageError) -> ReadFailed:
    text = f"damaged on this node, and being repaired; read it from another broker: {error.message}"
    return ReadFailed(Status.BEING_REPAIRED, text)


def tag_of(record: bytes) -> str:
    return split_properties(decode(record, verify_body=False).properties).get(TAGS, "")


def store_timestamp_of(record: bytes) -> int:
    """Behind the born host, whose size a bit of sys_flag tells."""
    (sys_flag,) = struct.unpack_from(">i", record, _SYS_FLAG_AT)
    at = 56 + (12 if sys_flag & _BORN_HOST_V6 else 0)
    return int(_STORE_TIMESTAMP.unpack_from(record, at)[0])


def _choose(
    units: Sequence[ConsumeQueueUnit], offset: int, max_messages: int, max_bytes: int, tags: frozenset[str]
) -> tuple[list[tuple[int, ConsumeQueueUnit]], int]:
    """The units to read, at least one if any has such a tag, and the offset behind the last one looked at.
    Fillers are passed over."""
    sizes = [unit.size for unit in units]
    if not tags and max(sizes, default=0) < FILLER_SIZE:
        sums = list(accumulate(sizes))
        count = min(max(1, bisect_right(sums, max_bytes)), max_messages, len(units))
        return list(zip(range(offset, offset + count), units, strict=False)), offset + count
    codes = {tag_code(tag) for tag in tags}
    chosen: list[tuple[int, ConsumeQueueUnit]] = []
    size = 0
    for unit in units:
        if unit.size != FILLER_SIZE and (not tags or unit.tag_code in codes):
            if chosen and (size + unit.size > max_bytes or len(chosen) == max_messages):
                break
            chosen.append((offset, unit))
            size += unit.size
        offset += 1
    return chosen, offset
