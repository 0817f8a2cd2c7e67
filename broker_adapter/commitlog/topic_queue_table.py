"""The next queue offset of every queue, on the master. Offsets are taken in the step in which the log takes
the messages, so none is used twice and none is left out; a new master recovers the table from its
ConsumeQueues, which by then hold all that any master before it had committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Arrival = tuple[str, int, int]


class TopicQueueTable:
    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}

    def recover(self, next_offsets: Mapping[tuple[str, int], int]) -> None:
        self._next = dict(next_offsets)

    def take(self, topic: str, queue_id: int, count: int) -> int:
        """The first of `count` consecutive offsets, which are the caller's from now on."""
        assert count > 0
        queue = (topic, queue_id)
        first = self._next.get(queue, 0)
        self._next[queue] = first + count
        return first

    def raise_to(self, topic: str, queue_id: int, offset: int) -> None:
        """The ConsumeQueue ends there: entries that this master did not write have taken offsets."""
        queue = (topic, queue_id)
        self._next[queue] = max(self._next.get(queue, 0), offset)

    def behind(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Those of (topic, queue id, end of the ConsumeQueue) that are beyond the table. From any thread."""
        return [one for one in arrivals if one[2] > self._next.get((one[0], one[1]), 0)]

    def next_offset(self, topic: str, queue_id: int) -> int:
        return self._next.get((topic, queue_id), 0)
