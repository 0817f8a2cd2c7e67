"""A set of bytes of a file, as half-open ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Intervals:
    """Disjoint, ascending, none touching the next."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._begins, self._ends, strict=True))

    def add(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        if first >= last:
            return
        rest = [(self._begins[first], begin), (end, self._ends[last - 1])]
        kept = [(a, b) for a, b in rest if a < b]
        self._begins[first:last] = [a for a, _ in kept]
        self._ends[first:last] = [b for _, b in kept]

    def cover(self, begin: int, end: int) -> bool:
        """Whether all of the range is in the set."""
        at = bisect_right(self._begins, begin) - 1
        return at >= 0 and end <= self._ends[at]
