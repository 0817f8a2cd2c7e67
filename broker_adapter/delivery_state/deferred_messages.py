"""Messages that are not in their queues yet: delayed messages, and half messages of open transactions.

Half messages are stored completely, in memory and in the state image, so that they survive a purge of the
log. The settings limit their total size. For a delayed message, the state stores only its log position, in an
index on disk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from broker_adapter.delivery_state.commands import Carry, Defer, DeferredKind, Ending
from broker_adapter.delivery_state.delay_index import DelayedRow, DelayIndex, DuePosition, RowEnd, RowPut
from broker_adapter.delivery_state.records import decode, encode
from broker_adapter.errors import Status, StoredDataDamaged

# Number of ended messages to remember, and for how long, to answer repeated requests. All nodes must use the
# same values.
MAX_ENDS = 20_000
MAX_END_AGE_MS = 600_000

# Rows per read of the index, which takes some milliseconds.
_PAGE = 1_000
# Maximum number of rows in memory for lookups of messages that are not due soon.
_MAX_FETCHED = 40_000
# A time before all others.
NOT_NEAR = -(1 << 63)
_LAST_VERSION = (1 << 63) - 1
_SUM_MASK = (1 << 64) - 1

_N = TypeVar("_N")

_OF_HALVES = frozenset({Ending.COMMITTED, Ending.ROLLED_BACK})
# Endings after which the message is in no queue.
UNSTORED = frozenset({Ending.ROLLED_BACK, Ending.RECALLED})


class LogPosition(NamedTuple):
    """The position of a log entry, and the size of its body."""

    pos: int
    size: int


# The position of a command that was not read from a log.
NOWHERE = LogPosition(-1, 0)


class DeferredMessage(NamedTuple):
    """A delayed or half message.

    `command`: the message, encoded as in an image. If empty, the message is element number `element` of the
    command at `place` in the log.
    """

    command: bytes
    kind: DeferredKind
    topic: str
    due_ms: int  # time of delivery, or of the next check of a half message
    client: bytes  # address of the sender
    checks: int = 0  # number of producer checks
    place: LogPosition = NOWHERE
    element: int = 0

    @staticmethod
    def of(defer: Defer, place: LogPosition = NOWHERE, element: int = 0) -> DeferredMessage:
        client = defer.born_host[:-4]
        if defer.kind is DeferredKind.DELAYED and place != NOWHERE:
            return DeferredMessage(b"", defer.kind, defer.topic, defer.due_ms, client, 0, place, element)
        return DeferredMessage(encode([defer]), defer.kind, defer.topic, defer.due_ms, client)

    @staticmethod
    def of_row(row: DelayedRow) -> DeferredMessage:
        place = LogPosition(row.pos, row.size)
        return DeferredMessage(
            b"", DeferredKind.DELAYED, row.topic, row.due_ms, row.client, 0, place, row.element
        )

    @property
    def is_in_log(self) -> bool:
        return self.place != NOWHERE

    def defer(self, command: bytes = b"") -> Defer:
        """Return the complete message. Slow. `command`: the command at `place`, read from the log.

        Raises StoredDataDamaged (COMMAND_DAMAGED) if the command does not contain the message.
        """
        decoded = decode(command if self.is_in_log else self.command)
        elements = [] if decoded is None else decoded.elements
        found = elements[self.element] if self.element < len(elements) else None
        if isinstance(found, Carry):
            return found.defer
        if not isinstance(found, Defer):
            raise StoredDataDamaged(
                Status.COMMAND_DAMAGED, f"the log has no deferred message at {self.place}"
            )
        return found

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return 0 if self.is_in_log else len(self.command) + 200


#: A deferred message and its number.
Numbered = tuple[int, DeferredMessage]


class EndedMessage(NamedTuple):
    """The end of a deferred message. `topic` is "" if unknown, because the image is from an older version."""

    deferred_id: int
    ending: Ending
    stamp_ms: int
    topic: str


class IndexMark(NamedTuple):
    """A summary of the index at a checkpoint, with the number of its latest change."""

    rows: int
    checksum: int
    change: int


class DeferredMessages(Mapping[int, DeferredMessage]):
    """Deferred messages by number.

    Delayed messages in the log are rows of `index`. Memory contains only rows that are not yet in the index,
    rows that are due soon or were looked up (on a master), and counts. Without an index, memory contains all
    rows.

    Only one thread may change this object and call `write`. It must make no change between `write` and
    `written`.
    """

    def __init__(self, index: DelayIndex | None = None) -> None:
        self._index = index
        self._whole: dict[int, DeferredMessage] = {}
        self._recent: dict[int, RowPut] = {}  # rows that are not in the index yet, in log order
        self._gone: dict[int, RowEnd] = {}  # index rows that ended since the last write
        self._near: dict[int, DelayedRow] = {}  # some rows of the index
        self._near_until_ms = NOT_NEAR
        self._change = 0  # number of the latest change
        self._collectable = 0  # no checkpoint needs rows that ended at this change or before
        self.last_version = self._first_version = -1  # of the rows
        self._first_pos = 0  # at `_first_version`
        self.bytes = 0  # of whole messages
        self._bytes_of: dict[bytes, int] = {}
        self.delayed_count = 0  # rows
        self.checksum = 0  # of all rows, in any order
        self._delayed_of = Counter[bytes]()  # rows per client
        self._rows_of, self._whole_of = Counter[str](), Counter[str]()  # per topic
        self._ended: dict[int, EndedMessage] = {}
        self._order: deque[EndedMessage] = deque()

    # -- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, deferred_id: int) -> DeferredMessage:
        message = self._whole.get(deferred_id)
        if message is None:
            row = self._row(deferred_id)
            if row is None:
                raise KeyError(deferred_id)
            message = DeferredMessage.of_row(row)
        return message

    def __contains__(self, deferred_id: object) -> bool:
        return isinstance(deferred_id, int) and self.get(deferred_id) is not None

    def __iter__(self) -> Iterator[int]:
        return chain(self._whole, (row.number for row in self.rows()))

    def __len__(self) -> int:
        return len(self._whole) + self.delayed_count

    def _row(self, number: int) -> DelayedRow | None:
        if (put := self._recent.get(number)) is not None:
            return put.row
        if (row := self._near.get(number)) is not None:
            return row
        if self._index is None or self._is_known(number):
            return None
        return self._index.find(number)

    def _is_known(self, number: int) -> bool:
        """True if lookups do not need the index."""
        return (
            number in self._recent
            or number in self._near
            or number in self._gone
            or number in self._ended
            or number in self._whole
            or not self._indexed
        )

    @property
    def _indexed(self) -> int:
        """Number of current rows in the index."""
        return self.delayed_count - len(self._recent)

    def is_in_memory(self, deferred_id: int) -> bool:
        """True if lookups do not need the disk."""
        return self._index is None or self._is_known(deferred_id)

    def fetch(self, deferred_id: int) -> None:
        """Load a message into memory."""
        if self.is_in_memory(deferred_id) or len(self._near) >= _MAX_FETCHED:
            return
        if (row := self._row(deferred_id)) is not None:
            self._near[deferred_id] = row

    def rows(self) -> Iterator[DelayedRow]:
        """Iterate over rows in log order. Call from the changing thread."""
        return chain.from_iterable(self.pages())

    def pages(self) -> Iterator[list[DelayedRow]]:
        after = -1
        while page := self.page(after, _PAGE):
            yield page
            after = page[-1].version

    def page(self, after: int, limit: int, topic: str | None = None) -> list[DelayedRow]:
        """Return the next rows after a version, in log order. `topic` limits the result to one topic."""
        found: list[DelayedRow] = []
        if self._index is not None and self._indexed:
            asked = limit
            while asked == limit and not found:  # all rows of a page may have ended meanwhile
                rows = self._index.in_order(after, limit, topic)
                asked = len(rows)
                after = rows[-1].version if rows else after
                found = [row for row in rows if not self._has_ended(row)]
            if asked == limit:
                return found
        recent = (put.row for put in self._recent.values())
        more = (row for row in recent if row.version > after and topic in (None, row.topic))
        return [*found, *islice(more, limit - len(found))]

    def due_page(
        self, after: DuePosition, last_due_ms: int, limit: int
    ) -> tuple[list[DelayedRow], DuePosition]:
        """Return the next rows that are due at or before `last_due_ms`, by due time, and the position of the
        next page.

        These rows, and new rows that are due before that position, stay in memory from now on.
        """
        rows: list[DelayedRow] = []
        next_one = (last_due_ms, _LAST_VERSION)
        if self._index is not None and self._indexed:
            rows = self._index.due(after, last_due_ms, limit)
            if len(rows) == limit:
                next_one = (rows[-1].due_ms, rows[-1].version)
            rows = [row for row in rows if not self._has_ended(row)]
        recent = [put.row for put in self._recent.values() if after < (put.row.due_ms, put.row.version)]
        found = rows + [row for row in recent if (row.due_ms, row.version) <= next_one]
        if len(found) > limit:
            found = sorted(found, key=_by_due)[:limit]
            next_one = _by_due(found[-1])
        for row in found:
            if row.number not in self._recent:
                self._near[row.number] = row
        self._near_until_ms = next_one[0]
        return found, next_one

    def warm(self, after: DuePosition, last_due_ms: int, limit: int) -> None:
        """Read the rows of the next `due_page` call into the cache, so that the call does not wait for the
        disk.

        Call without the lock.
        """
        if self._index is not None:
            self._index.due(after, last_due_ms, limit)

    def clear_near(self) -> None:
        """Drop the rows that are in memory because they are due soon or were looked up."""
        self._near.clear()
        self._near_until_ms = NOT_NEAR

    def _has_ended(self, row: DelayedRow) -> bool:
        taken = self._gone.get(row.number)
        return taken is not None and taken.version == row.version

    def in_log(self) -> list[int]:
        """Return the numbers of delayed messages in the log, in log order."""
        return [row.number for row in self.rows()]

    def topics_in_log(self) -> list[str]:
        """Return the topics of the delayed messages in the log, sorted."""
        return sorted(self._rows_of)

    def whole(self) -> list[Numbered]:
        """Return the messages that are stored completely, by number."""
        return sorted(self._whole.items())

    @property
    def whole_count(self) -> int:
        return len(self._whole)

    def numbers_of_whole(self) -> list[int]:
        return list(self._whole)

    def first_pos(self) -> int | None:
        """Return a log position at or before the first delayed message, or None if there is none."""
        if self._indexed:
            return self._first_pos
        first = next(iter(self._recent.values()), None)
        return None if first is None else first.row.pos

    def bytes_of(self, client: bytes) -> int:
        """Return the total size in bytes of the completely stored messages from a client address."""
        return self._bytes_of.get(client, 0)

    def delayed_of(self, client: bytes) -> int:
        """Return the number of delayed messages in the log from a client address."""
        return self._delayed_of[client]

    def is_awaited(self, topic: str) -> bool:
        """True if a message for the topic is pending."""
        return topic in self._rows_of or topic in self._whole_of

    # -- changes -----------------------------------------------------------------------------------------

    def put(self, deferred_id: int, message: DeferredMessage, version: int = -1) -> None:
        """Add a message. `version`: the number of its newest position in the log; -1: use `deferred_id`."""
        if not message.is_in_log:
            self.bytes += message.size
            self._bytes_of[message.client] = self.bytes_of(message.client) + message.size
            self._whole_of[message.topic] += 1
            self._whole[deferred_id] = message
            return
        self._change += 1
        self.last_version = max(version, deferred_id, self.last_version + 1)
        row = DelayedRow(
            deferred_id,
            self.last_version,
            message.due_ms,
            *message.place,
            message.element,
            message.topic,
            message.client,
        )
        self._recent[deferred_id] = RowPut(row, self._change)
        self._count(row, 1)

    def _count(self, row: DelayedRow, more: int) -> None:
        self.delayed_count += more
        self.checksum = (self.checksum + more * row.crc) & _SUM_MASK
        _add(self._delayed_of, row.client, more)
        _add(self._rows_of, row.topic, more)

    def carried(self, deferred_id: int, place: LogPosition, element: int, version: int) -> bool:
        """Record the new log position of a delayed message. Return False if the message does not exist."""
        message = self.get(deferred_id)
        if message is None or message.kind is not DeferredKind.DELAYED or place == NOWHERE:
            return False
        self._remove_message(deferred_id)
        self.put(deferred_id, message._replace(command=b"", place=place, element=element), version)
        return True

    def _remove_message(self, deferred_id: int) -> DeferredMessage | None:
        message = self._whole.pop(deferred_id, None)
        if message is not None:
            self.bytes -= message.size
            _add(self._whole_of, message.topic, -1)
            left = self._bytes_of[message.client] - message.size
            if left:
                self._bytes_of[message.client] = left
            else:
                del self._bytes_of[message.client]
            return message
        row = self._row(deferred_id)
        if row is None:
            return None
        self._change += 1
        if self._recent.pop(deferred_id, None) is None:
            self._gone[deferred_id] = RowEnd(row.version, self._change)
            self._near.pop(deferred_id, None)
        self._count(row, -1)
        return DeferredMessage.of_row(row)

    def end_message(self, deferred_id: int, ending: Ending, stamp_ms: int) -> bool:
        """Remove a message and remember how it ended. Return False if the message does not exist."""
        message = self._remove_message(deferred_id)
        if message is None:
            return False
        self.remember(EndedMessage(deferred_id, ending, stamp_ms, message.topic))
        return True

    def remember(self, ended: EndedMessage) -> None:
        self._order.append(ended)
        self._ended[ended.deferred_id] = ended
        while len(self._order) > MAX_ENDS or self._order[0].stamp_ms < ended.stamp_ms - MAX_END_AGE_MS:
            del self._ended[self._order.popleft().deferred_id]

    def ending_of_half(self, topic: str, deferred_id: int) -> Ending | None:
        """Return how the transaction of a half message of this topic ended, or None if it is open or no
        longer remembered.
        """
        ended = self._ended.get(deferred_id)
        if ended is None or ended.ending not in _OF_HALVES or ended.topic not in (topic, ""):
            return None
        return ended.ending

    def topic_of_half(self, deferred_id: int) -> str:
        """Return the topic of a half message whose transaction is open, or has ended and is still remembered.

        Returns "" if there is no such half message or its topic is unknown. Never reads the disk.
        """
        if (message := self._whole.get(deferred_id)) is not None:
            return message.topic if message.kind is DeferredKind.HALF else ""
        ended = self._ended.get(deferred_id)
        return ended.topic if ended is not None and ended.ending in _OF_HALVES else ""

    def has_ended_unstored(self, deferred_id: int) -> bool:
        """True if the message is remembered as rolled back or recalled."""
        ended = self._ended.get(deferred_id)
        return ended is not None and ended.ending in UNSTORED

    def ends(self) -> list[EndedMessage]:
        return list(self._order)

    def ends_without(self, topic: str) -> list[EndedMessage]:
        return [ended for ended in self._order if ended.topic != topic]

    def replace_ends(self, ends: list[EndedMessage]) -> None:
        """Replace the remembered ends of messages."""
        self._order = deque(ends)
        self._ended = {ended.deferred_id: ended for ended in ends}

    def checked(self, deferred_id: int, next_ms: int) -> bool:
        message = self._whole.get(deferred_id)
        if message is None or message.kind is not DeferredKind.HALF:
            return False
        self._whole[deferred_id] = message._replace(due_ms=next_ms, checks=message.checks + 1)
        return True

    def whole_of_topic(self, topic: str) -> list[int]:
        """Return the numbers of the completely stored messages for a topic."""
        if topic not in self._whole_of:
            return []
        return [number for number, one in self._whole.items() if one.topic == topic]

    def has_rows_of(self, topic: str) -> bool:
        return topic in self._rows_of

    def drop(self, deferred_id: int) -> None:
        """Discard a message whose topic was deleted."""
        self._remove_message(deferred_id)

    # -- the index ---------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """True if enough changes are pending to write them to the index."""
        return self._index is not None and len(self._recent) + len(self._gone) >= self._index.batch

    def write(self) -> None:
        """Write pending changes to the index.

        Other threads may read meanwhile. The caller must call `written` afterwards. Raises OSError.
        """
        if self._index is None or not (self._recent or self._gone):
            return
        self._index.write(list(self._recent.values()), list(self._gone.values()))
        self._index.collect(self._collectable, 2 * self._index.batch)
        first = self._index.in_order(self._first_version - 1, 1)
        if first:
            self._first_version, self._first_pos = first[0].version, first[0].pos

    def written(self) -> None:
        if self._index is None:
            return
        for put in self._recent.values():
            if put.row.due_ms <= self._near_until_ms:
                self._near[put.row.number] = put.row
        self._recent.clear()
        self._gone.clear()

    def mark(self) -> IndexMark:
        """Return the mark of the index for a checkpoint.

        Call this only after all changes have been written.
        """
        return IndexMark(self.delayed_count, self.checksum, self._change)

    def restore(self, mark: IndexMark) -> None:
        """Restore the index to its state at a checkpoint.

        Raises StoredDataDamaged (METADATA_DAMAGED) if the index does not match the mark, and OSError.
        """
        if self._index is not None:
            self._index.cut(mark.change)
            after = -1
            while page := self._index.in_order(after, _PAGE):
                after = page[-1].version
                if not self.delayed_count:
                    self._first_version, self._first_pos = page[0].version, page[0].pos
                for row in page:
                    self._count(row, 1)
            self.last_version = after
        self._change = self._collectable = mark.change
        if self.mark() != mark:
            text = f"the index of delayed messages has {self.mark()}, not {mark}"
            raise StoredDataDamaged(Status.METADATA_DAMAGED, text)

    def kept(self, mark: IndexMark) -> None:
        """Record the mark of the newest checkpoint, so that rows that ended before it can be deleted.

        May be called on any thread.
        """
        self._collectable = mark.change


def _by_due(row: DelayedRow) -> DuePosition:
    return row.due_ms, row.version


def _add(counter: Counter[_N], name: _N, more: int) -> None:
    counter[name] += more
    if not counter[name]:
        del counter[name]
