"""One queue as one group has consumed it: a cursor, and what was given and is not done."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from broker_adapter.delivery.commands import QueueKey

#: Times that are over are kept in the heap until there are so many more than messages.
_SLACK = 64


class Held(NamedTuple):
    """A message that was given to `owner`, and is not done. Visible again when `until_ms` is reached."""

    pop: int
    until_ms: int
    attempts: int  # how often it was given
    owner: str  # the client
    attempt_id: str  # of the call that got it, "" without one
    renews: bool
    given_ms: int  # when: renewals have an end


class QueueDelivery:
    """Offsets below `cursor` and not pending are done. `pending` is changed by `put` and `remove` alone."""

    __slots__ = ("_times", "cursor", "key", "pending")

    def __init__(self, key: QueueKey, cursor: int) -> None:
        self.key = key
        self.cursor = cursor
        self.pending: dict[int, Held] = {}
        self._times: list[tuple[int, int]] = []  # a heap of (until, offset), with some that are over

    @property
    def least(self) -> int:
        """The first offset that is not done."""
        return min(self.cursor, min(self.pending, default=self.cursor))

    def put(self, offset: int, held: Held) -> None:
        self.pending[offset] = held
        heappush(self._times, (held.until_ms, offset))
        if len(self._times) > 2 * len(self.pending) + _SLACK:
            self._times = [(one.until_ms, at) for at, one in self.pending.items()]
            heapify(self._times)

    def remove(self, offset: int) -> None:
        del self.pending[offset]

    def is_held(self, now_ms: int) -> bool:
        """Whether anything of it is invisible."""
        return any(held.until_ms > now_ms for held in self.pending.values())

    def next_expiry(self) -> int | None:
        """When the first of them becomes, or became, visible again."""
        times = self._times
        while times and not self._is_current(times[0]):
            heappop(times)
        return times[0][0] if times else None

    def expired(self, now_ms: int, most: int, without: Collection[int] = ()) -> list[tuple[int, Held]]:
        """Up to `most` that are visible again, those first that have been so for the longest."""
        found: list[tuple[int, Held]] = []
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

    def _is_current(self, entry: tuple[int, int]) -> bool:
        held = self.pending.get(entry[1])
        return held is not None and held.until_ms == entry[0]
