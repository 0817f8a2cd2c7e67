"""Sums over the last seconds, minutes, hours. Pure: time is handed in."""

from __future__ import annotations

from typing import NamedTuple


class Sum(NamedTuple):
    """`amount` of so many `events` within `span_s` seconds."""

    amount: int = 0
    events: int = 0
    span_s: float = 1.0

    @property
    def per_second(self) -> float:
        return self.amount / self.span_s

    @property
    def per_event(self) -> float:
        return self.amount / self.events if self.events else 0.0


class Window:
    """The last `buckets` times `width_s` seconds; the bucket that is being filled counts for what it has."""

    __slots__ = ("_amounts", "_begin_s", "_events", "_newest", "_width_s")

    def __init__(self, now_s: float, width_s: int, buckets: int) -> None:
        self._width_s = width_s
        self._amounts = [0] * buckets
        self._events = [0] * buckets
        self._begin_s = now_s
        self._newest = int(now_s // width_s)

    def add(self, now_s: float, amount: int, events: int = 1) -> None:
        self._turn_to(now_s)
        at = self._newest % len(self._amounts)
        self._amounts[at] += amount
        self._events[at] += events

    def sum(self, now_s: float) -> Sum:
        """What was before the first event of all is no part of the span."""
        self._turn_to(now_s)
        count = len(self._amounts)
        begin_s = max(self._begin_s, (self._newest - count + 1) * self._width_s)
        return Sum(sum(self._amounts), sum(self._events), max(1.0, now_s - begin_s))

    def _turn_to(self, now_s: float) -> None:
        """Time that goes back counts for the newest bucket."""
        newest = int(now_s // self._width_s)
        count = len(self._amounts)
        for number in range(max(self._newest + 1, newest - count + 1), newest + 1):
            self._amounts[number % count] = self._events[number % count] = 0
        self._newest = max(self._newest, newest)
