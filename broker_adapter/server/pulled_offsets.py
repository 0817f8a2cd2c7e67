"""The offsets up to which groups have pulled, which operators compare with the committed offsets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

#: Time after which a group no longer counts as pulling from a queue. A pull waits for a minute at most.
_VALID_S = 120.0
_MOST_QUEUES = 65_536


class PulledOffsets:
    """The offset after the last message that each group received, by topic and queue.

    As in RocketMQ, it is in memory only: a new master learns it from the next pulls.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: a monotonic clock."""
        self._now_s = now_s
        #: Offset and time of the last pull, by group, topic and queue.
        self._last: OrderedDict[tuple[str, str, int], tuple[int, float]] = OrderedDict()

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queue = group, topic, queue_id
        self._last[queue] = offset, self._now_s()
        self._last.move_to_end(queue)
        if len(self._last) > _MOST_QUEUES:
            self._last.popitem(last=False)

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Forget a queue whose offset was reset."""
        self._last.pop((group, topic, queue_id), None)

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset, or -1 if the group does not pull from the queue."""
        offset, at_s = self._last.get((group, topic, queue_id), (-1, 0.0))
        return offset if self._now_s() < at_s + _VALID_S else -1
