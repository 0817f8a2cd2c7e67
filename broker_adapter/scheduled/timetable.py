"""A timetable with one due time per number."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

# Replaced entries stay in the heap until they outnumber the current entries by this number.
_SLACK = 64


class Timetable:
    def __init__(self) -> None:
        self._when: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (when, number), including replaced entries

    def __len__(self) -> int:
        return len(self._when)

    def put(self, number: int, when: int) -> None:
        """Set or replace the due time of `number`."""
        if self._when.get(number) == when:
            return
        self._when[number] = when
        heappush(self._heap, (when, number))
        if len(self._heap) > 2 * len(self._when) + _SLACK:
            self._heap = [(at, one) for one, at in self._when.items()]
            heapify(self._heap)

    def first(self) -> int | None:
        """Return the earliest due time."""
        heap = self._heap
        while heap and self._when.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now: int) -> int | None:
        """Remove and return the number with the earliest due time, or return None if no number is due."""
        first = self.first()
        if first is None or first > now:
            return None
        _, number = heappop(self._heap)
        del self._when[number]
        return number

    def clear(self) -> None:
        self._when.clear()
        self._heap.clear()
