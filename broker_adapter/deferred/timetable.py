"""When each of many numbered things is due: one time each, the newest that was given."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

#: Times that were replaced are kept in the heap until there are so many more of them than of others.
_SLACK = 64


class Timetable:
    def __init__(self) -> None:
        self._when: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (when, number), with some that were replaced

    def __len__(self) -> int:
        return len(self._when)

    def put(self, number: int, when: int) -> None:
        """Replaces the time that it had."""
        if self._when.get(number) == when:
            return
        self._when[number] = when
        heappush(self._heap, (when, number))
        if len(self._heap) > 2 * len(self._when) + _SLACK:
            self._heap = [(at, one) for one, at in self._when.items()]
            heapify(self._heap)

    def first(self) -> int | None:
        """The least of all times."""
        heap = self._heap
        while heap and self._when.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now: int) -> int | None:
        """The number that is due for the longest; it is in the table no more."""
        first = self.first()
        if first is None or first > now:
            return None
        _, number = heappop(self._heap)
        del self._when[number]
        return number

    def clear(self) -> None:
        self._when.clear()
        self._heap.clear()
