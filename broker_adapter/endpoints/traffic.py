"""Counts messages stored and delivered since the node started. Runs on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar


class Sum(NamedTuple):
    """A sum of `amount` over `events` within `span_s` seconds."""

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
    """A sliding window over the last `buckets` * `width_s` seconds, including the current, partial bucket."""

    __slots__ = ("_amounts", "_begin_s", "_events", "_newest", "_width_s")

    def __init__(self, now_s: float, width_s: int, buckets: int) -> None:
        self._width_s = width_s
        self._amounts = [0] * buckets
        self._events = [0] * buckets
        self._begin_s = now_s
        self._newest = int(now_s // width_s)

    def add(self, now_s: float, amount: int, events: int = 1) -> None:
        self._advance_to(now_s)
        at = self._newest % len(self._amounts)
        self._amounts[at] += amount
        self._events[at] += events

    def sum(self, now_s: float) -> Sum:
        """Return the sum over the window.

        The span starts with the window, or with the creation of this object if that is later.
        """
        self._advance_to(now_s)
        count = len(self._amounts)
        begin_s = max(self._begin_s, (self._newest - count + 1) * self._width_s)
        return Sum(sum(self._amounts), sum(self._events), max(1.0, now_s - begin_s))

    def _advance_to(self, now_s: float) -> None:
        """Advance to the current bucket.

        If the clock is set back, the newest bucket remains current.
        """
        newest = int(now_s // self._width_s)
        count = len(self._amounts)
        for number in range(max(self._newest + 1, newest - count + 1), newest + 1):
            self._amounts[number % count] = self._events[number % count] = 0
        self._newest = max(self._newest, newest)


K = TypeVar("K")

#: Maximum number of topics and groups with counters. The most recently used ones are kept.
_MOST_COUNTED: Final = 10_000


class StatsName(StrEnum):
    """RocketMQ's names of statistics. A key is a topic, topic@group, or the name of the cluster."""

    TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
    TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
    GROUP_GET_NUMS = "GROUP_GET_NUMS"
    GROUP_GET_SIZE = "GROUP_GET_SIZE"
    BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
    BROKER_GET_NUMS = "BROKER_GET_NUMS"


class Sums(NamedTuple):
    """The sums over the last minute, hour and day."""

    minute: Sum
    hour: Sum
    day: Sum


class Rates(NamedTuple):
    """Messages per second over the last 10 seconds, minute and 10 minutes."""

    ten_s: float
    minute: float
    ten_minutes: float


class Totals(NamedTuple):
    """Totals since the node started.

    `by_morning`: messages up to the last midnight, accurate to one second. `by_yesterday`: messages up to the
    midnight before that.
    """

    messages: int = 0
    size: int = 0  # bytes of records
    calls: int = 0
    by_morning: int = 0
    by_yesterday: int = 0


class _WindowedCounter:
    """A counter for one key.

    Counts are added to the windows once per second, because their buckets are whole seconds. Otherwise each
    message would update up to eleven windows.
    """

    __slots__ = ("_amount", "_events", "_second", "_windows")

    def __init__(self, now_s: float, *others: Window) -> None:
        """`others`: windows in addition to the last minute, hour and day."""
        self._windows = (Window(now_s, 10, 6), Window(now_s, 600, 6), Window(now_s, 3_600, 24), *others)
        self._second = int(now_s)
        self._amount = self._events = 0

    def add(self, second: int, amount: int) -> None:
        if second != self._second:
            self._fill_windows()
            self._second = second
        self._amount += amount
        self._events += 1

    def sums(self, now_s: float) -> Sums:
        self._fill_windows()
        minute, hour, day, *_ = self._windows
        return Sums(minute.sum(now_s), hour.sum(now_s), day.sum(now_s))

    def _fill_windows(self) -> None:
        """Add the counts since the last call to the windows."""
        if self._events:
            for window in self._windows:
                window.add(self._second, self._amount, self._events)
            self._amount = self._events = 0


class _TrafficCounter:
    """Message and byte counts of one key."""

    __slots__ = ("messages", "size")

    def __init__(self, now_s: float) -> None:
        self.messages, self.size = _WindowedCounter(now_s), _WindowedCounter(now_s)

    def add(self, second: int, messages: int, size: int) -> None:
        self.messages.add(second, messages)
        self.size.add(second, size)


class _NodeTraffic:
    """Counts of the whole node in one direction."""

    def __init__(self, now_s: float, day: int) -> None:
        self._day = day
        self._messages = self._size = self._calls = self._by_morning = self._by_yesterday = 0
        self._ten_s, self._ten_minutes = Window(now_s, 1, 10), Window(now_s, 60, 10)
        self.counted = _WindowedCounter(now_s, self._ten_s, self._ten_minutes)

    def totals(self, day: int) -> Totals:
        self._advance_to(day)
        return Totals(self._messages, self._size, self._calls, self._by_morning, self._by_yesterday)

    def add(self, second: int, day: int, messages: int, size: int) -> None:
        if day != self._day:
            self._advance_to(day)
        self._messages += messages
        self._size += size
        self._calls += 1
        self.counted.add(second, messages)

    def _advance_to(self, day: int) -> None:
        """Start a new day. Days without any call are included.

        A clock that is set back across midnight does not start a new day.
        """
        days = day - self._day
        if days > 0:
            self._by_yesterday = self._by_morning if days == 1 else self._messages
            self._by_morning = self._messages
        if days not in (0, -1):
            self._day = day

    def rates(self, now_s: float) -> Rates:
        minute = self.counted.sums(now_s).minute
        return Rates(
            self._ten_s.sum(now_s).per_second,
            minute.per_second,
            self._ten_minutes.sum(now_s).per_second,
        )


class Traffic:
    """Traffic counters of the node.

    `now_s`: a monotonic clock; `day`: a number that changes at midnight.
    """

    def __init__(
        self, now_s: Callable[[], float], day: Callable[[], int], *, most: int = _MOST_COUNTED
    ) -> None:
        self._now_s = now_s
        self._today = day
        self._most = most
        self._second, self._day = int(now_s()), day()
        self._put, self._given = _NodeTraffic(now_s(), day()), _NodeTraffic(now_s(), day())
        self._topics: dict[str, _TrafficCounter] = {}
        self._groups: dict[tuple[str, str], _TrafficCounter] = {}  # by topic and group

    def put(self, topic: str, messages: int, size: int) -> None:
        """Count the messages of one put. `size`: total bytes of their records."""
        now_s = self._now_s()
        second = self._second_of(now_s)
        self._put.add(second, self._day, messages, size)
        self._of(self._topics, topic, now_s).add(second, messages, size)

    def given(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count the messages that one call delivered to a consumer.

        `group` is "" if the consumer has no group.
        """
        now_s = self._now_s()
        second = self._second_of(now_s)
        self._given.add(second, self._day, messages, size)
        if group:
            self._of(self._groups, (topic, group), now_s).add(second, messages, size)

    @property
    def put_totals(self) -> Totals:
        return self._put.totals(self._today())

    @property
    def given_totals(self) -> Totals:
        return self._given.totals(self._today())

    def put_rates(self) -> Rates:
        return self._put.rates(self._now_s())

    def given_rates(self) -> Rates:
        return self._given.rates(self._now_s())

    def given_to(self, group: str, topic: str) -> float:
        """Return the messages per second over the last minute."""
        found = self._groups.get((topic, group))
        return 0.0 if found is None else found.messages.sums(self._now_s()).minute.per_second

    def sums(self, name: str, key: str) -> Sums | None:
        """Return the sums of a statistic, or None if its name is unknown or nothing was counted for the key.

        The key is ignored for BROKER_* statistics.
        """
        found: _TrafficCounter | None = None
        match name:
            case StatsName.BROKER_PUT_NUMS:
                return self._put.counted.sums(self._now_s())
            case StatsName.BROKER_GET_NUMS:
                return self._given.counted.sums(self._now_s())
            case StatsName.TOPIC_PUT_NUMS | StatsName.TOPIC_PUT_SIZE:
                found = self._topics.get(key)
            case StatsName.GROUP_GET_NUMS | StatsName.GROUP_GET_SIZE:
                topic, _, group = key.partition("@")
                found = self._groups.get((topic, group))
        if found is None:
            return None
        is_size = name in (StatsName.TOPIC_PUT_SIZE, StatsName.GROUP_GET_SIZE)
        return (found.size if is_size else found.messages).sums(self._now_s())

    def _second_of(self, now_s: float) -> int:
        """Return the current second.

        Updates the day once per second, because a calendar lookup costs more than counting a message.
        """
        second = int(now_s)
        if second != self._second:
            self._second, self._day = second, self._today()
        return second

    def _of(self, table: dict[K, _TrafficCounter], key: K, now_s: float) -> _TrafficCounter:
        found = table.pop(key, None) or _TrafficCounter(now_s)
        table[key] = found  # now the most recently used
        if len(table) > self._most:
            del table[next(iter(table))]
        return found
