"""What the checker knows of one node's log, gathered from what the node asked its disk to do.

Three logs of a node are told apart: the one its replica believes in (jobs submitted), the one that is
written, and the one that is durable. The last two can be behind, and are what a crash leaves.
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
    """Batches in order, by the index of their last entries; those up to `base` are gone. `version` is another
    one after each change, and no two logs have the same."""

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
        """Cut, and return what was cut."""
        self.version = next(_versions)
        keep = bisect_left(self._lasts, index + 1)
        cut = self.batches[keep:]
        del self.batches[keep:], self._lasts[keep:]
        return cut

    def purge(self, base: Base) -> None:
        """Let go of what is not after `base`."""
        self.version = next(_versions)
        if base.index > self.base.index:
            gone = bisect_left(self._lasts, base.index + 1)
            del self.batches[:gone], self._lasts[:gone]
            self.base = base

    def ends_at(self, index: int) -> bool:
        """Does a batch end there, as far as can be told?"""
        return index <= self.base.index or self.ending_at(index) is not None

    def ending_at(self, index: int) -> Batch | None:
        """The batch whose last entry is `index`; None if no batch ends there."""
        at = bisect_left(self._lasts, index)
        return self.batches[at] if at < len(self._lasts) and self._lasts[at] == index else None

    def holding(self, index: int) -> Batch | None:
        """The batch that holds the entry `index`."""
        at = bisect_left(self._lasts, index)
        found = self.batches[at] if at < len(self.batches) else None
        return found if found is not None and found.first_index <= index else None

    def ending_in(self, after: int, upto: int) -> list[Batch]:
        """The batches that end above `after` and not above `upto`."""
        return self.batches[bisect_left(self._lasts, after + 1) : bisect_left(self._lasts, upto + 1)]

    def holds(self, batch: Batch) -> bool:
        """Is exactly this batch, after exactly the same log, in here?"""
        found = self.ending_at(batch.last_index)
        return found is not None and found.chain_crc == batch.chain_crc and found.term == batch.term

    def covers(self, batch: Batch) -> bool:
        """Is it in here, or was it purged? That what is purged was committed is checked separately."""
        return batch.last_index <= self.base.index or self.holds(batch)


@dataclass(slots=True)
class NodeMirror:
    """One node, over all its lives."""

    node_id: str
    view: BatchLog = field(default_factory=BatchLog)  # of the running replica
    written: BatchLog = field(default_factory=BatchLog)  # in the page cache or on the disk
    durable_index: int = -1  # of `written`
    hard_state: HardState = field(default_factory=HardState)  # durable
    hard_state_wanted: HardState = field(default_factory=HardState)  # the last that the replica decided on
    hard_state_under_way: HardState | None = None  # the last that the disk began to store
    truncating_after: int | None = None  # a truncation that has begun and not returned
    purging_to: Base | None = None  # likewise a purge
    resetting_to: Base | None = None  # likewise a reset
    role_epoch: int = -1
    lost: list[tuple[int, BatchLog]] = field(default_factory=list)  # (durable index, log) before each wipe

    def is_durable(self, batch: Batch) -> bool:
        return batch.last_index <= self.durable_index and self.written.covers(batch)

    def has_stored(self, batch: Batch) -> bool:
        """May its answer be counted for this batch? A node that lost its log counts for what it had before,
        since the others know that it may have, and not for what it was sent again (rule 11)."""
        if self.is_durable(batch) and not self.hard_state.is_barred:
            return True
        return any(batch.last_index <= durable and log.covers(batch) for durable, log in self.lost)

    def wipe(self, hard_state: HardState) -> None:
        """The disk is gone, and a new one is there."""
        if not self.hard_state.is_barred:
            self.lost.append((self.durable_index, self.written))
        self.view, self.written, self.durable_index = BatchLog(), BatchLog(), -1
        self.hard_state = self.hard_state_wanted = hard_state
        self.hard_state_under_way = None
        self.truncating_after = self.purging_to = self.resetting_to = None
        self.role_epoch = -1
