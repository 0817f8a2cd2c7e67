"""Messages that wait for a term or vote to be durable (rule 2): bounded, however long the disk takes.

What is asked and answered one by one is repeated by its sender, and nobody waits for old ones: only the
newest few of a kind are kept. What belongs to a push stream is kept in full, since nothing on a stream may be
lost; a stream carries no more than the window of unanswered pushes, and a newer one makes it void.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from dledger.core.messages import Message, PushMessage, PushResponse

_NEWEST = 8  # kept of each kind, for each peer


class Outgoing(NamedTuple):
    number: int  # of the hard state that has to be durable first
    peer: str
    message: Message
    payload: bytes | memoryview | None


class OutboxUntilDurable:
    def __init__(self) -> None:
        self._waiting: dict[int, Outgoing] = {}  # in the order in which they are to leave
        self._kinds: dict[tuple[str, type], deque[int]] = {}  # keys of what need not be kept in full
        self._streams: dict[tuple[str, bool], int] = {}  # the newest, by peer and whether it is pushed to us
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: int, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """`number` never falls."""
        self._count += 1
        if isinstance(message, PushMessage | PushResponse):
            self._leave_older_streams(peer, message)
        else:
            kind = self._kinds.setdefault((peer, type(message)), deque())
            kind.append(self._count)
            if len(kind) > _NEWEST:
                self._waiting.pop(kind.popleft(), None)
        self._waiting[self._count] = Outgoing(number, peer, message, payload)

    def release(self, number: int) -> Iterator[Outgoing]:
        """Those that waited for this hard state, or an older one, in order."""
        while self._waiting:
            key = next(iter(self._waiting))
            if self._waiting[key].number > number:
                return
            yield self._waiting.pop(key)
        self._streams.clear()
        self._kinds.clear()

    def _leave_older_streams(self, peer: str, message: PushMessage | PushResponse) -> None:
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
