"""The next queue offset of every queue, on the master. Offsets are taken in the step in which the log takes
the messages, so none is used twice and none is left out; a new master recovers the table from its
ConsumeQueues, which by then hold all that any master before it had committed."""

from __future__ import annotations

from collections.abc import Mapping


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

    def next_offset(self, topic: str, queue_id: int) -> int:
        return self._next.get((topic, queue_id), 0)
