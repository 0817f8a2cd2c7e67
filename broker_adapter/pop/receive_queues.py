"""What the master has in mind beside the state: what it has proposed, and who waits for messages.

On the event loop only. It begins empty with every leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker_adapter.pop.commands import QueueKey
from broker_adapter.pop.queue_state import QueueDelivery
from dledger.platform import settle, wake_queue

#: Groups of topics whose turns are remembered.
_MOST_TURNS = 10_000


class ReceiveQueue:
    """Of one queue in one group. `under_way` are pops on their way; `reserved` are offsets that are being
    given again or moved; `is_read` while a receive reads, so that two never take the same.

    Pops under way make a chain: each begins where the one before it ends. If one of them takes nothing,
    those behind it take nothing either, and the next one begins a new chain.
    """

    __slots__ = ("_chain", "_cursor", "_in_chain", "is_read", "reserved", "under_way")

    def __init__(self) -> None:
        self._chain = 0  # its number
        self._cursor = 0  # where it ends
        self._in_chain = 0  # pops of it that are under way
        self.under_way = 0
        self.is_read = False
        self.reserved: set[int] = set()

    def begin_pop(self, end: int) -> int:
        """A pop of fresh messages up to `end` is under way. The number of its chain, for `end_pop`."""
        self._cursor = end
        self._in_chain += 1
        self.under_way += 1
        return self._chain

    def end_pop(self, chain: int, *, is_taken: bool) -> None:
        """`is_taken`: the state's cursor was where the pop began, and has moved on."""
        self.under_way -= 1
        if chain != self._chain:
            return
        self._in_chain -= 1
        if not is_taken:
            self._chain += 1
            self._in_chain = 0

    @property
    def is_free(self) -> bool:
        return not self.is_read

    @property
    def is_idle(self) -> bool:
        """Then it says no more than a new one."""
        return not (self.under_way or self.reserved or self.is_read)

    def next_offset(self, queue: QueueDelivery | None, first: int) -> int:
        """The next one that nobody was given or is about to be; `first` in a queue new to the group."""
        if self._in_chain:
            return self._cursor
        return first if queue is None else queue.cursor


class GroupTopic(NamedTuple):
    group: str
    topic: str


class ReceiveQueues:
    """All of them, and the receives that wait."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, ReceiveQueue] = {}
        # Those that have not been woken. Not sets: the order in which receives are woken is the same in every
        # process.
        self._waiting: dict[GroupTopic, dict[asyncio.Future[None], None]] = {}
        self._by_topic: dict[str, dict[GroupTopic, None]] = {}
        self._due: set[GroupTopic] = set()  # whose next one has its place in the queue of wake-ups
        self._count = 0
        self._turns: dict[GroupTopic, int] = {}
        self._to_tidy: Iterator[QueueKey] = iter(())

    def __len__(self) -> int:
        """Receives that wait."""
        return self._count

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def waiting_of(self, who: GroupTopic) -> int:
        """Receives of a group that wait for messages of a topic."""
        return len(self._waiting.get(who, ()))

    def clear(self) -> None:
        self._queues.clear()
        self._turns.clear()
        self.wake_all()

    def find(self, key: QueueKey) -> ReceiveQueue | None:
        """None: nothing is on its way there. To look at a queue makes no entry: a topic may have many."""
        return self._queues.get(key)

    def queue(self, key: QueueKey) -> ReceiveQueue:
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = ReceiveQueue()
        return found

    def tidy(self, most: int) -> None:
        """Look at `most` queues and forget the idle ones: nobody asks any more for those of groups and topics
        that are gone."""
        for _ in range(most):
            key = next(self._to_tidy, None)
            if key is None:
                self._to_tidy = iter(list(self._queues))
                return
            queue = self._queues.get(key)
            if queue is not None and queue.is_idle:
                del self._queues[key]

    def turn(self, who: GroupTopic) -> int:
        """Another number each time: which queue is looked at first."""
        if len(self._turns) >= _MOST_TURNS and who not in self._turns:
            self._turns.clear()  # turns begin anew: cheaper than to know which groups and topics are gone
        turn = self._turns[who] = self._turns.get(who, -1) + 1
        return turn

    def enter(self, who: GroupTopic) -> asyncio.Future[None]:
        """Something may have come when it is done. `leave` has to follow."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, {})[future] = None
        self._by_topic.setdefault(who.topic, {})[who] = None
        self._count += 1
        return future

    def leave(self, who: GroupTopic, future: asyncio.Future[None]) -> None:
        self._count -= 1
        waiting = self._waiting.get(who)
        if waiting is not None and future in waiting:
            del waiting[future]
            if not waiting:
                self._nobody_of(who)

    def arrived(self, topics: Iterable[str]) -> None:
        """Queues of these topics have grown: one receive of each group looks, and wakes the next one if it
        leaves something."""
        for topic in topics:
            fresh = [who for who in self._by_topic.get(topic, ()) if who not in self._due]
            self._due.update(fresh)
            wake_queue().each(topic, fresh, self._wake_next)

    def wake_one(self, who: GroupTopic) -> None:
        """In its turn: arrivals wake one of each group, and there are many groups."""
        if who in self._waiting and who not in self._due:
            self._due.add(who)
            wake_queue().each(who.topic, (who,), self._wake_next)

    def wake(self, who: GroupTopic, future: asyncio.Future[None]) -> None:
        """This one, in its turn: times of many may come together."""
        wake_queue().settle(who.topic, future)

    def wake_all(self) -> None:
        if self._waiting:
            futures = [future for waiting in self._waiting.values() for future in waiting]
            wake_queue().each(None, futures, settle)

    def _wake_next(self, who: GroupTopic) -> bool:
        self._due.discard(who)
        waiting = self._waiting.get(who)
        while waiting:
            future = next(iter(waiting))
            del waiting[future]
            if not waiting:
                self._nobody_of(who)
            if settle(future):
                return True
        return False

    def _nobody_of(self, who: GroupTopic) -> None:
        del self._waiting[who]
        group_topics = self._by_topic[who.topic]
        del group_topics[who]
        if not group_topics:
            del self._by_topic[who.topic]
