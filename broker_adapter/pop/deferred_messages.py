"""Messages that are in no queue yet: delayed ones, and halves whose transaction has not ended.

They are kept whole, in memory and in the state image, so that purging the log cannot lose them: the limits of
the settings bound how many bytes that may be.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from broker_adapter.pop.commands import Defer, DeferredKind, Ending
from broker_adapter.pop.records import decode, encode

#: Ends are remembered for so long, so that they may be repeated. Part of the state's rules.
MAX_ENDS = 20_000
MAX_END_AGE_MS = 600_000

_OF_HALVES = frozenset({Ending.COMMITTED, Ending.ROLLED_BACK})


class DeferredMessage(NamedTuple):
    """Kept as the command that an image has of it."""

    command: bytes
    kind: DeferredKind
    topic: str
    due_ms: int  # of the delivery; of a half: of the next check
    client: bytes  # the address that it came from
    checks: int = 0  # how often the producer was asked

    @staticmethod
    def of(defer: Defer) -> DeferredMessage:
        return DeferredMessage(encode([defer]), defer.kind, defer.topic, defer.due_ms, defer.born_host[:-4])

    @property
    def defer(self) -> Defer:
        """All of it. Takes a while."""
        command = decode(self.command)
        defer = command.elements[0] if command is not None else None
        assert isinstance(defer, Defer)
        return defer

    @property
    def size(self) -> int:
        """Bytes that it takes, nearly."""
        return len(self.command) + 200


class Ended(NamedTuple):
    """`topic` "": not known, of an image of an older version."""

    deferred_id: int
    ending: Ending
    stamp_ms: int
    topic: str


class DeferredMessages:
    """`all` is changed by the methods alone."""

    def __init__(self) -> None:
        self.all: dict[int, DeferredMessage] = {}
        self.bytes = 0
        self._bytes_of: dict[bytes, int] = {}
        self._count_of = Counter[str]()  # by topic
        self._ended: dict[int, Ended] = {}
        self._order: deque[Ended] = deque()

    def put(self, deferred_id: int, message: DeferredMessage) -> None:
        self.all[deferred_id] = message
        self.bytes += message.size
        self._bytes_of[message.client] = self.bytes_of(message.client) + message.size
        self._count_of[message.topic] += 1

    def bytes_of(self, client: bytes) -> int:
        """Of messages that came from an address."""
        return self._bytes_of.get(client, 0)

    def _take_out(self, deferred_id: int) -> DeferredMessage | None:
        message = self.all.pop(deferred_id, None)
        if message is None:
            return None
        self.bytes -= message.size
        self._count_of[message.topic] -= 1
        if not self._count_of[message.topic]:
            del self._count_of[message.topic]
        left = self._bytes_of[message.client] - message.size
        if left:
            self._bytes_of[message.client] = left
        else:
            del self._bytes_of[message.client]
        return message

    def end(self, deferred_id: int, ending: Ending, stamp_ms: int) -> bool:
        """Whether there was such a message; it is gone then."""
        message = self._take_out(deferred_id)
        if message is None:
            return False
        self.remember(Ended(deferred_id, ending, stamp_ms, message.topic))
        return True

    def remember(self, ended: Ended) -> None:
        self._order.append(ended)
        self._ended[ended.deferred_id] = ended
        while len(self._order) > MAX_ENDS or self._order[0].stamp_ms < ended.stamp_ms - MAX_END_AGE_MS:
            del self._ended[self._order.popleft().deferred_id]

    def ending_of_half(self, topic: str, deferred_id: int) -> Ending | None:
        """How the transaction of a half message of the topic ended, as long as that is remembered."""
        ended = self._ended.get(deferred_id)
        if ended is None or ended.ending not in _OF_HALVES or ended.topic not in (topic, ""):
            return None
        return ended.ending

    def ends(self) -> list[Ended]:
        return list(self._order)

    def ends_without(self, topic: str) -> list[Ended]:
        return [ended for ended in self._order if ended.topic != topic]

    def take_ends(self, ends: list[Ended]) -> None:
        """Instead of those that are remembered."""
        self._order = deque(ends)
        self._ended = {ended.deferred_id: ended for ended in ends}

    def checked(self, deferred_id: int, next_ms: int) -> bool:
        message = self.all.get(deferred_id)
        if message is None or message.kind is not DeferredKind.HALF:
            return False
        self.all[deferred_id] = message._replace(due_ms=next_ms, checks=message.checks + 1)
        return True

    def is_awaited(self, topic: str) -> bool:
        """Whether any waits for the queues of a topic."""
        return topic in self._count_of

    def of_topic(self, topic: str) -> list[int]:
        """Numbers of all that wait for the queues of a topic."""
        return [number for number, one in self.all.items() if one.topic == topic]

    def drop(self, deferred_id: int) -> None:
        """The topic was deleted: what waited for it is forgotten."""
        self._take_out(deferred_id)
