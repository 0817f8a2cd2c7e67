"""Checks the internal entries of the committed log: purges, state images and cluster time, in log order."""

from __future__ import annotations

from collections import Counter

from dledger.core.values import Base, Membership
from dledger.store.api import LogStore
from dledger.store.format.batch import Batch
from dledger.store.format.internal import ImageBegin, Purge, decode_internal, strip_stamp
from dledger.testing.checks.quorums import decides
from dledger.testing.virtual.violation import Violation


class Housekeeping:
    """Consumes the committed log, batch by batch."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.bases: set[Base] = set()  # bases permitted by a committed PURGE
        self.last_stamp_ms = -1
        self.newest_mark = -1  # mark of the newest image
        self._images: dict[str, int] = {}  # by node: the image that it has reported last

    def reported(self, node_id: str, image_index: int, begin_index: int, store: LogStore) -> None:
        """Check the image that a node, whose log starts at begin_index, reports or announces."""
        if image_index < begin_index:
            return  # none, or the report has waited for the disk while the log was replaced
        newest = store.images.newest
        if newest is None or newest.mark.index < image_index:
            raise Violation("images", f"{node_id} reports the image {image_index}, but has {newest}")
        self._images[node_id] = image_index

    def purge_written(self, node_id: str, base: Base, membership: Membership, store: LogStore) -> None:
        """Check a PURGE that a leader appends: a majority of the voters has an image of the entries."""
        newest = store.images.newest
        images = self._images | {node_id: -1 if newest is None else newest.mark.index}
        holders = [holder for holder, index in images.items() if index > base.index]
        if not decides(membership, holders):
            raise Violation(
                "images",
                f"{node_id} writes a PURGE to {base.index}, of which only {holders} have an image",
            )

    def purges(self, node_id: str, base: Base, store: LogStore) -> None:
        """Check that a node has an image of the entries that it purges."""
        newest = store.images.newest
        if newest is None or newest.mark.index <= base.index:
            raise Violation("images", f"{node_id} purges up to {base.index}, but its image is {newest}")

    def committed(self, batch: Batch) -> None:
        if batch.head is None:
            return
        stamp_ms, value = strip_stamp(decode_internal(batch.head))
        if stamp_ms is not None:
            self._stamped(stamp_ms, batch)
        if isinstance(value, ImageBegin):
            self.newest_mark = batch.first_index
            self.counts["images committed"] += 1
        elif isinstance(value, Purge):
            self._purge(value.base, batch)

    def _stamped(self, stamp_ms: int, batch: Batch) -> None:
        if stamp_ms < self.last_stamp_ms:
            raise Violation(
                "cluster time",
                f"entry {batch.first_index} has the stamp {stamp_ms}, earlier than {self.last_stamp_ms}",
            )
        self.last_stamp_ms = stamp_ms

    def _purge(self, base: Base, batch: Batch) -> None:
        self.counts["purges committed"] += 1
        if base.index >= self.newest_mark:
            raise Violation(
                "purge",
                f"entry {batch.first_index} purges up to {base.index}, but the mark of the newest image is "
                f"{self.newest_mark}",
            )
        self.bases.add(base)

    def check_base(self, node_id: str, base: Base) -> None:
        if base not in self.bases:
            raise Violation(
                "purge", f"the log of {node_id} starts after {base}, but no PURGE to it is committed"
            )
