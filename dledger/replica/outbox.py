"""Holds messages until a term or vote is durable (rule 2). Their number is bounded even if the disk is slow.

Senders repeat unanswered requests, and old requests are useless, so only the newest few of each kind are
kept. Messages of a push stream are all kept, because a stream must not lose any. A stream holds at most the
window of unacknowledged pushes, and its messages are dropped when a newer stream opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from dledger.core.messages import CLOCKED, COUNTED, Message, PushMessage, PushResponse
from dledger.replica.parts import ReplicaParts

_NEWEST = 8  # kept per kind and peer


def with_clock(message: Message, replica: ReplicaParts) -> Message:
    """Add the clocks to `message`. Call this immediately before sending, because a vote may have waited for
    the disk."""
    if isinstance(message, COUNTED):
        counted = replica.admission.state.clock.counted(replica.core.now_ms)
        return replace(message, wall_ms=replica.wall_ms(), cluster_time=counted)
    return replace(message, wall_ms=replica.wall_ms()) if isinstance(message, CLOCKED) else message


class QueuedMessage(NamedTuple):
    number: int  # hard state that must be durable first
    peer: str
    message: Message
    payload: bytes | memoryview | None


class DurableOutbox:
    def __init__(self) -> None:
        self._waiting: dict[int, QueuedMessage] = {}  # in sending order
        # keys of messages of which only the newest are kept
        self._kinds: dict[tuple[str, type], deque[int]] = {}
        # The newest stream, by peer and direction (True means inbound).
        self._streams: dict[tuple[str, bool], int] = {}
        self._count = 0

        self._submitted = 0  # hard states
        self._saved = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def hard_state_submitted(self) -> int:
        """Register a hard state that will be durable later, and return its number."""
        self._submitted += 1
        return self._submitted

    def holds(self, peer: str, message: Message, payload: bytes | memoryview | None) -> bool:
        """Hold a message until the newest hard state is durable. Returns False if it is already."""
        if self._saved >= self._submitted:
            return False
        self.add(self._submitted, peer, message, payload)
        return True

    def add(self, number: int, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """Hold a message until hard state `number` is durable. `number` never decreases."""
        self._count += 1
        if isinstance(message, PushMessage | PushResponse):
            self._drop_older_streams(peer, message)
        else:
            kind = self._kinds.setdefault((peer, type(message)), deque())
            kind.append(self._count)
            if len(kind) > _NEWEST:
                self._waiting.pop(kind.popleft(), None)
        self._waiting[self._count] = QueuedMessage(number, peer, message, payload)

    def release(self, number: int) -> Iterator[QueuedMessage]:
        """Yield the messages that waited for this or an earlier hard state, in order."""
        self._saved = number
        while self._waiting:
            key = next(iter(self._waiting))
            if self._waiting[key].number > number:
                return
            yield self._waiting.pop(key)
        self._streams.clear()
        self._kinds.clear()

    def _drop_older_streams(self, peer: str, message: PushMessage | PushResponse) -> None:
        inbound = isinstance(message, PushResponse)
        newest = self._streams.get((peer, inbound), message.stream_id)
        self._streams[(peer, inbound)] = max(newest, message.stream_id)
        if newest >= message.stream_id:
            return
        void = [
            key
            for key, waiting in self._waiting.items()
            if waiting.peer == peer
            and isinstance(waiting.message, PushMessage | PushResponse)
            and isinstance(waiting.message, PushResponse) == inbound
            and waiting.message.stream_id < message.stream_id
        ]
        for key in void:
            del self._waiting[key]
