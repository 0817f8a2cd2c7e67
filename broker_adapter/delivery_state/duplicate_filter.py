"""Identities of recent sends and the positions of their messages. They are part of the replicated state.

A send is identified by topic and message id, a digest of its content, and its born timestamp. Clients retry a
send under the same message id. But programs that fill and send one `Message` object repeatedly, or copy a
message with its properties to another system, also reuse the id. The content distinguishes these cases. It
includes the producer group, which no client changes between attempts, and excludes the parts that clients do
change:

- the order of the properties (Go),
- properties of tracing hooks, which add a new span per attempt (Java),
- the born timestamp (Java's synchronous sends, Go), which is compared within a span instead,
- the queue and the broker.

If the message of a send is recalled or rolled back, its entry stays. An attempt that was delayed on its way
may still arrive, and must not store the message again. Clients set the born timestamp per attempt or per
send, so an attempt of the ended send was born no later than the latest attempt that was answered. A program
that sends the message again on purpose does so later.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state.handles import TOPIC_DIGEST_SIZE, topic_digest
from broker_adapter.wire.properties import properties_of
from broker_adapter.wire.sys_flag import COMPRESSED, COMPRESSION_MASK

CONTENT_DIGEST_SIZE: Final = 16

#: Properties of tracing hooks, in lower case.
TRACING_KEYS: Final = frozenset(
    {
        "trace_context",  # RocketMQ 5
        "traceparent",  # W3C, OpenTelemetry
        "tracestate",
        "baggage",
        "b3",  # Zipkin
        "uber-trace-id",  # Jaeger
        "jaeger-debug-id",
        "jaeger-baggage",
        "traceid",  # OpenTracing's mock tracer
        "spanid",
        "sw8",  # SkyWalking
        "sw8-x",
        "sw8-correlation",
        "x-amzn-trace-id",
        "x-cloud-trace-context",
        "elastic-apm-traceparent",
        "newrelic",
    }
)
# Prefixes of such properties, in lower case.
TRACING_PREFIXES: Final = (
    "x-b3-",
    "uberctx-",
    "baggage-",
    "ot-tracer-",
    "ot-baggage-",
    "x-datadog-",
    "pinpoint-",
    "x-instana-",
)

# Tuples of more names are not cached, because clients choose the names.
_MOST_CACHED_NAMES: Final = 16
_CONTENT_FLAGS: Final = COMPRESSED | COMPRESSION_MASK
_HEAD = struct.Struct(">iiII")  # flag, bits of sys_flag, sizes of body and properties


class SendIdentity(NamedTuple):
    """The identity of a send.

    Two sends are attempts of one send if both digests are equal and the born timestamps are close.
    """

    id_digest: bytes  # digest of topic and message id
    content: bytes
    born_ms: int

    @property
    def key(self) -> bytes:
        return self.id_digest + self.content


def id_digest(topic: str, message_id: str) -> bytes:
    """Return a 16-byte digest of a message id in a topic."""
    pair = blake2b(
        f"{topic}\0{message_id}".encode(errors="surrogatepass"), digest_size=16 - TOPIC_DIGEST_SIZE
    )
    return topic_digest(topic) + pair.digest()


def send_identity(
    topic: str, message_id: str, messages: Iterable[OutgoingMessage], born_ms: int
) -> SendIdentity:
    """Return the identity of one message, or of a batch that is sent under a single id."""
    return SendIdentity(id_digest(topic, message_id), content_digest(messages), born_ms)


def content_digest(messages: Iterable[OutgoingMessage]) -> bytes:
    """Return the digest of bodies, flags, compression, properties and producer groups in the form sent by the
    producer.
    """
    digest = blake2b(digest_size=CONTENT_DIGEST_SIZE)
    update, pack = digest.update, _HEAD.pack
    for body, given, flag, sys_flag, _, group in messages:
        properties = _canonical(given)
        head = pack(flag, sys_flag & _CONTENT_FLAGS, len(body), len(properties))
        update(group.encode(errors="surrogatepass") + b"\x00" + head if group else head)
        update(body)
        update(properties)
    return digest.digest()


def _canonical(properties: Mapping[str, str]) -> bytes:
    """Encode the properties sorted by name, without properties that tracing hooks add."""
    found = properties_of(properties)
    names = tuple(found)
    find = _content_names if len(names) <= _MOST_CACHED_NAMES else _content_names.__wrapped__
    text = "".join([f"{name}\x01{found[name]}\x02" for name in find(names)])
    return text.encode(errors="surrogatepass")


@lru_cache(maxsize=256)
def _content_names(names: tuple[str, ...]) -> list[str]:
    """Return the names that are part of the content, sorted. Messages of a program share their names."""
    return [name for name in sorted(names) if not is_tracing(name)]


def is_tracing(name: str) -> bool:
    lowered = name.lower()
    return lowered in TRACING_KEYS or lowered.startswith(TRACING_PREFIXES)


# All nodes must use the same limits, so that they evict the same entries.
MAX_IDS: Final = 600_000
MAX_AGE_MS: Final = 60_000
# Maximum number of entries with the same id and content, and of halves with the same id and born timestamp.
# They are searched linearly.
MAX_ALIKE: Final = 64
#: Limits of version 0.1.0, for ids of commands that it wrote.
FIRST_MAX_IDS: Final = 200_000
FIRST_MAX_AGE_MS: Final = 600_000

# Queue ids for messages that are not in a queue of their topic. DEFERRED: in the log; the offset is the
# message's number. HALF, DELAYED: in the classic store's system queues of halves and delayed messages.
DEFERRED: Final = -1
HALF: Final = -2
DELAYED: Final = -3
# ENDED: in no queue, because the message was rolled back or recalled; the offset is the born timestamp of
# the latest attempt. LATEST: only in images; adds the same offset to the entry of a deferred message.
ENDED: Final = -4
LATEST: Final = -5

_ID = struct.Struct(">16s16sqiqq")  # id, content, born, queue id, queue offset, stamp
_FIRST_ID = struct.Struct(">16siqq")  # id, queue id, queue offset, stamp
ID_SIZE: Final = _ID.size
FIRST_ID_SIZE: Final = _FIRST_ID.size
_TOPIC_SIZE, _DIGEST_SIZE = 6, 16
_KEY_SIZE = _DIGEST_SIZE + CONTENT_DIGEST_SIZE
_NO_CONTENT = bytes(CONTENT_DIGEST_SIZE)
_NEVER_BORN = -1
_BORN = _STAMP = struct.Struct(">q")
_QUEUE_ID = struct.Struct(">i")
_SEND_SIZE = _KEY_SIZE + _BORN.size  # id, content, born


class Position(NamedTuple):
    """The position of a stored message. For negative queue ids, see the constants above."""

    queue_id: int
    queue_offset: int


class DuplicateFilter:
    """The identities of stored messages, packed as in the image, in the order of stamps.

    A program may send the same object again much later. This is another message, with the same id and
    content.

    Stamps are cluster time without its steps, so that ids age only while the cluster runs. Entries of 0.1.0
    have no content and no born timestamp.
    """

    def __init__(self, image: bytes = b"", steps_ms: int = 0) -> None:
        """Load a filter from the result of `save`. Raises ValueError if the size of the data is invalid."""
        if len(image) % _ID.size:
            raise ValueError(f"the image of ids is {len(image)} bytes long, not a multiple of {_ID.size}")
        self.steps_ms = steps_ms  # total steps of cluster time
        # Replaced and removed entries stay here until they are evicted.
        self._order: deque[bytes] = deque()
        # By id and content: an entry, or several in the order of born timestamps.
        self._by_key: dict[bytes, bytes | list[bytes]] = {}
        self._count = 0
        self._deferred: dict[int, bytes] = {}  # by number
        #: By id and born timestamp: an entry, or several that differ in content.
        self._halves: dict[bytes, bytes | tuple[bytes, ...]] = {}
        # Born timestamp of the latest attempt that repeated a deferred message, by id, content and born.
        self._latest: dict[bytes, int] = {}
        self._of_topic = Counter[bytes]()
        for at in range(0, len(image), _ID.size):
            packed = image[at : at + _ID.size]
            (queue_id,) = _QUEUE_ID.unpack_from(packed, _SEND_SIZE)
            if queue_id == LATEST:
                self._latest[packed[:_SEND_SIZE]] = _ID.unpack(packed)[4]
            else:
                self._add(packed)

    @classmethod
    def of_first_version(cls, image: bytes) -> DuplicateFilter:
        """Load the ids of an image of 0.1.0. Raises ValueError if the size of the data is invalid."""
        found = cls()
        if len(image) % _FIRST_ID.size:
            raise ValueError(f"the image of ids has an invalid length of {len(image)} bytes")
        for digest, *place, stamp_ms in _FIRST_ID.iter_unpack(image):
            found._add(_ID.pack(digest, _NO_CONTENT, _NEVER_BORN, *place, stamp_ms))
        return found

    def __len__(self) -> int:
        return self._count

    def find(self, identity: SendIdentity, now_ms: int, span_ms: int, steps_ms: int = 0) -> Position | None:
        """Return the position of the message that this send repeats, or None. If there are several, return
        the one with the nearest born timestamp. The queue id ENDED means that this is a late attempt of a
        send whose message was rolled back or recalled.

        `now_ms` is cluster time, and `steps_ms` the total of its steps. `span_ms`: maximum difference between
        the born timestamps of two attempts of one send.
        """
        oldest_ms = now_ms - max(steps_ms, self.steps_ms) - MAX_AGE_MS
        wanted_ms, nearest, nearest_ms = identity.born_ms, None, span_ms + 1
        ended: Position | None = None
        entries = self._under(identity.key)
        for at in range(bisect_left(entries, wanted_ms - span_ms, key=_born_ms), len(entries)):
            _, _, born_ms, queue_id, queue_offset, stamp_ms = _ID.unpack(entries[at])
            if born_ms > wanted_ms + span_ms:
                break
            if stamp_ms < oldest_ms:
                continue
            if queue_id == ENDED:
                ended = Position(queue_id, queue_offset) if wanted_ms <= queue_offset else ended
            elif abs(born_ms - wanted_ms) < nearest_ms:
                nearest, nearest_ms = Position(queue_id, queue_offset), abs(born_ms - wanted_ms)
        if nearest is not None or ended is not None:
            return nearest or ended
        for packed in self._under(identity.id_digest + _NO_CONTENT):
            *_, queue_id, queue_offset, stamp_ms = _ID.unpack(packed)
            if stamp_ms >= oldest_ms:
                return Position(queue_id, queue_offset)
        return None

    def put(self, identity: SendIdentity, queue_id: int, queue_offset: int, stamp_ms: int) -> int:
        """Record a stored message. Return the number of ids evicted before their maximum age."""
        aged_ms = stamp_ms - self.steps_ms
        oldest_ms = aged_ms - MAX_AGE_MS
        left = self._add(_ID.pack(*identity, queue_id, queue_offset, aged_ms))
        early = sum(_stamp_ms(packed) >= oldest_ms for packed in left)
        return early + self._evict(MAX_IDS, oldest_ms)

    def put_first(self, digest: bytes, queue_id: int, queue_offset: int, stamp_ms: int) -> None:
        """Record a message by its id alone, as 0.1.0 did."""
        aged_ms = stamp_ms - self.steps_ms
        self._add(_ID.pack(digest, _NO_CONTENT, _NEVER_BORN, queue_id, queue_offset, aged_ms))
        self._evict(FIRST_MAX_IDS, aged_ms - FIRST_MAX_AGE_MS)

    def half_offsets(self, id_digest: bytes, born_ms: int) -> list[int]:
        """Return the offsets at which half messages with this id and born timestamp were first stored in the
        classic store.
        """
        return [_ID.unpack(packed)[4] for packed in self._halves_under(id_digest + _BORN.pack(born_ms))]

    def latest_attempt(self, key: bytes, position: Position) -> int | None:
        """Return the born timestamp of the latest recorded attempt of a send, or None if it has no entry at
        this position. `key`: see `SendIdentity`.
        """
        packed = self._at(key, position)
        return None if packed is None else self._latest_ms(packed)

    def record_attempt(self, identity: SendIdentity, position: Position) -> bool:
        """Record that an attempt repeated the message at this position, so that it is not a new message after
        that one has ended. Return False if there is no such entry.
        """
        packed = self._at(identity.key, position)
        if packed is None:
            return False
        if identity.born_ms > self._latest_ms(packed):
            self._latest[packed[:_SEND_SIZE]] = identity.born_ms
        return True

    def end_half(self, id_digest: bytes, born_ms: int, queue_offset: int, stamp_ms: int) -> None:
        """Mark a half message in the classic store as ended after a rollback or the last check."""
        for packed in self._halves_under(id_digest + _BORN.pack(born_ms)):
            if _ID.unpack(packed)[4] == queue_offset:
                self._end(packed, stamp_ms)
        for packed in self._under(id_digest + _NO_CONTENT):
            self._remove(packed)

    def end_deferred(self, number: int, stamp_ms: int) -> None:
        """Mark a deferred message as ended without being stored in a queue."""
        if (packed := self._deferred.get(number)) is not None:
            self._end(packed, stamp_ms)

    def time_stepped(self, steps_ms: int) -> None:
        """Update the total of the steps of cluster time. Ids do not age during these steps."""
        self.steps_ms = max(self.steps_ms, steps_ms)

    def without(self, topic_digest: bytes) -> DuplicateFilter:
        """Return a filter without the entries of a topic."""
        if topic_digest not in self._of_topic:
            return self
        kept = [packed for packed in self._records() if not packed.startswith(topic_digest)]
        return DuplicateFilter(b"".join(kept), self.steps_ms)

    def save(self) -> bytes:
        return b"".join(self._records())

    # -- internal ----------------------------------------------------------------------------------------

    def _records(self) -> Iterator[bytes]:
        """Iterate over the records of an image."""
        yield from self._live()
        for send, born_ms in self._latest.items():
            yield send + _QUEUE_ID.pack(LATEST) + _BORN.pack(born_ms) + _STAMP.pack(0)

    def _live(self) -> Iterator[bytes]:
        if len(self._order) == self._count:
            return iter(self._order)
        return (packed for packed in self._order if self._is_live(packed))

    def _is_live(self, packed: bytes) -> bool:
        return self._born_with(packed) is packed

    def _under(self, key: bytes) -> list[bytes]:
        """Return the entries with this id and content. The caller must not change the list."""
        found = self._by_key.get(key, [])
        return found if isinstance(found, list) else [found]

    def _at(self, key: bytes, position: Position) -> bytes | None:
        """Return the entry with this id, content and position."""
        return next((packed for packed in self._under(key) if _ID.unpack(packed)[3:5] == position), None)

    def _latest_ms(self, packed: bytes) -> int:
        return self._latest.get(packed[:_SEND_SIZE], _born_ms(packed))

    def _end(self, packed: bytes, stamp_ms: int) -> None:
        latest_ms = self._latest_ms(packed)
        self._remove(packed)
        self._add(
            packed[:_SEND_SIZE]
            + _QUEUE_ID.pack(ENDED)
            + _BORN.pack(latest_ms)
            + _STAMP.pack(stamp_ms - self.steps_ms)
        )

    def _halves_under(self, half: bytes) -> tuple[bytes, ...]:
        found = self._halves.get(half, ())
        return found if isinstance(found, tuple) else (found,)

    def _born_with(self, packed: bytes) -> bytes | None:
        """Return the entry with the same id, content and born timestamp."""
        entries, born_ms = self._under(packed[:_KEY_SIZE]), _born_ms(packed)
        at = bisect_left(entries, born_ms, key=_born_ms)
        return entries[at] if at < len(entries) and _born_ms(entries[at]) == born_ms else None

    def _add(self, packed: bytes) -> list[bytes]:
        """Add an entry.

        Return the entries that were evicted because too many have the same id and content.
        """
        key, topic = packed[:_KEY_SIZE], packed[:_TOPIC_SIZE]
        if (before := self._born_with(packed)) is not None:
            self._remove(before)
        left = self._make_room(packed)
        others = self._by_key.get(key)
        if others is None:
            self._by_key[key] = packed
        elif isinstance(others, list):
            insort(others, packed, key=_born_ms)
        else:
            self._by_key[key] = sorted((others, packed), key=_born_ms)
        self._count += 1
        self._order.append(packed)
        self._of_topic[topic] += 1
        _, content, _, queue_id, queue_offset, _ = _ID.unpack(packed)
        if content == _NO_CONTENT:
            return left
        if queue_id == DEFERRED:
            self._deferred[queue_offset] = packed
        elif queue_id == HALF:
            half = _half_key(packed)
            self._halves[half] = (*self._halves_under(half), packed) if half in self._halves else packed
        return left

    def _make_room(self, packed: bytes) -> list[bytes]:
        """Remove the oldest entries that exceed MAX_ALIKE, and return them."""
        removed = []
        alike = self._under(packed[:_KEY_SIZE])
        if len(alike) >= MAX_ALIKE:
            removed.append(min(alike, key=_stamp_ms))
            self._remove(removed[-1])
        if _ID.unpack(packed)[3] == HALF:
            halves = self._halves_under(_half_key(packed))
            if len(halves) >= MAX_ALIKE:
                removed.append(min(halves, key=_stamp_ms))
                self._remove(removed[-1])
        return removed

    def _remove(self, packed: bytes) -> None:
        """Remove an entry from the indexes, but not from `_order`."""
        key, topic = packed[:_KEY_SIZE], packed[:_TOPIC_SIZE]
        entries = self._by_key[key]
        if not isinstance(entries, list):
            del self._by_key[key]
        else:
            del entries[bisect_left(entries, _born_ms(packed), key=_born_ms)]
            if len(entries) == 1:
                self._by_key[key] = entries[0]
        self._latest.pop(packed[:_SEND_SIZE], None)
        self._count -= 1
        self._of_topic[topic] -= 1
        if not self._of_topic[topic]:
            del self._of_topic[topic]
        _, content, _, queue_id, queue_offset, _ = _ID.unpack(packed)
        if queue_id == DEFERRED and self._deferred.get(queue_offset) is packed:
            del self._deferred[queue_offset]
        if queue_id == HALF and content != _NO_CONTENT:
            half = _half_key(packed)
            others = tuple(one for one in self._halves_under(half) if one is not packed)
            if others:
                self._halves[half] = others
            else:
                del self._halves[half]

    def _evict(self, limit: int, oldest_ms: int) -> int:
        early = 0
        order = self._order
        while order:
            first = order[0]
            is_live = self._is_live(first)
            is_old = _stamp_ms(first) < oldest_ms
            if is_live and not is_old and self._count <= limit:
                break
            order.popleft()
            if is_live:
                self._remove(first)
                early += not is_old
        return early


def _half_key(packed: bytes) -> bytes:
    return packed[:_DIGEST_SIZE] + packed[_KEY_SIZE:_SEND_SIZE]


def _born_ms(packed: bytes) -> int:
    (born_ms,) = _BORN.unpack_from(packed, _KEY_SIZE)
    return int(born_ms)


def _stamp_ms(packed: bytes) -> int:
    (stamp_ms,) = _STAMP.unpack_from(packed, _ID.size - _STAMP.size)
    return int(stamp_ms)
