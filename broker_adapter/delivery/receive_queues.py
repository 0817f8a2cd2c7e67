"""Master-only bookkeeping of receives: proposed pops and waiting receives.

It runs on the event loop and is empty at the start of each leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker_adapter.delivery_state.commands import QueueKey
from broker_adapter.delivery_state.queue_state import QueueDelivery
from dledger.infra.loops.turns import settle, wake_queue

#: Maximum number of pairs of group and topic whose round-robin position is remembered.
_MAX_TURNS = 10_000


class ReceiveQueue:
    """The receives of one group in one queue.

    `under_way` counts proposed pops. `reserved` holds the offsets of messages that are being redelivered or
    moved. `is_read` is True while a receive reads the queue, so that two receives never choose the same
    messages.

    Proposed pops form a chain: each starts where the previous one ends. If a pop gets no messages, neither do
    its successors, and the next pop starts a new chain.
    """

    __slots__ = ("_chain", "_cursor", "_in_chain", "is_read", "reserved", "under_way")

    def __init__(self) -> None:
        self._chain = 0  # number of the chain
        self._cursor = 0  # end of the chain
        self._in_chain = 0  # pops of the chain under way
        self.under_way = 0
        self.is_read = False
        self.reserved: set[int] = set()

    def begin_pop(self, end: int) -> int:
        """Register a pop of new messages up to `end`.

        Return the number of its chain, which `end_pop` requires.
        """
        self._cursor = end
        self._in_chain += 1
        self.under_way += 1
        return self._chain

    def end_pop(self, chain: int, *, is_taken: bool) -> None:
        """Handle the end of a pop.

        `is_taken`: the state's cursor was at the start of the pop and moved to its end.
        """
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
        """True if the object is in the same state as a new one and can be dropped."""
        return not (self.under_way or self.reserved or self.is_read)

    def next_offset(self, queue: QueueDelivery | None, first: int) -> int:
        """Return the first offset that is neither delivered nor proposed.

        In a queue that is new to the group, this is `first`.
        """
        if self._in_chain:
            return self._cursor
        return first if queue is None else queue.cursor


class GroupTopic(NamedTuple):
    group: str
    topic: str


class ReceiveQueues:
    """All receive queues, and the waiting receives."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, ReceiveQueue] = {}
        # The receives that are not woken yet. Dicts instead of sets, so that the wake-up order is the same in
        # every process.
        self._waiting: dict[GroupTopic, dict[asyncio.Future[None], None]] = {}
        self._by_topic: dict[str, dict[GroupTopic, None]] = {}
        self._due: set[GroupTopic] = set()  # groups with a scheduled wake-up
        self._count = 0
        self._turns: dict[GroupTopic, int] = {}
        self._to_examine: Iterator[QueueKey] = iter(())

    def __len__(self) -> int:
        """Number of waiting receives."""
        return self._count

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def waiting_of(self, who: GroupTopic) -> int:
        """Return the number of receives of a group that wait for messages of a topic."""
        return len(self._waiting.get(who, ()))

    def clear(self) -> None:
        self._queues.clear()
        self._turns.clear()
        self.wake_all()

    def find(self, key: QueueKey) -> ReceiveQueue | None:
        """Return the queue, or None if it has no active receive.

        A lookup creates no entry, because topics may have many queues.
        """
        return self._queues.get(key)

    def queue(self, key: QueueKey) -> ReceiveQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ReceiveQueue()
        return queue

    def drop_idle(self, limit: int) -> None:
        """Examine `limit` queues and drop the idle ones, because their groups or topics may no longer
        exist.
        """
        for _ in range(limit):
            key = next(self._to_examine, None)
            if key is None:
                self._to_examine = iter(list(self._queues))
                return
            queue = self._queues.get(key)
            if queue is not None and queue.is_idle:
                del self._queues[key]

    def turn(self, who: GroupTopic) -> int:
        """Return a counter that determines the first queue to examine.

        Each call returns a different number.
        """
        if len(self._turns) >= _MAX_TURNS and who not in self._turns:
            self._turns.clear()  # restart all counters: cheaper than tracking deleted groups and topics
        turn = self._turns[who] = self._turns.get(who, -1) + 1
        return turn

    def enter(self, who: GroupTopic) -> asyncio.Future[None]:
        """Register a waiting receive.

        The future completes when there may be messages. The caller must call `leave` later.
        """
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
                self._remove_group(who)

    def arrived(self, topics: Iterable[str]) -> None:
        """Wake one receive per group after new messages have arrived in these topics.

        If that receive leaves messages, it wakes the next one.
        """
        for topic in topics:
            fresh = [who for who in self._by_topic.get(topic, ()) if who not in self._due]
            self._due.update(fresh)
            wake_queue().each(topic, fresh, self._wake_next)

    def wake_one(self, who: GroupTopic) -> None:
        """Schedule the wake-up of one receive.

        One message may wake many groups, so each wake-up runs in its own step of the event loop.
        """
        if who in self._waiting and who not in self._due:
            self._due.add(who)
            wake_queue().each(who.topic, (who,), self._wake_next)

    def wake(self, who: GroupTopic, future: asyncio.Future[None]) -> None:
        """Schedule the wake-up of this receive. Many receives may be due at the same time."""
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
                self._remove_group(who)
            if settle(future):
                return True
        return False

    def _remove_group(self, who: GroupTopic) -> None:
        del self._waiting[who]
        group_topics = self._by_topic[who.topic]
        del group_topics[who]
        if not group_topics:
            del self._by_topic[who.topic]
