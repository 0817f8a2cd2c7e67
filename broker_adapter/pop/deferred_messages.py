"""Messages that are in no queue yet: delayed ones, and halves whose transaction has not ended.

Halves are kept whole, in memory and in the state image, so that purging the log cannot lose them: the limits
of the settings bound how many bytes that may be. Of a delayed message there is only where the log has it, in
an index on the disk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.pop.commands import Carried, Defer, DeferredKind, Ending
from broker_adapter.pop.delay_index import DelayedRow, DelayIndex, DuePosition, Put, Taken
from broker_adapter.pop.records import decode, encode

#: Ends are remembered for so long, so that they may be repeated. Part of the state's rules.
MAX_ENDS = 20_000
MAX_END_AGE_MS = 600_000

#: Rows that are read from the index at once: some milliseconds.
_PAGE = 1_000
#: Rows in memory for those who ask for a message that is not due soon.
_MAX_FETCHED = 40_000
#: Before all times.
NOT_NEAR = -(1 << 63)
_LAST_VERSION = (1 << 63) - 1
_SUM_MASK = (1 << 64) - 1

_N = TypeVar("_N")

_OF_HALVES = frozenset({Ending.COMMITTED, Ending.ROLLED_BACK})


class LogPosition(NamedTuple):
    """An entry of the log: its position, and the size of its body."""

    pos: int
    size: int


#: Of commands that are not read from a log.
NOWHERE = LogPosition(-1, 0)


class DeferredMessage(NamedTuple):
    """`command`: as an image has it; b"" if the log has it at `place`, as the `element`-th of a command."""

    command: bytes
    kind: DeferredKind
    topic: str
    due_ms: int  # of the delivery; of a half: of the next check
    client: bytes  # the address that it came from
    checks: int = 0  # how often the producer was asked
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
        """All of it; `command` is what the log has at `place`. Takes a while. StoredDataDamaged
        (COMMAND_DAMAGED) if it is none that keeps a message."""
        decoded = decode(command if self.is_in_log else self.command)
        elements = [] if decoded is None else decoded.elements
        found = elements[self.element] if self.element < len(elements) else None
        if isinstance(found, Carried):
            return found.defer
        if not isinstance(found, Defer):
            raise StoredDataDamaged(Status.COMMAND_DAMAGED, f"no deferred message at {self.place}")
        return found

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, nearly."""
        return 0 if self.is_in_log else len(self.command) + 200


#: A deferred message and its number.
Numbered = tuple[int, DeferredMessage]


class Ended(NamedTuple):
    """`topic` "": not known, of an image of an older version."""

    deferred_id: int
    ending: Ending
    stamp_ms: int
    topic: str


class IndexMark(NamedTuple):
    """What an index has at a checkpoint, and at which of its changes."""

    rows: int
    checksum: int
    change: int


class DeferredMessages(Mapping[int, DeferredMessage]):
    """By their numbers. Delayed messages that the log has are rows of `index`; in memory are only those that
    are not written there yet, those that are due soon on a master, and counts. Without an index they are all
    in memory.

    One thread changes it; it alone calls `write`, and nothing changes until `written`.
    """

    def __init__(self, index: DelayIndex | None = None) -> None:
        self._index = index
        self._whole: dict[int, DeferredMessage] = {}
        self._recent: dict[int, Put] = {}  # rows that are not in the index yet, in the order of the log
        self._gone: dict[int, Taken] = {}  # rows of the index that ended since it was written
        self._near: dict[int, DelayedRow] = {}  # some rows of the index
        self._near_until_ms = NOT_NEAR
        self._change = 0  # the number of the last one
        self._collectable = 0  # no checkpoint needs what ended at this change or before
        self.last_version = self._first_version = -1  # of rows
        self._first_pos = 0  # at `_first_version`
        self.bytes = 0  # of those that are kept whole
        self._bytes_of: dict[bytes, int] = {}
        self.delayed_count = 0  # rows
        self.checksum = 0  # of all rows, in any order
        self._delayed_of = Counter[bytes]()  # rows, by client
        self._rows_of, self._whole_of = Counter[str](), Counter[str]()  # by topic
        self._ended: dict[int, Ended] = {}
        self._order: deque[Ended] = deque()

    # -- reading ------------------------------------------------------------------------------------------

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
        """Whether the index need not be asked for it."""
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
        """How many rows of the index wait."""
        return self.delayed_count - len(self._recent)

    def is_in_memory(self, deferred_id: int) -> bool:
        """Whether it can be looked up without the disk."""
        return self._index is None or self._is_known(deferred_id)

    def fetch(self, deferred_id: int) -> None:
        """Bring it into memory."""
        if self.is_in_memory(deferred_id) or len(self._near) >= _MAX_FETCHED:
            return
        if (row := self._row(deferred_id)) is not None:
            self._near[deferred_id] = row

    def rows(self) -> Iterator[DelayedRow]:
        """Of those that the log has, in its order. On the thread that changes them."""
        return chain.from_iterable(self.pages())

    def pages(self) -> Iterator[list[DelayedRow]]:
        after = -1
        while page := self.page(after, _PAGE):
            yield page
            after = page[-1].version

    def page(self, after: int, limit: int, topic: str | None = None) -> list[DelayedRow]:
        """The next rows behind a version, in the order of the log; only those of a topic."""
        found: list[DelayedRow] = []
        if self._index is not None and self._indexed:
            asked = limit
            while asked == limit and not found:  # all that were found may have ended meanwhile
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
        """The next rows by due time, due at `last_due_ms` at the latest, and where the list goes on. Rows of
        the index are in memory from now on, as are new ones that are due before that."""
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
        """Read what `due_page` is about to read, so that it need not wait for the disk. Not under a lock."""
        if self._index is not None:
            self._index.due(after, last_due_ms, limit)

    def none_is_near(self) -> None:
        """Nothing is kept in memory because it is due soon."""
        self._near.clear()
        self._near_until_ms = NOT_NEAR

    def _has_ended(self, row: DelayedRow) -> bool:
        taken = self._gone.get(row.number)
        return taken is not None and taken.version == row.version

    def in_log(self) -> list[int]:
        """Numbers of those that the log has, in its order."""
        return [row.number for row in self.rows()]

    def topics_in_log(self) -> list[str]:
        """Topics of those that the log has, sorted."""
        return sorted(self._rows_of)

    def whole(self) -> list[Numbered]:
        """Those that are kept whole, by number."""
        return sorted(self._whole.items())

    @property
    def whole_count(self) -> int:
        return len(self._whole)

    def numbers_of_whole(self) -> list[int]:
        return list(self._whole)

    def first_pos(self) -> int | None:
        """The position in the log from which on a message is read one day, or one before it."""
        if self._indexed:
            return self._first_pos
        first = next(iter(self._recent.values()), None)
        return None if first is None else first.row.pos

    def bytes_of(self, client: bytes) -> int:
        """Of messages that are kept whole and came from an address."""
        return self._bytes_of.get(client, 0)

    def delayed_of(self, client: bytes) -> int:
        """How many that the log has came from an address."""
        return self._delayed_of[client]

    def is_awaited(self, topic: str) -> bool:
        """Whether any waits for the queues of a topic."""
        return topic in self._rows_of or topic in self._whole_of

    # -- changing -----------------------------------------------------------------------------------------

    def put(self, deferred_id: int, message: DeferredMessage, version: int = -1) -> None:
        """`version`: of the command that put it where it is, if that is not the one that gave its number."""
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
        self._recent[deferred_id] = Put(row, self._change)
        self._count(row, 1)

    def _count(self, row: DelayedRow, more: int) -> None:
        self.delayed_count += more
        self.checksum = (self.checksum + more * row.crc) & _SUM_MASK
        _add(self._delayed_of, row.client, more)
        _add(self._rows_of, row.topic, more)

    def carried(self, deferred_id: int, place: LogPosition, element: int, version: int) -> bool:
        """Whether there is such a delayed message; the log has it there, too, from now on."""
        message = self.get(deferred_id)
        if message is None or message.kind is not DeferredKind.DELAYED or place == NOWHERE:
            return False
        self._take_out(deferred_id)
        self.put(deferred_id, message._replace(command=b"", place=place, element=element), version)
        return True

    def _take_out(self, deferred_id: int) -> DeferredMessage | None:
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
            self._gone[deferred_id] = Taken(row.version, self._change)
            self._near.pop(deferred_id, None)
        self._count(row, -1)
        return DeferredMessage.of_row(row)

    def end(self, deferred_id: int, ending: Ending, stamp_ms: int) -> bool:
        """Whether there was such a message; it is gone then."""
        message = self._take_out(deferred_id)
        if message is None:
            return False
        self.remember(Ended(deferred_id, ending, stamp_ms, message.topic))
        return True

    def remember(self, ended: Ended) -> None:
        self._order.append(ended)
        self._ended[ended.deferred_id] = ended
        while len(self._order) > MAX_ENDS or self._order[0].stamp_ms < ended.stamp_ms - MAX_END_AGE_MS:
            del self._ended[self._order.popleft().deferred_id]

    def ending_of_half(self, topic: str, deferred_id: int) -> Ending | None:
        """How the transaction of a half message of the topic ended, as long as that is remembered."""
        ended = self._ended.get(deferred_id)
        if ended is None or ended.ending not in _OF_HALVES or ended.topic not in (topic, ""):
            return None
        return ended.ending

    def ends(self) -> list[Ended]:
        return list(self._order)

    def ends_without(self, topic: str) -> list[Ended]:
        return [ended for ended in self._order if ended.topic != topic]

    def take_ends(self, ends: list[Ended]) -> None:
        """Instead of those that are remembered."""
        self._order = deque(ends)
        self._ended = {ended.deferred_id: ended for ended in ends}

    def checked(self, deferred_id: int, next_ms: int) -> bool:
        message = self._whole.get(deferred_id)
        if message is None or message.kind is not DeferredKind.HALF:
            return False
        self._whole[deferred_id] = message._replace(due_ms=next_ms, checks=message.checks + 1)
        return True

    def whole_of_topic(self, topic: str) -> list[int]:
        """Numbers of those that are kept whole and wait for the queues of a topic."""
        if topic not in self._whole_of:
            return []
        return [number for number, one in self._whole.items() if one.topic == topic]

    def has_rows_of(self, topic: str) -> bool:
        return topic in self._rows_of

    def drop(self, deferred_id: int) -> None:
        """The topic was deleted: what waited for it is forgotten."""
        self._take_out(deferred_id)

    # -- the index ----------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """So much is not in the index yet that it should be written."""
        return self._index is not None and len(self._recent) + len(self._gone) >= self._index.batch

    def write(self) -> None:
        """Bring the index up to date. Others may read meanwhile; `written` has to follow. OSError."""
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
        """Of what was written, for a checkpoint."""
        return IndexMark(self.delayed_count, self.checksum, self._change)

    def restore(self, mark: IndexMark) -> None:
        """Take over what the index had at a checkpoint. StoredDataDamaged (METADATA_DAMAGED): it is not that;
        OSError."""
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
        """The newest checkpoint is that of this mark. On any thread."""
        self._collectable = mark.change


def _by_due(row: DelayedRow) -> DuePosition:
    return row.due_ms, row.version


def _add(counter: Counter[_N], name: _N, more: int) -> None:
    counter[name] += more
    if not counter[name]:
        del counter[name]
