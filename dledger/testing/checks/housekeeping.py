"""Checks the internal entries of the committed log: purges, state images and cluster time, in log order."""

from __future__ import annotations

from collections import Counter

from dledger.core.values import Base
from dledger.replica.images import ImageCollector
from dledger.store.format.batch import Batch
from dledger.store.format.internal import ImageEnd, Purge, decode_internal, strip_stamp
from dledger.testing.virtual.violation import Violation


class Housekeeping:
    """Consumes the committed log, batch by batch."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.bases: set[Base] = set()  # bases permitted by a committed PURGE
        self.last_stamp_ms = -1
        self._images = ImageCollector()

    @property
    def newest_image(self) -> int:
        """Index of the newest complete image; -1 if there is none."""
        return self._images.newest.image_index if self._images.newest is not None else -1

    def committed(self, batch: Batch) -> None:
        if batch.head is None:
            return
        stamp_ms, value = strip_stamp(decode_internal(batch.head))
        if stamp_ms is not None:
            self._stamped(stamp_ms, batch)
        self._images.add(batch.first_index, value)
        if isinstance(value, ImageEnd):
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
        if base.index >= self.newest_image:
            raise Violation(
                "purge",
                f"entry {batch.first_index} purges up to {base.index}, but the newest image is "
                f"{self.newest_image}",
            )
        self.bases.add(base)

    def check_base(self, node_id: str, base: Base) -> None:
        if base not in self.bases:
            raise Violation(
                "purge", f"the log of {node_id} starts after {base}, but no PURGE to it is committed"
            )
