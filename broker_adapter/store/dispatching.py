"""Dispatches a batch of entries in log order, into ConsumeQueue units, index keys and commands."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from broker_adapter.errors import IllegalMessage, Status, StoredDataDamaged
from broker_adapter.log.protocol import Piece, RecordFormat
from broker_adapter.store.applied import NOTHING
from broker_adapter.store.consume_queue import ConsumeQueue
from broker_adapter.store.consume_queues import ConsumeQueues, Incarnation, QueuePosition
from broker_adapter.store.index_files import IndexFiles, KeyedMessage, KeyedRun
from broker_adapter.store.job_queue import JobQueue
from broker_adapter.store.message_runs import MessageRun, RunFinder
from broker_adapter.wire.consume_queue_unit import FILLER_SIZE, MAX_FILLERS, UNIT_SIZE
from broker_adapter.wire.delay_levels import DELAY_LEVEL, SCHEDULE_TOPIC, level_ms, level_of
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import MessageRecord, Version, decode
from broker_adapter.wire.properties import KEYS, MAX_PROPERTIES_BYTES, TAGS, UNIQ_KEY, split_properties
from broker_adapter.wire.sys_flag import (
    HOST_BITS,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from broker_adapter.wire.topic_names import MAX_TOPIC_LENGTH, UNSENDABLE_TOPICS, check_topic_name
from dledger import Applied, AppliedEntry, StorageError

METADATA_TOPIC = "DLEDGER_SYS_METADATA"
DELIVERY_TOPIC = "DLEDGER_SYS_DELIVERY"

# The caches are cleared beyond this size. Tails with keys are not cached, so few programs reach it.
_MAX_CACHED = 10_000
_MAX_CACHED_LENGTH = 1024


class DispatchRoute(NamedTuple):
    """The destination of a dispatched message.

    Routes of one topic share `queues`, the queues used so far. `unique_key` and `keys` are to be indexed, in
    the form of the properties. `delay_ms`: delay of a message in SCHEDULE_TOPIC, else 0.
    """

    topic: str
    queues: dict[int, ConsumeQueue]
    tag_code: int
    unique_key: str | None
    keys: str | None
    is_keyed: bool
    is_metadata: bool
    is_delivery: bool
    # If not 0, the unit stores the due time instead of the tag code.
    delay_ms: int


class DispatchRoutes:
    def __init__(self) -> None:
        self._by_tail: dict[bytes, DispatchRoute] = {}
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self._tag_codes: dict[str, int] = {}

    def get(self, tail: bytes) -> DispatchRoute | None:
        """Return the cached route for a tail."""
        return self._by_tail.get(tail)

    def of_tail(self, tail: bytes) -> DispatchRoute:
        """Return the route for a tail, which is the bytes after the body of a V1 record.

        Raises StoredDataDamaged.
        """
        topic_end = 1 + tail[0] if tail else 0
        properties_at = topic_end + 2
        if not 1 < topic_end <= 1 + MAX_TOPIC_LENGTH or len(tail) < properties_at:
            raise StoredDataDamaged(
                Status.RECORD_LENGTHS, f"the record has no topic: {len(tail)} bytes remain"
            )
        size = int.from_bytes(tail[topic_end:properties_at], "big")
        if size != len(tail) - properties_at or size > MAX_PROPERTIES_BYTES:
            raise StoredDataDamaged(
                Status.RECORD_LENGTHS, "the properties do not end at the end of the record"
            )
        try:
            route = self._route(tail[1:topic_end].decode(), tail[properties_at:].decode())
        except UnicodeDecodeError as error:
            raise StoredDataDamaged(Status.RECORD_TEXT, f"invalid topic or properties: {error}") from None
        if not route.is_keyed and len(tail) <= _MAX_CACHED_LENGTH:
            if len(self._by_tail) >= _MAX_CACHED:
                self._by_tail.clear()
            self._by_tail[tail] = route
        return route

    def of_message(self, message: MessageRecord) -> DispatchRoute:
        """Return the route of a message. Raises StoredDataDamaged if the topic name is invalid."""
        return self._route(message.topic, message.properties)

    def forget(self) -> None:
        """Clear the caches after the queues have changed."""
        self._by_tail.clear()
        self._queues.clear()

    def _route(self, topic: str, properties: str) -> DispatchRoute:
        if topic not in self._queues:
            try:
                check_topic_name(topic)
            except IllegalMessage as error:
                raise StoredDataDamaged(Status.RECORD_FIELD, error.message) from None
            self._queues[topic] = {}
        values = split_properties(properties) if properties else {}
        unique_key, keys = values.get(UNIQ_KEY), values.get(KEYS)
        return DispatchRoute(
            topic,
            self._queues[topic],
            self._tag_code(values.get(TAGS, "")),
            unique_key,
            keys,
            unique_key is not None or keys is not None,
            topic == METADATA_TOPIC,
            topic == DELIVERY_TOPIC,
            level_ms(level_of(values.get(DELAY_LEVEL))) if topic == SCHEDULE_TOPIC else 0,
        )

    def _tag_code(self, tag: str) -> int:
        code = self._tag_codes.get(tag)
        if code is None:
            code = tag_code(tag)
            if len(tag) <= _MAX_CACHED_LENGTH:
                if len(self._tag_codes) >= _MAX_CACHED:
                    self._tag_codes.clear()
                self._tag_codes[tag] = code
        return code


_log = structlog.get_logger(part="reput")

_pack_unit = Struct(">qiq").pack
_physical_offset = Struct(">q").unpack_from
# Up to this number, each entry that is not a record or is set aside is logged; above it, only at powers of
# ten.
_LOGGED_EACH = 10


Delivery = Callable[[int, int, bytes, int, int, int], None]


class SetAside(NamedTuple):
    """The number of committed entries that this node could not apply since it started, and the latest such
    entry.
    """

    number: int = 0
    last_index: int = -1
    last_reason: str = ""


class _Units:
    """Units of a queue that are not written yet."""

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.count = 0


class BatchDispatch:
    """Dispatches batches of entries. Called by one thread at a time."""

    def __init__(
        self,
        queues: ConsumeQueues,
        index: IndexFiles,
        index_jobs: JobQueue,
        command: Callable[[int, bytes], None],
        delivery: Delivery,
        log: RecordFormat,
        on_incarnation: Callable[[str, int], None] = lambda topic, queue_id: None,
    ) -> None:
        """Create a dispatch.

        `command` receives (index, body) of records of the metadata topic. `delivery` receives (index, store
        timestamp, body, position of the entry, size of the entry's body, term of the entry) of records of the
        delivery topic.
        `on_incarnation` is called with topic and queue id before a queue restarts at offset 0; when it
        returns, no checkpoint may refer to the queue's files.
        """
        self._on_incarnation = on_incarnation
        self._queues = queues
        self._index = index
        self._index_jobs = index_jobs
        self._command = command
        self._delivery = delivery
        self._log = log
        self._routes = DispatchRoutes()
        # Expected end of each queue after the replay; None without a replay.
        self._awaited: dict[ConsumeQueue, int] | None = None
        self._refilled: set[ConsumeQueue] = set()
        # Queues whose end is known only from existing files. Messages in the log take precedence.
        self._assumed: set[ConsumeQueue] = set()
        # During a rebuild: starts of incarnations known from an earlier run. Earlier messages of these queues
        # belong to deleted topics.
        self._hidden: dict[tuple[str, int], int] = {}
        self._hidden_at: dict[int, list[tuple[str, int]]] = {}  # the same by position
        self._hidden_end = -1
        self.foreign_records = 0
        self.set_aside = SetAside()
        self.reached = NOTHING  # last entry of the last batch
        # The state of the running batch, or of the last batch if it failed:
        self._gathered: dict[ConsumeQueue, _Units] = {}
        self._arrived: dict[ConsumeQueue, None] = {}
        self._keyed: list[KeyedMessage | KeyedRun] = []
        self._keyed_count = 0  # messages in `_keyed`

    def begin(self, positions: Sequence[QueuePosition], misplaced: Sequence[int] = ()) -> None:
        """Create empty queues at these positions. A replay may follow, until `end_replay`."""
        self._routes.forget()
        self._queues.begin_at(positions, misplaced)
        self._refilled.clear()
        self._assumed.clear()
        self.hide_earlier(())
        self._awaited = {queue: queue.max_offset for queue in self._queues.all()}

    def continue_after(self, ends: Mapping[Path, QueuePosition]) -> None:
        """Continue queues after the units in existing files, unless messages in the log differ from the
        units.

        Call after a `begin` without positions.
        """
        self._assumed = self._queues.continue_after(ends)
        self._awaited = None

    def hide_earlier(self, incarnations: Iterable[Incarnation]) -> None:
        """Skip messages before the latest known incarnation of their queue. Call after `begin`.

        While the queues are rebuilt, readers then do not see messages of deleted topics.
        """
        self._hidden = {(topic, queue_id): position for topic, queue_id, position in incarnations}
        self._hidden_at = {}
        for hidden, position in self._hidden.items():
            self._hidden_at.setdefault(position, []).append(hidden)
        self._hidden_end = max(self._hidden_at, default=-1)

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        """Rebuild from entries whose effects on metadata and on queue offsets are already known."""
        self._dispatch(entries, is_replay=True)

    def end_replay(self) -> None:
        """Set the end of every queue to its end in the image, so that it is equal on all nodes.

        Messages that the replay could not restore are unreadable on this node.
        """
        if self._awaited is None:
            return
        for queue in self._queues.all():
            end = self._awaited.get(queue, 0)
            if queue.max_offset != end:
                problem = f"{queue} ends at {queue.max_offset} after the replay instead of {end}"
                self._note_set_aside(self.reached.index, problem)
                self._queues.restart_at(queue, end)
        self._awaited = None

    def apply(self, entries: Sequence[AppliedEntry]) -> list[ConsumeQueue]:
        """Dispatch entries. Return the queues with new messages, all of which are readable.

        An entry that cannot be applied is set aside (see `set_aside`) and raises no error. The decision
        depends only on the log and is therefore equal on all nodes.
        """
        return self._dispatch(entries, is_replay=False)

    def begin_queue(self, topic: str, queue_id: int, offset: int) -> bool:
        """Set the first offset of a new queue, for the command that is being applied."""
        queue = self._queues.start_new_queue(topic, queue_id, offset)
        if queue is None:
            return False
        self._arrived[queue] = None
        return True

    # -- internals ---------------------------------------------------------------------------------------

    def _dispatch(self, entries: Sequence[AppliedEntry], *, is_replay: bool) -> list[ConsumeQueue]:
        self._gathered, self._arrived, self._keyed, self._keyed_count = {}, {}, [], 0
        pieces = None if is_replay else self._log.pieces(entries)
        if pieces is not None:
            for piece in pieces:
                self._dispatch_piece(piece)
        else:
            for entry in entries:
                self._dispatch_entry(entry, is_replay)
            last = entries[-1]
            end = last.pos + self._log.header_size + len(last.body)
            self.reached = Applied(last.index, last.term, end)
        self._flush()
        if self._keyed:
            self._index_jobs.gather(self._index.add, self._keyed, self._keyed_count)
        return list(self._arrived)

    def _dispatch_piece(self, piece: Piece) -> None:
        """Dispatch raw records.

        Uniform runs of messages are dispatched as a whole, all other entries one by one.
        """
        header, data, begin_of = self._log.header_size, piece.data, piece.begin
        finder = RunFinder(piece, header)
        at, end = 0, len(data)
        while at < end:
            is_record, size, index, term, pos = begin_of(at)
            if not is_record:
                at += size
                continue
            run = finder.find(at, size)
            count = 0 if run is None else self._dispatch_run(run)
            if count:
                at += count * size
                _, _, index, term, pos = begin_of(at - size)
            else:
                at += size
                body = bytes(data[at - size + header : at])
                self._dispatch_entry(AppliedEntry(index, term, body, pos), is_replay=False)
            self.reached = Applied(index, term, pos + size)

    def _dispatch_run(self, run: MessageRun) -> int:
        """Dispatch the start of a run.

        Return the number of dispatched messages. If any remain, the next one must be dispatched individually.
        """
        try:
            route = self._routes.get(run.tail) or self._routes.of_tail(run.tail)
        except StoredDataDamaged:
            return 0
        if route.is_metadata or route.is_delivery or route.delay_ms or (route.is_keyed and run.keys is None):
            return 0
        if run.physical_offset <= self._hidden_end:
            return 0
        count = run.count
        parts: list[tuple[_Units, npt.NDArray[Any]]] = []
        for queue_id, numbers in run.parts():
            if queue_id < 0:
                count = min(count, int(numbers[0]))
            if numbers[0] >= count:
                break
            queue = route.queues.get(queue_id) or self._obtain(route, queue_id)
            queued = self._units_of(queue)
            count = min(count, run.count_expected(numbers, queue.max_offset + queued.count))
            parts.append((queued, numbers))
        units = run.units(route.tag_code)
        for queued, numbers in parts:
            mine = numbers if count == run.count else numbers[: np.searchsorted(numbers, count)]
            queued.parts.append(units[mine].tobytes())
            queued.count += len(mine)
        if run.keys and count:
            self._keyed.append(run.keyed(route.topic, count))
            self._keyed_count += count
        return count

    def _dispatch_entry(self, entry: AppliedEntry, is_replay: bool) -> None:
        physical_offset = entry.pos + self._log.header_size
        try:
            route, queue_id, queue_offset, size, sys_flag, stamp = place(entry, physical_offset, self._routes)
        except StoredDataDamaged as error:
            self._note_foreign(entry, error)
            return
        if route.is_metadata or route.is_delivery:
            if not is_replay:
                self._dispatch_command(entry, route, stamp)
            return
        part = sys_flag & TRANSACTION_MASK
        is_elsewhere = part in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        if not is_elsewhere and not (is_replay and entry.index in self._queues.misplaced):
            if physical_offset <= self._hidden_end:
                for restarted in self._hidden_at.get(physical_offset, ()):
                    self._queues.incarnations[restarted] = physical_offset
                if physical_offset < self._hidden.get((route.topic, queue_id), 0):
                    return
            queue = route.queues.get(queue_id) or self._obtain(route, queue_id)
            units = self._units_of(queue)
            if queue_offset == queue.max_offset + units.count or self._accepts_gap(
                entry.index, queue, queue_offset, physical_offset
            ):
                code = stamp + route.delay_ms if route.delay_ms else route.tag_code
                units.parts.append(_pack_unit(physical_offset, size, code))
                units.count += 1
        if route.is_keyed and part != TRANSACTION_ROLLBACK:
            self._keyed.append((route.topic, route.unique_key, route.keys, physical_offset, stamp))
            self._keyed_count += 1

    def _dispatch_command(self, entry: AppliedEntry, route: DispatchRoute, stamp: int) -> None:
        try:
            message = message_of(entry)
            if not self._log.is_command(message):
                reason = f"a record of {route.topic} that no broker of this project wrote is not a command"
                self._note_foreign(entry, StoredDataDamaged(Status.RECORD_FIELD, reason))
                return
            body = message.body
            if route.is_metadata:
                # The command must affect all messages before it and no later ones.
                self._flush()
                self._command(entry.index, body)
            else:
                self._delivery(entry.index, stamp, body, entry.pos, len(entry.body), entry.term)
        except (OSError, MemoryError, StorageError):
            raise  # a problem of this node, not of the entry; a retry or a newer release may succeed
        except Exception as error:
            # States check a command before they change, so this is a program error. It occurs on every node,
            # because commands depend only on the log.
            self._note_set_aside(entry.index, f"{type(error).__name__}: {error}", error)

    def _flush(self) -> None:
        for queue, units in self._gathered.items():
            if units.count:
                queue.append(queue.max_offset, b"".join(units.parts))
                self._arrived[queue] = None
                self._assumed.discard(queue)
        self._gathered.clear()

    def _units_of(self, queue: ConsumeQueue) -> _Units:
        units = self._gathered.get(queue)
        if units is None:
            units = self._gathered[queue] = _Units()
        return units

    def _obtain(self, route: DispatchRoute, queue_id: int) -> ConsumeQueue:
        queue = route.queues[queue_id] = self._queues.obtain(route.topic, queue_id)
        return queue

    def _accepts_gap(self, index: int, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
        """Handle a message whose offset is not the next one. Return True if it can now be added, and False if
        it is set aside or belongs to a deleted topic.

        In a replay, the first message of a queue defines the queue's start. Skipped offsets are filled with
        filler units, because a log may have assigned them to messages that belong to no queue. In a classic
        log, offset 0 starts a new incarnation of the queue, because RocketMQ deleted and recreated the topic.
        A message with any other used or distant offset is set aside.
        """
        if self._log.begins_queues and not queue_offset:
            self._start_incarnation(queue, physical_offset)
            return True
        units = self._units_of(queue)
        if self._log.begins_queues and not units.count:
            if queue in self._assumed:
                self._queues.restart_at(queue, queue_offset)
                return True
            if not queue.max_offset:
                queue.begin_at(queue_offset)
                return True
        if self._awaited is not None and queue not in self._refilled and not units.count:
            if queue_offset < queue.floor:
                return False  # the topic was deleted
            if queue_offset < self._awaited.get(queue, 0):
                queue.begin_at(queue_offset)
                self._refilled.add(queue)
                return True
        expected = queue.max_offset + units.count
        gap = queue_offset - expected
        problem = f"{queue}: message with offset {queue_offset}, expected {expected}"
        if not 0 < gap <= MAX_FILLERS:
            if self._awaited is None:
                self._queues.misplaced.append(index)
            self._note_set_aside(index, problem)
            return False
        self._note_set_aside(index, f"{problem}: {gap} offsets without a message")
        units.parts.append(_pack_unit(physical_offset, FILLER_SIZE, 0) * gap)
        units.count += gap
        return True

    def _start_incarnation(self, queue: ConsumeQueue, physical_offset: int) -> None:
        """Drop the messages of the deleted topic, including the ones in this batch."""
        span = self._span(queue)
        self._restart(queue, physical_offset)
        # A queue without messages in the log may also restart without a deletion, if its master started empty
        # after retention had removed the messages. RocketMQ does not delete its system topics.
        if span is not None and queue.topic not in UNSENDABLE_TOPICS:
            self._restart_siblings(queue, span[1], physical_offset)

    def _restart_siblings(self, queue: ConsumeQueue, deleted_after: int, physical_offset: int) -> None:
        """Restart the other queues that have messages of the deleted topic.

        All queues restart when a topic is recreated, so no queue has messages of both topics. The topic was
        deleted after position `deleted_after`, so a queue whose messages start before that position has only
        messages of the deleted topic. The other queues are kept, because their messages may be new.
        """
        spans = {other: span for other in self._queues.of_topic(queue.topic) if (span := self._span(other))}
        while older := [other for other, (first, _) in spans.items() if first < deleted_after]:
            for other in older:
                deleted_after = max(deleted_after, spans.pop(other)[1])
                self._restart(other, physical_offset)

    def _span(self, queue: ConsumeQueue) -> tuple[int, int] | None:
        """Return the physical offsets of the first and the last readable message.

        Returns None if the queue has no messages or its file is damaged.
        """
        units = self._gathered.get(queue)
        pending = b"" if units is None else b"".join(units.parts)
        ends = [_physical_offset(pending, at)[0] for at in (0, len(pending) - UNIT_SIZE) if pending]
        stored = range(queue.min_offset, queue.max_offset)
        try:
            ends += [queue.read(at, 1)[0].physical_offset for at in (stored[0], stored[-1])] if stored else []
        except StoredDataDamaged:
            return None
        return (min(ends), max(ends)) if ends else None

    def _restart(self, queue: ConsumeQueue, physical_offset: int) -> None:
        units = self._units_of(queue)
        _log.warning(
            "a queue restarts at offset 0: its topic was deleted and recreated",
            topic=queue.topic,
            queue_id=queue.queue_id,
            next_offset=queue.max_offset + units.count,
            physical_offset=physical_offset,
        )
        units.parts.clear()
        units.count = 0
        self._assumed.discard(queue)
        self._on_incarnation(queue.topic, queue.queue_id)
        self._queues.start_incarnation(queue, physical_offset)

    def _note_foreign(self, entry: AppliedEntry, error: StoredDataDamaged) -> None:
        self.foreign_records += 1
        number = self.foreign_records
        if _is_logged(number):
            _log.warning(
                "skipping an entry that is not a message",
                index=entry.index,
                number=number,
                reason=str(error),
            )

    def _note_set_aside(self, index: int, reason: str, error: Exception | None = None) -> None:
        number = self.set_aside.number + 1
        self.set_aside = SetAside(number, index, reason)
        if _is_logged(number):
            _log.error(
                "a committed entry cannot be applied and is set aside",
                index=index,
                number=number,
                reason=reason,
                exc_info=error,
            )


def _is_logged(number: int) -> bool:
    return number <= _LOGGED_EACH or str(number).strip("0") == "1"


# Fields of a V1 record with IPv4 hosts: size, magic, queue id, queue offset, physical offset, sys_flag, store
# timestamp, size of the body.
_FIXED = struct.Struct(">II4xi4xqqi16xq20xi")
_unpack = _FIXED.unpack_from
_BODY_AT = _FIXED.size
_V1 = int(Version.V1)
# No limit: the body size was checked when the message was stored.
_ANY_BODY = 1 << 30

#: Route, queue id, queue offset, size of the record, sys_flag, store timestamp (ms).
RecordTarget = tuple[DispatchRoute, int, int, int, int, int]


def place(entry: AppliedEntry, physical_offset: int, routes: DispatchRoutes) -> RecordTarget:
    """Return the dispatch target of the record in an entry. Does not check the CRC, which is the log's task.

    Raises StoredDataDamaged if the entry is not a record that a broker stored at this offset.
    """
    body = entry.body
    if len(body) < _BODY_AT:
        raise StoredDataDamaged(Status.RECORD_TRUNCATED, f"the {len(body)} bytes are too short for a record")
    size, magic, queue_id, queue_offset, stated_offset, sys_flag, stamp, body_size = _unpack(body)
    if magic == _V1 and size == len(body) and body_size >= 0 and not sys_flag & HOST_BITS:
        tail = body[_BODY_AT + body_size :]
        route = routes.get(tail) or routes.of_tail(tail)
    else:
        message = decode(body, max_body_bytes=_ANY_BODY, verify_body=False)
        route = routes.of_message(message)
        stamp = message.store_timestamp  # after hosts of other sizes
    if stated_offset != physical_offset or queue_id < 0 or queue_offset < 0:
        raise StoredDataDamaged(
            Status.RECORD_FIELD,
            f"invalid position in the record at {physical_offset}: queue {queue_id}, offset "
            f"{queue_offset}, physical offset {stated_offset}",
        )
    return route, queue_id, queue_offset, size, sys_flag, stamp


def message_of(entry: AppliedEntry) -> MessageRecord:
    """Decode the message in an entry. `place` must have returned a target for it."""
    return decode(entry.body, max_body_bytes=_ANY_BODY, verify_body=False)
