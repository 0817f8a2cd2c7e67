"""Model of each node's log, derived from the node's disk operations.

It distinguishes three logs per node: the log in the replica's view (submitted jobs), the written log and the
durable log. The last two may lag behind; a crash leaves either.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from dledger.core.values import NO_BASE, Base, HardState
from dledger.store.format.batch import Batch

_versions = count()


class BatchLog:
    """Batches in order, indexed by their last entries; those up to `base` are purged. `version` changes with
    every modification and is unique among all logs."""

    def __init__(self, batches: Sequence[Batch] = (), base: Base = NO_BASE) -> None:
        self.version = next(_versions)
        self.base = base
        self.batches: list[Batch] = list(batches)
        self._lasts: list[int] = [b.last_index for b in self.batches]

    @property
    def end_index(self) -> int:
        return self._lasts[-1] if self._lasts else self.base.index

    @property
    def end_term(self) -> int:
        return self.batches[-1].term if self.batches else self.base.term

    def append(self, batch: Batch) -> None:
        self.version = next(_versions)
        self.batches.append(batch)
        self._lasts.append(batch.last_index)

    def truncate_after(self, index: int) -> list[Batch]:
        """Truncate the log and return the removed batches."""
        self.version = next(_versions)
        keep = bisect_left(self._lasts, index + 1)
        cut = self.batches[keep:]
        del self.batches[keep:], self._lasts[keep:]
        return cut

    def purge(self, base: Base) -> None:
        """Remove the entries up to `base`."""
        self.version = next(_versions)
        if base.index > self.base.index:
            gone = bisect_left(self._lasts, base.index + 1)
            del self.batches[:gone], self._lasts[:gone]
            self.base = base

    def ends_at(self, index: int) -> bool:
        """Return True if a batch ends at `index`, or if the index is purged."""
        return index <= self.base.index or self.ending_at(index) is not None

    def ending_at(self, index: int) -> Batch | None:
        """Return the batch whose last entry is `index`, or None if no batch ends at that index."""
        at = bisect_left(self._lasts, index)
        return self.batches[at] if at < len(self._lasts) and self._lasts[at] == index else None

    def holding(self, index: int) -> Batch | None:
        """Return the batch that contains the entry `index`."""
        at = bisect_left(self._lasts, index)
        batch = self.batches[at] if at < len(self.batches) else None
        return batch if batch is not None and batch.first_index <= index else None

    def ending_in(self, after: int, upto: int) -> list[Batch]:
        """Return the batches that end above `after` and at or below `upto`."""
        return self.batches[bisect_left(self._lasts, after + 1) : bisect_left(self._lasts, upto + 1)]

    def holds(self, batch: Batch) -> bool:
        """Return True if the log contains exactly this batch after exactly the same predecessors."""
        batch_here = self.ending_at(batch.last_index)
        return (
            batch_here is not None
            and batch_here.chain_crc == batch.chain_crc
            and batch_here.term == batch.term
        )

    def covers(self, batch: Batch) -> bool:
        """Return True if the batch is in the log or was purged. A separate check verifies that purged batches
        were committed."""
        return batch.last_index <= self.base.index or self.holds(batch)


@dataclass(slots=True)
class NodeMirror:
    """The logs of one node, across all of its processes."""

    node_id: str
    view: BatchLog = field(default_factory=BatchLog)  # as the running replica sees it
    written: BatchLog = field(default_factory=BatchLog)  # in the page cache or on the disk
    durable_index: int = -1  # of `written`
    hard_state: HardState = field(default_factory=HardState)  # durable
    # the last one that the replica decided on
    hard_state_wanted: HardState = field(default_factory=HardState)
    hard_state_under_way: HardState | None = None  # the last one that the disk started to store
    truncating_after: int | None = None  # a truncation in progress
    purging_to: Base | None = None  # a purge in progress
    resetting_to: Base | None = None  # a reset in progress
    role_epoch: int = -1
    lost: list[tuple[int, BatchLog]] = field(default_factory=list)  # (durable index, log) before each wipe

    def is_durable(self, batch: Batch) -> bool:
        return batch.last_index <= self.durable_index and self.written.covers(batch)

    def has_stored(self, batch: Batch) -> bool:
        """Return True if the node's response may count for this batch. A node that lost its log counts for
        the entries that it had before, because the other members know that it may have had them, but not for
        entries that it received again (rule 11)."""
        if self.is_durable(batch) and not self.hard_state.is_barred:
            return True
        return any(batch.last_index <= durable and log.covers(batch) for durable, log in self.lost)

    def wipe(self, hard_state: HardState) -> None:
        """Replace the disk with an empty one."""
        if not self.hard_state.is_barred:
            self.lost.append((self.durable_index, self.written))
        self.view, self.written, self.durable_index = BatchLog(), BatchLog(), -1
        self.hard_state = self.hard_state_wanted = hard_state
        self.hard_state_under_way = None
        self.truncating_after = self.purging_to = self.resetting_to = None
        self.role_epoch = -1
