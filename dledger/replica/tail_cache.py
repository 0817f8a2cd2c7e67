"""Keeps the newest batches of a log in memory, so that a push does not have to read them from disk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from dledger.core.values import Tail
from dledger.store.format.batch import Batch, unpack_header

_TRIM_BATCHES = 1024
_TRIM_BYTES = 1 << 20


class TailCache:
    """Consecutive batches up to the end of the log. Batches that are not durable are never evicted."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._evicted_bytes = 0
        self._batches: list[Batch] = []
        self._lasts: list[int] = []  # last_index of each
        self._start = 0  # batches before this position are evicted
        self._joined: tuple[int, int, bytes] = (-1, -1, b"")

    @property
    def first_index(self) -> int | None:
        return self._batches[self._start].first_index if self._start < len(self._batches) else None

    @property
    def byte_size(self) -> int:
        return self._bytes

    def append(self, batch: Batch) -> None:
        assert not self._batches or batch.first_index == self._batches[-1].last_index + 1
        self._batches.append(batch)
        self._lasts.append(batch.last_index)
        self._bytes += batch.size

    def evict(self, durable_index: int) -> None:
        """Evict the oldest durable batches until the cache is within its limit."""
        while self._bytes > self._max_bytes and self._start < len(self._batches):
            oldest = self._batches[self._start]
            if oldest.last_index > durable_index:
                break
            self._bytes -= oldest.size
            self._evicted_bytes += oldest.size
            self._start += 1
        if self._start >= _TRIM_BATCHES or self._evicted_bytes >= _TRIM_BYTES:
            # Trimming the lists costs their length, so it happens once for many batches.
            del self._batches[: self._start], self._lasts[: self._start]
            self._start = self._evicted_bytes = 0

    def clear(self) -> None:
        """Drop all batches after the log was replaced."""
        self._batches.clear()
        self._lasts.clear()
        self._start = self._bytes = self._evicted_bytes = 0
        self._joined = (-1, -1, b"")

    def truncate_after(self, last_index: int) -> None:
        keep = bisect_right(self._lasts, last_index)
        self._bytes -= sum(batch.size for batch in self._batches[max(keep, self._start) :])
        if keep < self._start:  # evicted batches are in the lists until the next trim, so cut them, too
            self._evicted_bytes -= sum(batch.size for batch in self._batches[keep : self._start])
            self._start = keep
        del self._batches[keep:], self._lasts[keep:]
        self._joined = (-1, -1, b"")

    def tail_at(self, index: int) -> Tail | None:
        """Return the end of the log as if `index` were its last entry, or None if that entry is not cached.

        Usually `index` ends a batch. A probe for a follower with a shorter log can fall inside a batch that
        the store may not have yet.
        """
        position = bisect_left(self._lasts, index, self._start)
        if position == len(self._batches) or self._batches[position].first_index > index:
            return None
        batch = self._batches[position]
        if batch.last_index == index:
            return batch.tail
        offset = 0
        for _ in range(index - batch.first_index):
            offset += unpack_header(batch.data, offset).size
        header = unpack_header(batch.data, offset)
        return Tail(index, header.term, header.pos + header.size, header.chain_crc)

    def batches(self, first_index: int, last_index: int, max_bytes: int) -> list[Batch]:
        """Return whole batches starting at first_index: at least one, up to max_bytes in total, and none
        after last_index.

        Returns an empty list if no cached batch starts at first_index.
        """
        position = bisect_left(self._lasts, first_index, self._start)
        if position >= len(self._batches) or self._batches[position].first_index != first_index:
            return []
        size, taken = 0, position
        while taken < len(self._batches):
            batch = self._batches[taken]
            if batch.last_index > last_index or (taken > position and size + batch.size > max_bytes):
                break
            size += batch.size
            taken += 1
        return self._batches[position:taken]

    def read(self, first_index: int, last_index: int, max_bytes: int) -> tuple[int, bytes] | None:
        """Return the result of `batches` as (last index, bytes), or None if there are none."""
        batches = self.batches(first_index, last_index, max_bytes)
        if not batches:
            return None
        last = batches[-1].last_index
        if self._joined[:2] != (first_index, last):
            # Every follower receives the same bytes: join them once.
            data = bytes(batches[0].data) if len(batches) == 1 else b"".join([b.data for b in batches])
            self._joined = (first_index, last, data)
        return last, self._joined[2]
