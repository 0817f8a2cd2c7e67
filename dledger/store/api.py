"""The interface of a log store, and its value types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from dledger.core.values import Base, HardState, Tail, TermRun
from dledger.errors import Code, ReadFailed, StorageError
from dledger.store.format.batch import Batch
from dledger.store.identity import Identity
from dledger.store.image_files import ImageFiles


class EntryHeader(NamedTuple):
    """The fields of an entry's header, with the entry's position."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    pos: int
    size: int  # bytes, with the header
    channel: int  # number of entries that follow it in its batch
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
    """Verified, encoded entries with consecutive indexes and no blanks between them."""

    first_index: int
    last_index: int
    data: bytes | memoryview


class BatchHead(NamedTuple):
    """A batch whose first entry is INTERNAL, with the body of that entry."""

    first_index: int
    last_index: int
    term: int
    pos: int
    head: bytes


class Damage(NamedTuple):
    """Whole batches that were durable and can no longer be read. The entries on both sides are verified."""

    first_index: int
    last_index: int
    file: str  # where the first fault was found
    offset: int
    reason: str


class ScrubStep(NamedTuple):
    """The result of one step of a scrub."""

    next_index: int  # where to continue; the start of the log after the scrub has reached its end
    bytes_read: int
    damage: Damage | None  # found but not registered: pass its first_index to `note_damage`


class ReservedEnd(NamedTuple):
    """A bound on the reserved space: a log fits if it ends at or before this position *and* at or before this
    index."""

    pos: int
    index: int  # type: ignore[assignment]  # hides tuple.index


class RepairWork(Protocol):
    """A damaged range that is being replaced by a peer's entries, in steps small enough not to block other
    work.

    `begin_repair` returns one. Call `feed` until `is_fed`, `copy` until it returns False, `index_some` until
    it returns False, and then `finish`. Call `abandon` at the end in any case. After an error the repair must
    be abandoned and has changed nothing. Raises StorageError with DATA_DAMAGED if the entries do not fit or
    the log has changed since `begin_repair`, and with DISK_FULL if there is no space. After any other code
    the process must stop.
    """

    @property
    def next_index(self) -> int:
        """The index of the first entry that is still missing."""

    @property
    def is_fed(self) -> bool:
        """True if the fed entries cover the range and form a chain from the good entry before it to the good
        entry after it."""

    def feed(self, frames: Frames) -> None:
        """Add whole batches that start at `next_index`. Entries beyond the range are ignored. May be called
        on any thread.

        Moves `next_index` back to the first entry if the batches show that good batches on this disk, which
        the repair had kept, belong to a different history.
        """

    def copy(self, max_bytes: int) -> bool:
        """Copy the next part of the fed range, without blocking the log. Returns False if nothing remains to
        be copied. May be called on any thread."""

    def index_some(self, max_bytes: int) -> bool:
        """Write some of the index records. Returns False if all are written. Call it on the writing
        thread."""

    def finish(self) -> None:
        """Install the repaired range, durably, and make it readable. Call it on the writing thread."""

    def abandon(self) -> None:
        """Release the resources of the repair."""


class EntryDamaged(StorageError):
    """An entry cannot be read or verified. Pass `index` to `note_damage`."""

    default_code = Code.DATA_DAMAGED

    def __init__(self, message: str, index: int) -> None:
        self.index = index
        super().__init__(message)


class LogStore(Protocol):
    """The durable log of one node, with its hard state, checkpoint and session table.

    Only one thread at a time may call the methods that write. Reads, `scrub`, `prepare` and the properties
    may run on any thread at the same time. After a StorageError from a method that writes, only `close` may
    be called: the process must stop. The following errors are exceptions and change nothing: DISK_FULL from
    `append`, `save_checkpoint`, `purge_to`, `note_damage` and `repair`; DATA_DAMAGED from `repair`,
    `note_damage` and `truncate_after`, which read before they write.
    """

    #: Progress callback of long operations. The writing thread calls it after each durable step and after
    #: each removed file.
    on_synced: Callable[[], None]
    images: ImageFiles

    @property
    def identity(self) -> Identity: ...

    @property
    def data_file_size(self) -> int: ...

    @property
    def base(self) -> Base:
        """The last purged entry."""

    @property
    def begin_index(self) -> int:
        """The first index of the log, which is base.index + 1 even if the log is empty."""

    @property
    def end_index(self) -> int:
        """The last index written. If the log is empty, this is base.index, or -1 if nothing was ever
        purged."""

    @property
    def tail(self) -> Tail:
        """The end of the written log."""

    @property
    def durable_index(self) -> int:
        """The last index that an fdatasync has covered, or base.index if there is none."""

    @property
    def hard_state(self) -> HardState: ...

    @property
    def term_runs(self) -> list[TermRun]:
        """All terms of the log, in order."""

    @property
    def committed_checkpoint(self) -> int:
        """The committed_index of the last checkpoint, never above the durable index; -1 if there is no
        checkpoint."""

    @property
    def generation(self) -> int:
        """Increases with each truncation. Results of operations from an earlier generation must be
        ignored."""

    @property
    def damages(self) -> tuple[Damage, ...]:
        """The known damaged ranges, in order. A read that includes a damaged entry raises DATA_DAMAGED."""

    def has_room_after(self, tail: Tail) -> bool:
        """Return True if a log that ends at `tail` has room for more entries, in prepared files or in new
        ones that do not use the reserve. `tail` may be after the written end, to account for queued
        batches."""

    @property
    def reserved_end(self) -> ReservedEnd:
        """The end of the allocated space. It is a position because the gaps that batches leave before file
        borders use up space as well."""

    @property
    def reserved_bytes(self) -> int:
        """Number of bytes that can certainly be appended to the last file and to the prepared files after it.

        A batch that does not fit into the rest of a file wastes that rest. To append several batches at once,
        or while others are queued, compare with `reserved_end` instead.
        """

    @property
    def likely_bytes(self) -> int:
        """Like `reserved_bytes`, but assumes that future entries are at least half as large as past ones."""

    def prepare(self, ahead_bytes: int) -> bool:
        """Allocate files until likely_bytes is at least `ahead_bytes`. May be called on any thread, by one at
        a time.

        Returns False, and leaves no partial file, if the disk is full or only the reserve would remain.
        Raises StorageError if the disk is failing; the process must then stop.
        """

    def append(self, batches: Sequence[Batch]) -> None:
        """Write batches that follow the tail and each other (asserted). They are durable only after `sync`.

        Raises StorageError with DISK_FULL if there is no room for another data file, in which case nothing is
        changed, and with DISK_ERROR if a write failed, after which the store is unusable.
        """

    def sync(self) -> int:
        """Make all written entries durable, then index them. Returns the durable index.

        Raises StorageError with FSYNC_FAILED if an fsync failed, after which the content of the disk is
        unknown and the process must stop, and with DISK_ERROR if a file was removed while in use or if the
        index could not be written.
        """

    def drop_cached(self, begin_pos: int, end_pos: int) -> None:
        """Drop durable data between these positions from the page cache. It is unlikely to be read soon."""

    def truncate_after(self, index: int, tail: Tail | None = None) -> None:
        """Remove, durably, all entries after `index`, which ends a batch and is not below the base
        (asserted).

        Raises StorageError DATA_DAMAGED, with nothing changed, if `index` lies within a damaged range. Pass
        `tail`, the end at `index` according to another member, to truncate there anyway.
        """

    def borders(self) -> list[Base]:
        """The points where the log may be purged: the last entry before each data file except the first, in
        order."""

    def written_ms(self, base: Base) -> int:
        """The wall-clock time of the last write to the file that ends at `base`, one of `borders()`. Returns
        0 if it is unknown. Raises OSError."""

    def purge_to(self, base: Base) -> None:
        """Remove, durably, all entries up to `base`, one of `borders()` (asserted). No-op if they are already
        purged.

        After a crash the log starts either at the old or at the new base.
        """

    def reset_to(self, base: Base) -> None:
        """Discard the whole log, durably, and start after `base`, where a data file starts (asserted).

        After a crash the log is either the old one or empty. Starts a new generation.
        """

    def note_damage(self, index: int) -> Damage | None:
        """Locate the damage after a read of `index` raised EntryDamaged, and record it durably.

        Returns None if there is none, or if only an index record was damaged, which is then rewritten.
        """

    def repair(self, frames: Frames) -> None:
        """Replace a damaged range, durably, with a peer's entries, which start with the range and may exceed
        it.

        Raises StorageError DATA_DAMAGED, with nothing changed, if they do not chain from the good entry
        before the range to the good entry after it, or if no damaged range starts at `first_index`.
        """

    def begin_repair(self, damage: Damage) -> RepairWork:
        """Start a repair in steps, one at a time. Raises StorageError DATA_DAMAGED if the damage is not
        known."""

    def scrub(self, from_index: int, max_bytes: int) -> ScrubStep:
        """Verify a part of the log, in the background. Changes nothing. May be called on any thread."""

    def entry(self, index: int) -> EntryHeader:
        """Return the header of an entry by its index. Raises ReadFailed if it is out of range, EntryDamaged
        if it is damaged."""

    def tail_at(self, index: int) -> Tail:
        """Return the end of the log as if `index` (or base.index) were its last entry. Raises the errors of
        `entry`.

        Verifies the chain_crc of the header. Works for the last entry of a damaged range as well.
        """

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        """Return verified entries from `first_index` up to `last_index` and `max_bytes`, but always at
        least one.

        With `whole_batches`, returns at least one batch and ends with a complete one. `first_index` must then
        start a batch, and the batch that contains `last_index` is returned completely. May return fewer
        entries than requested. Raises ReadFailed if `first_index` is out of range, and EntryDamaged (with
        index, file and offset) if an entry is damaged.
        """

    def read_bodies(self, spans: Sequence[tuple[int, int]], end_pos: int) -> list[bytes]:
        """Return the bodies of user entries, each given by its position and body size, in any order.

        Verifies header and body_crc, but not the chain, which would need the preceding entry. Raises
        ReadFailed unless all lie between the start of the log and `end_pos`, which is at most the position of
        the tail; EntryDamaged as in `read`; InvalidRequest if no such entry starts at a position.
        """

    def index_at_pos(self, pos: int) -> int:
        """Return the index of the entry that starts at a position. Raises the errors of `read_bodies`."""

    def iter_heads(self, from_index: int) -> Iterator[BatchHead]:
        """Iterate over all batches at or after `from_index` whose first entry is INTERNAL."""

    def save_hard_state(self, state: HardState) -> None:
        """Store term and vote durably. Any StorageError is fatal, because the stored vote is then unknown."""

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        """Store how far the log is verified and committed and, optionally, the session table at an index.

        A committed_index above the durable index is stored as the durable index. The index of `sessions` must
        not exceed committed_index: a session table must never include entries that can be truncated. Raises
        StorageError DISK_FULL if there is no space. The earlier checkpoint then remains, and the store
        remains usable.
        """

    def load_sessions(self) -> tuple[int, bytes] | None:
        """Return the index and bytes of the last stored session table, or None if there is no intact
        table."""

    def free_bytes(self) -> int:
        """Return the free bytes of the file system that holds the log. May be called on any thread."""

    def could_take(self, end_pos: int, end_index: int) -> bool:
        """Return True if prepared files and free space, including most of the reserve, suffice for a log that
        ends at this position."""

    def close(self) -> None:
        """Make everything durable, write a checkpoint, and release the files and the lock."""


def check_range(first_index: int, begin_index: int, end_index: int) -> None:
    """Raise ReadFailed unless the log contains `first_index`."""
    if first_index > end_index:
        raise ReadFailed(f"index {first_index} is not in {_range(begin_index, end_index)}")
    if first_index < begin_index:
        raise ReadFailed(
            f"index {first_index} is below {_range(begin_index, end_index)}",
            code=Code.INDEX_LESS_THAN_LOCAL_BEGIN,
        )


def _range(begin_index: int, end_index: int) -> str:
    return "an empty log" if begin_index > end_index else f"the log's range {begin_index}..{end_index}"
