"""What a log store offers to the node, and the values it speaks in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from dledger.core.values import Base, HardState, Tail, TermRun
from dledger.errors import Code, ReadFailed, StorageError
from dledger.store.format.batch import Batch
from dledger.store.identity import Identity


class EntryHeader(NamedTuple):
    """Where an entry is and what its header says."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    pos: int
    size: int  # bytes, with the header
    channel: int  # entries of its batch that follow it
    chain_crc: int
    magic: int

    @property
    def ends_batch(self) -> bool:
        return self.channel == 0

    @property
    def tail(self) -> Tail:
        """The end of a log whose last entry is this one."""
        return Tail(self.index, self.term, self.pos + self.size, self.chain_crc)


class Frames(NamedTuple):
    """Encoded entries, verified: consecutive, none left out, and without blanks."""

    first_index: int
    last_index: int
    data: bytes | memoryview


class BatchHead(NamedTuple):
    """A batch whose first entry is INTERNAL, and the body of that entry."""

    first_index: int
    last_index: int
    term: int
    pos: int
    head: bytes


class Damage(NamedTuple):
    """Whole batches that were durable and cannot be read. What comes before and after them is certain."""

    first_index: int
    last_index: int
    file: str  # where the first fault was found
    offset: int
    reason: str


class ScrubStep(NamedTuple):
    """What one step of a scrub has looked at."""

    next_index: int  # where to go on; the begin of the log again after its end
    bytes_read: int
    damage: Damage | None  # found, not registered: hand its first_index to `note_damage`


class ReservedEnd(NamedTuple):
    """A log that ends at or before this position *and* at or before this index needs no more space."""

    pos: int
    index: int  # type: ignore[assignment]  # hides tuple.index


class RepairWork(Protocol):
    """A damaged range that is being replaced by a peer's entries, in pieces of a size that others can bear.

    `begin_repair` gives one; then `feed` until `is_fed`, `copy` until it says False, `index_some` until it
    says False, and `finish`; `abandon` at the end in any case. After an error it is to be abandoned: nothing
    has changed then. StorageError DATA_DAMAGED: the entries do not fit, or the log has changed meanwhile;
    DISK_FULL; others: the process has to stop.
    """

    @property
    def next_index(self) -> int:
        """The first entry that is still missing."""

    @property
    def is_fed(self) -> bool:
        """All of the range has come, and chains from the good entry before it to the good one after it."""

    def feed(self, frames: Frames) -> None:
        """Whole batches from `next_index` on; what goes beyond the range is left out. Any thread.

        `next_index` goes back to the first entry if they show that good batches of this disk, which were
        taken between those that came, are of another history.
        """

    def copy(self, max_bytes: int) -> bool:
        """Once it is fed: do some of what is left to be done beside the log. False: nothing. Any thread."""

    def index_some(self, max_bytes: int) -> bool:
        """Write some of the index records. False: that was all. On the writing thread."""

    def finish(self) -> None:
        """What was damaged can be read from now on, and is durable. On the writing thread."""

    def abandon(self) -> None:
        """Let go of what was made for it."""


class EntryDamaged(StorageError):
    """An entry cannot be read, or not for certain. `index` is what to hand to `note_damage`."""

    default_code = Code.DATA_DAMAGED

    def __init__(self, message: str, index: int) -> None:
        self.index = index
        super().__init__(message)


class LogStore(Protocol):
    """The durable log of one node, with its term, vote, checkpoint and session table.

    Everything that writes is called from one thread at a time; reads, `scrub`, `prepare` and the properties
    may come from any thread meanwhile. After a StorageError from something that writes, only `close` may
    still be called: the process is to stop. The exceptions, after which nothing has changed: DISK_FULL from
    `append`, `save_checkpoint`, `purge_to`, `note_damage` and `repair`; DATA_DAMAGED from `repair`,
    `note_damage` and `truncate_after`, which read before they write.
    """

    #: Called, by whoever writes, when a part of something that is made durable in several steps is so, or a
    #: file of many has been removed.
    on_synced: Callable[[], None]

    @property
    def identity(self) -> Identity: ...

    @property
    def data_file_size(self) -> int: ...

    @property
    def base(self) -> Base:
        """The last purged entry."""

    @property
    def begin_index(self) -> int:
        """The first index of the log: base.index + 1, also when the log is empty."""

    @property
    def end_index(self) -> int:
        """The last index written; base.index (-1 if nothing was ever purged) when the log is empty."""

    @property
    def tail(self) -> Tail:
        """The end of what is written."""

    @property
    def durable_index(self) -> int:
        """The last index that an fdatasync has covered; base.index if none."""

    @property
    def hard_state(self) -> HardState: ...

    @property
    def term_runs(self) -> list[TermRun]:
        """All terms of the log, in order."""

    @property
    def committed_checkpoint(self) -> int:
        """The committed_index of the last checkpoint, never above the durable index; -1 if there is none."""

    @property
    def generation(self) -> int:
        """Grows with each truncation: a completion of an earlier generation says nothing."""

    @property
    def damages(self) -> tuple[Damage, ...]:
        """What is known to be damaged, in order. Reads that touch it raise DATA_DAMAGED."""

    @property
    def has_room(self) -> bool:
        """Whether there is room for more: in prepared files, or for new ones without touching the reserve."""

    @property
    def reserved_end(self) -> ReservedEnd:
        """Up to where space is allocated. Positions count: what a batch skips at a border is used up too."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes that can be appended for sure: to the file of the tail, and to the prepared ones after it.

        A batch that does not fit into what is left of a file takes that with it: who appends several batches
        at once, or while others are queued, goes by `reserved_end`.
        """

    @property
    def likely_bytes(self) -> int:
        """As reserved_bytes, if entries go on at least half as large as they have been."""

    def prepare(self, ahead_bytes: int, *, use_reserve: bool = False) -> bool:
        """Allocate files until likely_bytes is at least `ahead_bytes`. Any thread, one at a time.

        False, with no file half made, if the disk is full or would be filled beyond its reserve.
        StorageError: the disk is failing, the process has to stop.
        """

    def append(self, batches: Sequence[Batch]) -> None:
        """Write batches that follow the tail and each other (asserted). Durable only after `sync`.

        StorageError DISK_FULL: there is no room for another data file; nothing was changed. DISK_ERROR: a
        write failed; the store is of no further use.
        """

    def sync(self) -> int:
        """Make all that was written durable, then index it. Returns the durable index.

        StorageError FSYNC_FAILED: what is on the disk is unknown now; the process has to stop. DISK_ERROR: a
        file was removed under the store, or its index could not be written.
        """

    def drop_cached(self, begin_pos: int, end_pos: int) -> None:
        """What is durable between these positions will hardly be read soon: it may leave the page cache."""

    def truncate_after(self, index: int, tail: Tail | None = None) -> None:
        """Remove, durably, all after `index`, which ends a batch and is not below the base (asserted).

        StorageError DATA_DAMAGED, with nothing changed, if `index` lies within a damage; unless `tail`, the
        end there as another member has it, says what the log ends with then.
        """

    def borders(self) -> list[Base]:
        """Where the log may be purged: the last entry before each data file but the first, in order."""

    def purge_to(self, base: Base) -> None:
        """Remove, durably, all up to `base`, one of `borders()` (asserted). Nothing if it is gone already.

        A crash leads to the old begin or to the new one.
        """

    def reset_to(self, base: Base) -> None:
        """Forget the whole log, durably, and begin after `base`: where a data file begins (asserted).

        A crash leads to the old log or to the empty one. Starts a new generation.
        """

    def note_damage(self, index: int) -> Damage | None:
        """A read of `index` raised EntryDamaged: find out what is damaged there, and remember it durably.

        None if nothing is, or only an index record was, which is then written again.
        """

    def repair(self, frames: Frames) -> None:
        """Replace a damaged range, durably, by a peer's entries: they begin with it, and may go beyond it.

        StorageError DATA_DAMAGED, with nothing changed, unless they chain from the good entry before the
        range to the good entry after it, or if `first_index` is not that of a damage.
        """

    def begin_repair(self, damage: Damage) -> RepairWork:
        """The same in pieces, one repair at a time. StorageError DATA_DAMAGED unless the damage is known."""

    def scrub(self, from_index: int, max_bytes: int) -> ScrubStep:
        """Verify a part of the log, in the background. Changes nothing; any thread."""

    def entry(self, index: int) -> EntryHeader:
        """The header of an entry, by its index. ReadFailed if it is out of range, EntryDamaged if damaged."""

    def tail_at(self, index: int) -> Tail:
        """The end of the log as if `index` (or base.index) were its last entry. Errors as `entry`.

        The chain of its header is verified. Certain also for the last entry of a damage.
        """

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        """Verified entries from `first_index` on: at least one, then up to `last_index` and `max_bytes`.

        With `whole_batches` it is at least one batch and ends with one; `first_index` must begin one, and
        entries after `last_index` are returned if its batch goes on. May return less than asked. ReadFailed
        if `first_index` is out of range; EntryDamaged names the index, the file and the offset.
        """

    def read_bodies(self, spans: Sequence[tuple[int, int]], end_pos: int) -> list[bytes]:
        """The bodies of entries of users, each given by its position and the size of its body, in any order.

        Verified by header and body_crc; not by the chain, which needs the entry before. ReadFailed unless all
        lie between the begin of the log and `end_pos`, which is at most that of the tail; EntryDamaged as
        `read`; InvalidRequest if no such entry begins there.
        """

    def index_at_pos(self, pos: int) -> int:
        """The index of the entry that begins at a position. Errors as `read_bodies`."""

    def iter_heads(self, from_index: int) -> Iterator[BatchHead]:
        """All batches that begin at or after `from_index` with an INTERNAL entry."""

    def save_hard_state(self, state: HardState) -> None:
        """Durable on return. StorageError is fatal: the vote is then in doubt."""

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        """Note how far the log is known to be good and committed; with it, the session table at an index.

        A committed_index above the durable index is stored as that. The index of `sessions` must not be
        above committed_index: a table that may be undone must not be stored. StorageError DISK_FULL: the
        earlier checkpoint stays; the store can be used on.
        """

    def load_sessions(self) -> tuple[int, bytes] | None:
        """The index and bytes of the last stored session table, None if there is none that is intact."""

    def free_bytes(self) -> int:
        """Bytes still free on the file system of the log. Any thread."""

    def could_take(self, end_pos: int, end_index: int) -> bool:
        """Could the log grow to there, on what is prepared and what is free, most of the reserve included?"""

    def close(self) -> None:
        """Make everything durable, write a checkpoint, release the files and the lock."""


def check_range(first_index: int, begin_index: int, end_index: int) -> None:
    """ReadFailed unless `first_index` is one of the log's."""
    if first_index > end_index:
        raise ReadFailed(f"index {first_index} is not in {_range(begin_index, end_index)}")
    if first_index < begin_index:
        raise ReadFailed(
            f"index {first_index} is below {_range(begin_index, end_index)}",
            code=Code.INDEX_LESS_THAN_LOCAL_BEGIN,
        )


def _range(begin_index: int, end_index: int) -> str:
    return "an empty log" if begin_index > end_index else f"the log's range {begin_index}..{end_index}"
