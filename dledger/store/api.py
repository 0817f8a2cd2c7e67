"""What a log store offers to the node, and the values it speaks in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from dledger.core.values import Base, HardState, Tail, TermRun
from dledger.errors import Code, ReadFailed
from dledger.store.batch import Batch
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
    data: bytes


class BatchHead(NamedTuple):
    """A batch whose first entry is INTERNAL, and the body of that entry."""

    first_index: int
    last_index: int
    term: int
    pos: int
    head: bytes


class LogStore(Protocol):
    """The durable log of one node, with its term, vote, checkpoint and session table.

    Everything that writes is called from one thread at a time; reads may come from any thread meanwhile.
    After a StorageError from something that writes, only `close` may still be called: the process is to stop.
    The exception is DISK_FULL from `append` and `save_checkpoint`, which then have changed nothing.
    """

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

    def truncate_after(self, index: int) -> None:
        """Remove, durably, all after `index`, which ends a batch and is not below the base (asserted)."""

    def entry(self, index: int) -> EntryHeader:
        """The header of an entry, by its index. ReadFailed if it is out of range, StorageError if damaged."""

    def tail_at(self, index: int) -> Tail:
        """The end of the log as if `index` (or base.index) were its last entry. Errors as `entry`."""

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        """Verified entries from `first_index` on: at least one, then up to `last_index` and `max_bytes`.

        With `whole_batches` it is at least one batch and ends with one; `first_index` must begin one, and
        entries after `last_index` are returned if its batch goes on. May return less than asked. ReadFailed
        if `first_index` is out of range; StorageError DATA_DAMAGED names the index, the file and the offset.
        """

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
