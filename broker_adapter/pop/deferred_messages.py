"""Messages that are in no queue yet: delayed ones, and halves whose transaction has not ended.

Halves are kept whole, in memory and in the state image, so that purging the log cannot lose them: the limits
of the settings bound how many bytes that may be. Of a delayed message there is only where the log has it.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.pop.commands import Carried, Defer, DeferredKind, Ending
from broker_adapter.pop.records import decode, encode

#: Ends are remembered for so long, so that they may be repeated. Part of the state's rules.
MAX_ENDS = 20_000
MAX_END_AGE_MS = 600_000

#: Of a message that the log has: due, position and size of the entry, place in its command, topic, client.
_IN_LOG = struct.Struct("=qqIHII")
#: Measured: what such a message takes of memory (`test_many_delayed_messages`).
IN_LOG_BYTES = 250

_OF_HALVES = frozenset({Ending.COMMITTED, Ending.ROLLED_BACK})


class LogPosition(NamedTuple):
    """An entry of the log: its position, and the size of its body."""

    pos: int
    size: int


#: Of commands that are not read from a log.
NOWHERE = LogPosition(-1, 0)


class DeferredMessage(NamedTuple):
    """`command`: as an image has it; b"" if the log has it at `place`, as the `element`-th of a command."""

    command: bytes
    kind: DeferredKind
    topic: str
    due_ms: int  # of the delivery; of a half: of the next check
    client: bytes  # the address that it came from
    checks: int = 0  # how often the producer was asked
    place: LogPosition = NOWHERE
    element: int = 0

    @staticmethod
    def of(defer: Defer, place: LogPosition = NOWHERE, element: int = 0) -> DeferredMessage:
        client = defer.born_host[:-4]
        if defer.kind is DeferredKind.DELAYED and place != NOWHERE:
            return DeferredMessage(b"", defer.kind, defer.topic, defer.due_ms, client, 0, place, element)
        return DeferredMessage(encode([defer]), defer.kind, defer.topic, defer.due_ms, client)

    @property
    def is_in_log(self) -> bool:
        return self.place != NOWHERE

    def defer(self, command: bytes = b"") -> Defer:
        """All of it; `command` is what the log has at `place`. Takes a while. StoredDataDamaged
        (COMMAND_DAMAGED) if it is none that keeps a message."""
        decoded = decode(command if self.is_in_log else self.command)
        elements = [] if decoded is None else decoded.elements
        found = elements[self.element] if self.element < len(elements) else None
        if isinstance(found, Carried):
            return found.defer
        if not isinstance(found, Defer):
            raise StoredDataDamaged(Status.COMMAND_DAMAGED, f"no deferred message at {self.place}")
        return found

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, nearly."""
        return len(self.command) + (IN_LOG_BYTES if self.is_in_log else 200)


#: A deferred message and its number.
Numbered = tuple[int, DeferredMessage]


class Ended(NamedTuple):
    """`topic` "": not known, of an image of an older version."""

    deferred_id: int
    ending: Ending
    stamp_ms: int
    topic: str


class _Numbers:
    """Small numbers for names that many messages have, as long as any has them. A number is used again."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._number_of: dict[bytes, int] = {}
        self._users: list[int] = []
        self._free: list[int] = []

    def use(self, name: bytes) -> int:
        number = self._number_of.get(name)
        if number is None:
            if not self._free:
                self._free.append(len(self.names))
                self.names.append(b"")
                self._users.append(0)
            number = self._number_of[name] = self._free.pop()
            self.names[number] = name
        self._users[number] += 1
        return number

    def used(self) -> dict[int, str]:
        return {number: name.decode() for name, number in self._number_of.items()}

    def give_back(self, number: int) -> None:
        self._users[number] -= 1
        if not self._users[number]:
            del self._number_of[self.names[number]]
            self._free.append(number)


class DeferredMessages(Mapping[int, DeferredMessage]):
    """By their numbers. Of those that the log has only `_IN_LOG` bytes are kept: there may be many."""

    def __init__(self) -> None:
        self._whole: dict[int, DeferredMessage] = {}
        self._in_log: dict[int, bytes] = {}  # in the order of the log
        self._topics, self._clients = _Numbers(), _Numbers()  # of those that the log has
        self.bytes = 0
        self._bytes_of: dict[bytes, int] = {}
        self._count_of = Counter[str]()  # by topic
        self._ended: dict[int, Ended] = {}
        self._order: deque[Ended] = deque()

    def __getitem__(self, deferred_id: int) -> DeferredMessage:
        packed = self._in_log.get(deferred_id)
        return self._whole[deferred_id] if packed is None else self._unpack(packed)

    def __contains__(self, deferred_id: object) -> bool:
        return deferred_id in self._in_log or deferred_id in self._whole

    def __iter__(self) -> Iterator[int]:
        return chain(self._whole, self._in_log)

    def __len__(self) -> int:
        return len(self._whole) + len(self._in_log)

    def _unpack(self, packed: bytes) -> DeferredMessage:
        due_ms, pos, size, element, topic, client = _IN_LOG.unpack(packed)
        return DeferredMessage(
            b"",
            DeferredKind.DELAYED,
            self._topics.names[topic].decode(),
            due_ms,
            self._clients.names[client],
            0,
            LogPosition(pos, size),
            element,
        )

    def put(self, deferred_id: int, message: DeferredMessage) -> None:
        self.bytes += message.size
        self._bytes_of[message.client] = self.bytes_of(message.client) + message.size
        self._count_of[message.topic] += 1
        if message.is_in_log:
            topic, client = self._topics.use(message.topic.encode()), self._clients.use(message.client)
            place = message.place
            self._in_log[deferred_id] = _IN_LOG.pack(message.due_ms, *place, message.element, topic, client)
        else:
            self._whole[deferred_id] = message

    def in_log(self) -> list[int]:
        """Numbers of those that the log has, in its order."""
        return list(self._in_log)

    def fields_in_log(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Of those that the log has, in its order: number, and (due, position, size, place in its command,
        number of the topic, number of the client)."""
        return zip(self._in_log, map(_IN_LOG.unpack, self._in_log.values()), strict=True)

    def topics_in_log(self) -> dict[int, str]:
        """Topics of those that the log has, by their numbers."""
        return self._topics.used()

    def whole(self) -> list[Numbered]:
        """Those that are kept whole, by number."""
        return sorted(self._whole.items())

    def places_in_log(self) -> Iterator[LogPosition]:
        """Of those that the log has now, in its order. What comes and goes meanwhile does not matter."""
        fields = map(_IN_LOG.unpack, list(self._in_log.values()))
        return (LogPosition(pos, size) for _, pos, size, *_ in fields)

    def carried(self, deferred_id: int, place: LogPosition, element: int) -> bool:
        """Whether there is such a delayed message; the log has it there, too, from now on."""
        message = self.get(deferred_id)
        if message is None or message.kind is not DeferredKind.DELAYED or place == NOWHERE:
            return False
        self._take_out(deferred_id)
        self.put(deferred_id, message._replace(command=b"", place=place, element=element))
        return True

    def first_pos(self) -> int | None:
        """The position in the log from which on a message is read one day."""
        first = next(iter(self._in_log.values()), None)
        return None if first is None else self._unpack(first).place.pos

    def bytes_of(self, client: bytes) -> int:
        """Of messages that came from an address."""
        return self._bytes_of.get(client, 0)

    def _take_out(self, deferred_id: int) -> DeferredMessage | None:
        message = self.get(deferred_id)
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
        packed = self._in_log.pop(deferred_id, None)
        if packed is None:
            del self._whole[deferred_id]
        else:
            *_, topic, client = _IN_LOG.unpack(packed)
            self._topics.give_back(topic)
            self._clients.give_back(client)
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
        message = self._whole.get(deferred_id)
        if message is None or message.kind is not DeferredKind.HALF:
            return False
        self._whole[deferred_id] = message._replace(due_ms=next_ms, checks=message.checks + 1)
        return True

    def is_awaited(self, topic: str) -> bool:
        """Whether any waits for the queues of a topic."""
        return topic in self._count_of

    def of_topic(self, topic: str) -> list[int]:
        """Numbers of all that wait for the queues of a topic."""
        if topic not in self._count_of:
            return []
        return [number for number, one in self.items() if one.topic == topic]

    def drop(self, deferred_id: int) -> None:
        """The topic was deleted: what waited for it is forgotten."""
        self._take_out(deferred_id)
