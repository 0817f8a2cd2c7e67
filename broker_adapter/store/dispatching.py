"""What one batch of entries does: units, keys and commands, in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import structlog

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.format.consume_queue_unit import FILLER_SIZE, MAX_FILLERS
from broker_adapter.format.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from broker_adapter.log.protocol import Piece, RecordFormat
from broker_adapter.store.applied import NOTHING
from broker_adapter.store.consume_queue import ConsumeQueue
from broker_adapter.store.consume_queues import ConsumeQueues, QueuePosition
from broker_adapter.store.index_files import IndexFiles, KeyedMessage
from broker_adapter.store.job_queue import JobQueue
from broker_adapter.store.message_runs import MessageRun, RunFinder
from broker_adapter.store.records import body_of, place
from broker_adapter.store.routes import Route, Routes
from dledger import Applied, AppliedEntry

_log = structlog.get_logger(part="reput")

_pack_unit = Struct(">qiq").pack
#: Of entries that are no records, and of those set aside, so many are logged one by one, and then each
#: time that there are ten times as many.
_LOGGED_EACH = 10


Delivery = Callable[[int, int, bytes, int, int], None]


class SetAside(NamedTuple):
    """Committed entries that could not be applied since the start of this node."""

    number: int = 0
    last_index: int = -1
    last_reason: str = ""


class _Units:
    """Units that are not in the file yet."""

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.count = 0


class Dispatching:
    """Called by one thread at a time."""

    def __init__(
        self,
        queues: ConsumeQueues,
        index: IndexFiles,
        index_jobs: JobQueue,
        command: Callable[[int, bytes], None],
        delivery: Delivery,
        log: RecordFormat,
    ) -> None:
        """`command` gets (index, body) of the records of the metadata topic, `delivery` (index, store
        timestamp, body, position and size of the entry's body) of those of the delivery topic."""
        self._queues = queues
        self._index = index
        self._index_jobs = index_jobs
        self._command = command
        self._delivery = delivery
        self._log = log
        self._routes = Routes()
        #: Where each queue has to end when the replay is over; None without one.
        self._awaited: dict[ConsumeQueue, int] | None = None
        self._refilled: set[ConsumeQueue] = set()
        #: Where these end nobody knows but files that were there: a message of the log knows better.
        self._assumed: set[ConsumeQueue] = set()
        self.foreign_records = 0
        self.set_aside = SetAside()
        self.reached = NOTHING  # by the last batch
        # Of the batch under way, or of one that has failed:
        self._gathered: dict[ConsumeQueue, _Units] = {}
        self._arrived: dict[ConsumeQueue, None] = {}
        self._keyed: list[KeyedMessage] = []

    def begin(self, positions: Sequence[QueuePosition], misplaced: Sequence[int] = ()) -> None:
        """Queues are empty and go on from here; a replay may follow, until `end_replay`."""
        self._routes.forget()
        self._queues.begin_at(positions, misplaced)
        self._refilled.clear()
        self._assumed.clear()
        self._awaited = {queue: queue.max_offset for queue in self._queues.all()}

    def go_on_behind(self, ends: Mapping[Path, QueuePosition]) -> None:
        """After `begin` without any: queues go on behind what files have, unless the log has messages of them
        that say otherwise."""
        self._assumed = self._queues.go_on_behind(ends)
        self._awaited = None

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        """Entries whose effects on metadata and on the offsets of queues are known already."""
        self._take(entries, is_replay=True)

    def end_replay(self) -> None:
        """Every queue ends where the image says, as on all other nodes. What of it the replay could not make
        again cannot be read on this node."""
        if self._awaited is None:
            return
        for queue in self._queues.all():
            end = self._awaited.get(queue, 0)
            if queue.max_offset != end:
                problem = f"{queue} ends at {queue.max_offset} after a replay, not at {end}"
                self._note_set_aside(self.reached.index, problem)
                self._queues.begin_again(queue, end)
        self._awaited = None

    def apply(self, entries: Sequence[AppliedEntry]) -> list[ConsumeQueue]:
        """The queues that got messages, all of which can be read now.

        No entry fails, whatever its bytes: what cannot be applied is set aside, which depends on nothing but
        the log and so is the same on all nodes (`set_aside`).
        """
        return self._take(entries, is_replay=False)

    def begin_queue(self, topic: str, queue_id: int, offset: int) -> bool:
        """For the command that says so, while it is applied."""
        queue = self._queues.begin_new(topic, queue_id, offset)
        if queue is None:
            return False
        self._arrived[queue] = None
        return True

    # -- inside -----------------------------------------------------------------------------------------

    def _take(self, entries: Sequence[AppliedEntry], *, is_replay: bool) -> list[ConsumeQueue]:
        self._gathered, self._arrived, self._keyed = {}, {}, []
        pieces = None if is_replay else self._log.pieces(entries)
        if pieces is not None:
            for piece in pieces:
                self._take_piece(piece)
        else:
            for entry in entries:
                self._take_one(entry, is_replay)
            last = entries[-1]
            end = last.pos + self._log.header_size + len(last.body)
            self.reached = Applied(last.index, last.term, end)
        self._flush()
        if self._keyed:
            self._index_jobs.submit(partial(self._index.add, self._keyed), len(self._keyed))
        return list(self._arrived)

    def _take_piece(self, piece: Piece) -> None:
        """Records as the log has them: runs of messages that are alike at once, what else there is singly."""
        header, data, begin_of = self._log.header_size, piece.data, piece.begin
        finder = RunFinder(piece, header)
        at, end = 0, len(data)
        while at < end:
            is_record, size, index, term, pos = begin_of(at)
            if not is_record:
                at += size
                continue
            run = finder.find(at, size)
            count = 0 if run is None else self._take_run(run)
            if count:
                at += count * size
                _, _, index, term, pos = begin_of(at - size)
            else:
                at += size
                body = bytes(data[at - size + header : at])
                self._take_one(AppliedEntry(index, term, body, pos), is_replay=False)
            self.reached = Applied(index, term, pos + size)

    def _take_run(self, run: MessageRun) -> int:
        """How many messages of it were taken; the next one has to be looked at alone."""
        try:
            route = self._routes.get(run.tail) or self._routes.of_tail(run.tail)
        except StoredDataDamaged:
            return 0
        if route.is_metadata or route.is_delivery or route.is_keyed or route.delay_ms:
            return 0
        for queue_id, begin, end in run.parts():
            if queue_id < 0:
                return begin
            queue = route.queues.get(queue_id) or self._obtain(route, queue_id)
            units = self._units_of(queue)
            if not run.has_offsets_from(queue.max_offset + units.count, begin, end):
                return begin
            units.parts.append(run.units(begin, end, route.tag_code))
            units.count += end - begin
        return run.count

    def _take_one(self, entry: AppliedEntry, is_replay: bool) -> None:
        physical_offset = entry.pos + self._log.header_size
        try:
            route, queue_id, queue_offset, size, sys_flag, stamp = place(entry, physical_offset, self._routes)
        except StoredDataDamaged as error:
            self._note_foreign(entry, error)
            return
        if route.is_metadata or route.is_delivery:
            if not is_replay:
                self._take_command(entry, route, stamp)
            return
        part = sys_flag & TRANSACTION_MASK
        is_elsewhere = part in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        if not is_elsewhere and not (is_replay and entry.index in self._queues.misplaced):
            queue = route.queues.get(queue_id) or self._obtain(route, queue_id)
            units = self._units_of(queue)
            if queue_offset == queue.max_offset + units.count or self._makes_room(
                entry.index, queue, queue_offset, physical_offset
            ):
                code = stamp + route.delay_ms if route.delay_ms else route.tag_code
                units.parts.append(_pack_unit(physical_offset, size, code))
                units.count += 1
        if route.is_keyed and part != TRANSACTION_ROLLBACK:
            self._keyed.append((route.topic, route.unique_key, route.keys, physical_offset, stamp))

    def _take_command(self, entry: AppliedEntry, route: Route, stamp: int) -> None:
        try:
            body = body_of(entry)
            if route.is_metadata:
                # What it does to queues it does to all messages before it, and to none after it.
                self._flush()
                self._command(entry.index, body)
            else:
                self._delivery(entry.index, stamp, body, entry.pos, len(entry.body))
        except (OSError, MemoryError):
            raise  # of this node, not of the entry: it may succeed another time
        except Exception as error:
            # States are judged before they are changed, so this is a mistake of the program; the same one on
            # every node, as commands depend on nothing but the log.
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

    def _obtain(self, route: Route, queue_id: int) -> ConsumeQueue:
        queue = route.queues[queue_id] = self._queues.obtain(route.topic, queue_id)
        return queue

    def _makes_room(self, index: int, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
        """Whether a message with another offset than the next one has its place now.

        The first message of a queue in a replay is where it begins. Offsets that were left out are filled up:
        a log may have given them to messages that are in no queue. An offset that was given before, or one
        that is far away, has no place, and the message is set aside.
        """
        units = self._units_of(queue)
        if self._log.begins_queues and not units.count:
            if queue in self._assumed:
                self._queues.begin_again(queue, queue_offset)
                return True
            if not queue.max_offset:
                queue.begin_at(queue_offset)
                return True
        if self._awaited is not None and queue not in self._refilled and not units.count:
            if queue_offset < queue.floor:
                return False  # it was deleted
            if queue_offset < self._awaited.get(queue, 0):
                queue.begin_at(queue_offset)
                self._refilled.add(queue)
                return True
        expected = queue.max_offset + units.count
        gap = queue_offset - expected
        problem = f"{queue}: a message with offset {queue_offset}, the next one is {expected}"
        if not 0 < gap <= MAX_FILLERS:
            if self._awaited is None:
                self._queues.misplaced.append(index)
            self._note_set_aside(index, problem)
            return False
        self._note_set_aside(index, f"{problem}: {gap} offsets without a message")
        units.parts.append(_pack_unit(physical_offset, FILLER_SIZE, 0) * gap)
        units.count += gap
        return True

    def _note_foreign(self, entry: AppliedEntry, error: StoredDataDamaged) -> None:
        self.foreign_records += 1
        number = self.foreign_records
        if _is_logged(number):
            _log.warning(
                "an entry that is no message is passed over",
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
