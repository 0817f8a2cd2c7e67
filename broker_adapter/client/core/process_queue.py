"""The messages of one queue that have been pulled but not consumed, and the offset to commit. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_adapter.client.core.checks import check_fields
from broker_adapter.client.core.values import MessageExt


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits of one queue. Pulling pauses above any limit (RocketMQ's pullThresholdFor...)."""

    messages: int = 1000
    size: int = 100 << 20  # bytes
    span: int = 2000  # between the first and the last offset in memory

    def __post_init__(self) -> None:
        check_fields(self)


class CachedMessages(NamedTuple):
    """The messages of a queue in memory.

    `first`, `last`: offsets, 0 if there are no messages. `size`: bytes.
    """

    messages: int
    first: int
    last: int
    size: int


class ProcessQueue:
    """Call `add` after a pull, `take_messages` before consuming messages, and `done` after it."""

    def __init__(self, start: int) -> None:
        """`start`: the group's offset."""
        self._waiting: deque[MessageExt] = deque()
        self._sizes: dict[int, int] = {}  # bytes by offset, for all messages in memory, in offset order
        self._size = 0
        self._next = start
        self._committed = start
        #: True if another member owns the queue or the consumer is closing. No further offset is committed
        #: then.
        self.is_dropped = False

    def __len__(self) -> int:
        """The number of messages in memory, including those being consumed."""
        return len(self._sizes)

    @property
    def next_offset(self) -> int:
        """The next offset to pull."""
        return self._next

    def add(self, messages: Iterable[MessageExt], next_offset: int) -> None:
        """Add the messages of a pull, except those that are already in memory or consumed."""
        for message in messages:
            if message.queue_offset >= self._next:
                self._waiting.append(message)
                self._sizes[message.queue_offset] = message.size
                self._size += message.size
                self._next = message.queue_offset + 1
        self._next = max(self._next, next_offset)

    def move_to(self, offset: int) -> None:
        """Continue at an offset that the broker returned.

        For example, the broker has no messages before this offset, or the group was reset to it.
        """
        self._next = offset
        if not self._sizes:
            self._committed = min(self._committed, offset)

    def take_messages(self, limit: int) -> list[MessageExt]:
        """Return the next messages to consume. They remain in memory until they are passed to `done`."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def put_back(self, messages: Sequence[MessageExt]) -> None:
        """Put taken messages back to the front of the queue, in order."""
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
    def cached(self) -> CachedMessages:
        first, last = next(iter(self._sizes), 0), next(reversed(self._sizes), 0)
        return CachedMessages(len(self._sizes), first, last, self._size)

    @property
    def offset(self) -> int:
        """The offset that may be committed. All messages before it are consumed."""
        return next(iter(self._sizes), self._next)

    def to_commit(self) -> int | None:
        """Return the offset to commit, or None if it is already committed or the queue belongs to another
        member.
        """
        return None if self.is_dropped or self.offset == self._committed else self.offset

    def committed(self, offset: int) -> None:
        self._committed = offset
