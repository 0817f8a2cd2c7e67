"""What the master has in mind beside the state: what it has proposed, and who waits for messages.

On the event loop only. It begins empty with every leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from broker_adapter.pop.commands import QueueKey
from broker_adapter.pop.queue_state import QueueDelivery


class QueueView:
    """Of one queue in one group. `cursor` counts while pops are under way; `reserved` are offsets that are
    being given again or moved; `is_read` while a receive reads, so that two never take the same."""

    __slots__ = ("cursor", "is_read", "reserved", "under_way")

    def __init__(self) -> None:
        self.cursor = 0
        self.under_way = 0
        self.is_read = False
        self.reserved: set[int] = set()

    @property
    def is_free(self) -> bool:
        return not self.is_read

    def next_offset(self, queue: QueueDelivery | None, first: int) -> int:
        """The next one that nobody was given or is about to be; `first` in a queue new to the group."""
        if self.under_way:
            return self.cursor
        return first if queue is None else queue.cursor


class GroupTopic(NamedTuple):
    group: str
    topic: str


class Views:
    """All of them, and the receives that wait."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, QueueView] = {}
        self._waiting: dict[GroupTopic, dict[asyncio.Future[None], None]] = {}
        # Not sets: the order in which receives are woken is the same in every process.
        self._by_topic: dict[str, dict[GroupTopic, None]] = {}
        self._turns: dict[GroupTopic, int] = {}

    def __len__(self) -> int:
        """Receives that wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def clear(self) -> None:
        self._queues.clear()
        self._turns.clear()
        self.wake_all()

    def find(self, key: QueueKey) -> QueueView | None:
        """None: nothing is on its way there. To look at a queue makes no view: a topic may have many."""
        return self._queues.get(key)

    def queue(self, key: QueueKey) -> QueueView:
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = QueueView()
        return found

    def turn(self, who: GroupTopic) -> int:
        """Another number each time: which queue is looked at first."""
        turn = self._turns[who] = self._turns.get(who, -1) + 1
        return turn

    def enter(self, who: GroupTopic) -> asyncio.Future[None]:
        """Something may have come when it is done. `leave` has to follow."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, {})[future] = None
        self._by_topic.setdefault(who.topic, {})[who] = None
        return future

    def leave(self, who: GroupTopic, future: asyncio.Future[None]) -> None:
        waiting = self._waiting[who]
        del waiting[future]
        if not waiting:
            del self._waiting[who]
            group_topics = self._by_topic[who.topic]
            group_topics.pop(who, None)
            if not group_topics:
                del self._by_topic[who.topic]

    def arrived(self, topics: Iterable[str]) -> None:
        """Queues of these topics have grown: one receive of each group looks, and wakes the next one if it
        leaves something."""
        for topic in topics:
            for who in self._by_topic.get(topic, ()):
                self.wake_one(who)

    def wake_one(self, who: GroupTopic) -> None:
        for future in self._waiting.get(who, ()):
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(None)
