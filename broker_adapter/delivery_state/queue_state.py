"""The delivery state of one queue in one group: a cursor and the pending messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from broker_adapter.delivery_state.commands import QueueKey

# Outdated times stay in the heap until they outnumber the messages by this number.
_SLACK = 64
# Offsets per segment (a power of two). Pending messages are encoded in segments, so that only changed
# segments are encoded again.
SEGMENT = 256
_SEGMENT_BITS = 8

_COUNT = Struct(">I")
_TEXT = Struct(">H")
PENDING = Struct(">qqqiII?q")
_until = itemgetter(1)


class PoppedMessage(NamedTuple):
    """A pending message, delivered to `owner` and visible again at `invisible_until_ms`.

    Times are cluster time without its steps.
    """

    pop: int
    invisible_until_ms: int
    attempts: int  # number of deliveries
    owner: str  # the client
    attempt_id: str  # attempt id of the call, "" without one
    renews: bool
    given_ms: int  # bounds renewals


class QueueDelivery:
    """The state of one queue.

    Offsets below `cursor` that are not pending are done. Only `put` and `remove` change `pending`.
    """

    __slots__ = (
        "_by_attempt",
        "_by_owner",
        "_encoded",
        "_latest_ms",
        "_members",
        "_times",
        "cursor",
        "key",
        "pending",
    )

    def __init__(self, key: QueueKey, cursor: int) -> None:
        self.key = key
        self.cursor = cursor
        self.pending: dict[int, PoppedMessage] = {}
        self._times: list[tuple[int, int]] = []  # a heap of (until, offset), including outdated entries
        # Dicts and not sets, because the order must be the same in every process.
        self._by_owner: dict[str, dict[int, None]] = {}
        self._by_attempt: dict[str, dict[int, None]] = {}
        self._latest_ms: int | None = None  # the latest of all times; None: unknown, or no messages
        self._members: dict[int, int] = {}  # pending messages per segment
        self._encoded: dict[int, bytes] = {}  # unchanged segments

    @property
    def least(self) -> int:
        """The first offset that is not done."""
        return min(self.cursor, min(self.pending, default=self.cursor))

    @property
    def owners(self) -> Collection[str]:
        """The clients with popped messages in this queue."""
        return self._by_owner.keys()

    def popped_by(self, owner: str) -> list[int]:
        """Return the offsets of the messages that a client has popped."""
        return list(self._by_owner.get(owner, ()))

    def popped_in_attempt(self, attempt_id: str) -> list[int]:
        """Return the offsets of the messages that an attempt has popped, sorted."""
        return sorted(self._by_attempt.get(attempt_id, ()))

    def put(self, offset: int, popped: PoppedMessage) -> None:
        """Add or replace a pending message."""
        before = self.pending.get(offset)
        if before is not None:
            self.remove(offset)
        self.pending[offset] = popped
        self._by_owner.setdefault(popped.owner, {})[offset] = None
        if popped.attempt_id:
            self._by_attempt.setdefault(popped.attempt_id, {})[offset] = None
        segment = offset >> _SEGMENT_BITS
        self._members[segment] = self._members.get(segment, 0) + 1
        self._encoded.pop(segment, None)
        if self._latest_ms is not None:
            self._latest_ms = max(self._latest_ms, popped.invisible_until_ms)
        heappush(self._times, (popped.invisible_until_ms, offset))
        if len(self._times) > 2 * len(self.pending) + _SLACK:
            self._times = [(one.invisible_until_ms, at) for at, one in self.pending.items()]
            heapify(self._times)

    def remove(self, offset: int) -> None:
        popped = self.pending.pop(offset)
        _discard(self._by_owner, popped.owner, offset)
        if popped.attempt_id:
            _discard(self._by_attempt, popped.attempt_id, offset)
        segment = offset >> _SEGMENT_BITS
        self._encoded.pop(segment, None)
        self._members[segment] -= 1
        if not self._members[segment]:
            del self._members[segment]
        if popped.invisible_until_ms == self._latest_ms:
            self._latest_ms = None

    def latest_expiry(self) -> int | None:
        """Return the time at which the last pending message becomes visible, or None if no message is
        pending.
        """
        if self._latest_ms is None:
            self._latest_ms = max(map(_until, self.pending.values()), default=None)
        return self._latest_ms

    def has_invisible(self, now_ms: int) -> bool:
        """True if a message is invisible."""
        latest_ms = self.latest_expiry()
        return latest_ms is not None and latest_ms > now_ms

    def next_expiry(self) -> int | None:
        """Return the time at which the first pending message becomes visible, or None if no message is
        pending.
        """
        times = self._times
        while times and not self._is_current(times[0]):
            heappop(times)
        return times[0][0] if times else None

    def expired(
        self, now_ms: int, most: int, without: Collection[int] = ()
    ) -> list[tuple[int, PoppedMessage]]:
        """Return up to `most` visible messages, in the order in which they became visible."""
        found: list[tuple[int, PoppedMessage]] = []
        seen: dict[tuple[int, int], None] = {}
        while len(found) < most:
            expiry = self.next_expiry()
            if expiry is None or expiry > now_ms:
                break
            entry = heappop(self._times)
            if entry not in seen and entry[1] not in without:
                found.append((entry[1], self.pending[entry[1]]))
            seen[entry] = None
        for entry in seen:
            heappush(self._times, entry)
        return found

    def encoded(self) -> Iterator[bytes]:
        """Encode the pending messages by offset, in segments. Encodes only changed segments again.

        4    number of texts, and of each: 2+n
        4    number of messages, and of each: offset 8, pop 8, until 8, attempts 4, owner 4, attempt id 4
             (places of texts), renews 1, given 8
        """
        for segment in sorted(self._members):
            found = self._encoded.get(segment)
            if found is None:
                found = self._encoded[segment] = self._encode(segment << _SEGMENT_BITS)
            yield found

    def _encode(self, first: int) -> bytes:
        texts: dict[str, int] = {}
        place, pack, get = texts.setdefault, PENDING.pack, self.pending.get
        messages = []
        for offset in range(first, first + SEGMENT):
            popped = get(offset)
            if popped is not None:
                pop, invisible_until_ms, attempts, owner, attempt, renews, given_ms = popped
                at, attempt_at = place(owner, len(texts)), place(attempt, len(texts))
                messages.append(
                    pack(offset, pop, invisible_until_ms, attempts, at, attempt_at, renews, given_ms)
                )
        raw = [text.encode() for text in texts]
        names = [_TEXT.pack(len(one)) + one for one in raw]
        return b"".join((_COUNT.pack(len(raw)), *names, _COUNT.pack(len(messages)), *messages))

    def _is_current(self, entry: tuple[int, int]) -> bool:
        popped = self.pending.get(entry[1])
        return popped is not None and popped.invisible_until_ms == entry[0]


def _discard(index: dict[str, dict[int, None]], name: str, offset: int) -> None:
    offsets = index[name]
    del offsets[offset]
    if not offsets:
        del index[name]
