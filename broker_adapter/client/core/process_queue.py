"""Messages of one queue that were pulled and not yet consumed, and the offset that may be committed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_adapter.client.core.values import MessageExt


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Of one queue. Nothing more is pulled above one of them (RocketMQ's pullThresholdFor...)."""

    messages: int = 1000
    size: int = 100 << 20  # bytes
    span: int = 2000  # between the first and the last offset in memory


class Cached(NamedTuple):
    """What is in memory of a queue. `first`, `last`: offsets, 0 if there is nothing; `size`: bytes."""

    messages: int
    first: int
    last: int
    size: int


class ProcessQueue:
    """`add` what was pulled, `take` what is to be consumed, `done` with it. Offsets grow."""

    def __init__(self, begin: int) -> None:
        """`begin`: the group's offset."""
        self._waiting: deque[MessageExt] = deque()
        self._sizes: dict[int, int] = {}  # offset -> bytes, of all in memory, in their order
        self._size = 0
        self._next = begin
        self._committed = begin
        #: Another member has the queue now, or the consumer ends: nothing of it is committed any more.
        self.is_dropped = False

    def __len__(self) -> int:
        """Messages in memory, those that are being consumed included."""
        return len(self._sizes)

    @property
    def next_offset(self) -> int:
        """To be pulled."""
        return self._next

    def add(self, messages: Iterable[MessageExt], next_offset: int) -> None:
        """What a pull has brought. Messages that are known already, or done, are left out."""
        for message in messages:
            if message.queue_offset >= self._next:
                self._waiting.append(message)
                self._sizes[message.queue_offset] = message.size
                self._size += message.size
                self._next = message.queue_offset + 1
        self._next = max(self._next, next_offset)

    def move_to(self, offset: int) -> None:
        """The broker has no messages before this offset, or fewer than was believed: go on there."""
        self._next = offset
        if not self._sizes:
            self._committed = min(self._committed, offset)

    def take(self, most: int) -> list[MessageExt]:
        """The next messages to be consumed. They stay in memory until they are `done`."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def put_back(self, messages: Sequence[MessageExt]) -> None:
        """Messages that were taken, to be taken again in their order."""
        self._waiting.extendleft(reversed(messages))

    def done(self, messages: Iterable[MessageExt]) -> None:
        for message in messages:
            self._size -= self._sizes.pop(message.queue_offset, 0)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def is_full(self, limits: FlowLimits) -> bool:
        if len(self._sizes) >= limits.messages or self._size >= limits.size:
            return True
        return bool(self._sizes) and self._next - next(iter(self._sizes)) > limits.span

    @property
    def cached(self) -> Cached:
        first, last = next(iter(self._sizes), 0), next(reversed(self._sizes), 0)
        return Cached(len(self._sizes), first, last, self._size)

    @property
    def offset(self) -> int:
        """That may be committed: everything before it is done."""
        return next(iter(self._sizes), self._next)

    def to_commit(self) -> int | None:
        """None: it was committed already, or the queue is another member's."""
        return None if self.is_dropped or self.offset == self._committed else self.offset

    def committed(self, offset: int) -> None:
        self._committed = offset
