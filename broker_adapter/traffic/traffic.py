"""What a node has stored and given out since it was started. On the event loop."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from broker_adapter.traffic.window import Sum, Window

K = TypeVar("K")

#: Topics and groups that are counted one by one; those that were used last stay.
_MOST_COUNTED: Final = 10_000


class StatsName(StrEnum):
    """As RocketMQ calls them. Keys are a topic, topic@group, or the name of the cluster."""

    TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
    TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
    GROUP_GET_NUMS = "GROUP_GET_NUMS"
    GROUP_GET_SIZE = "GROUP_GET_SIZE"
    BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
    BROKER_GET_NUMS = "BROKER_GET_NUMS"


class Sums(NamedTuple):
    """Over the last minute, hour and day."""

    minute: Sum
    hour: Sum
    day: Sum


class Rates(NamedTuple):
    """Messages a second over the last 10 seconds, minute and 10 minutes."""

    ten_s: float
    minute: float
    ten_minutes: float


class Totals(NamedTuple):
    """Since the start of the node. `by_morning`: messages until the last midnight; `by_yesterday`: until
    the one before it."""

    messages: int = 0
    size: int = 0  # bytes of records
    calls: int = 0
    by_morning: int = 0
    by_yesterday: int = 0


class _Counted:
    """One kind of thing of one key."""

    __slots__ = ("_day", "_hour", "_minute")

    def __init__(self, now_s: float) -> None:
        self._minute, self._hour, self._day = (
            Window(now_s, 10, 6),
            Window(now_s, 600, 6),
            Window(now_s, 3_600, 24),
        )

    def add(self, now_s: float, amount: int) -> None:
        self._minute.add(now_s, amount)
        self._hour.add(now_s, amount)
        self._day.add(now_s, amount)

    def sums(self, now_s: float) -> Sums:
        return Sums(self._minute.sum(now_s), self._hour.sum(now_s), self._day.sum(now_s))


class _Both:
    """Messages and bytes of one key."""

    __slots__ = ("messages", "size")

    def __init__(self, now_s: float) -> None:
        self.messages, self.size = _Counted(now_s), _Counted(now_s)

    def add(self, now_s: float, messages: int, size: int) -> None:
        self.messages.add(now_s, messages)
        self.size.add(now_s, size)


class _Whole:
    """Of the whole node, one direction."""

    def __init__(self, now_s: float, day: int) -> None:
        self._totals, self._day = Totals(), day
        self.counted = _Counted(now_s)
        self._ten_s, self._ten_minutes = Window(now_s, 1, 10), Window(now_s, 60, 10)

    def totals(self, day: int) -> Totals:
        """Nobody may have asked for days. A clock that goes back over midnight begins no day anew."""
        before, days = self._totals, day - self._day
        if days > 0:
            yesterday = before.by_morning if days == 1 else before.messages
            self._totals = before._replace(by_morning=before.messages, by_yesterday=yesterday)
        if days not in (0, -1):
            self._day = day
        return self._totals

    def add(self, now_s: float, day: int, messages: int, size: int) -> None:
        before = self.totals(day)
        self._totals = before._replace(
            messages=before.messages + messages, size=before.size + size, calls=before.calls + 1
        )
        self.counted.add(now_s, messages)
        self._ten_s.add(now_s, messages)
        self._ten_minutes.add(now_s, messages)

    def rates(self, now_s: float) -> Rates:
        return Rates(
            self._ten_s.sum(now_s).per_second,
            self.counted.sums(now_s).minute.per_second,
            self._ten_minutes.sum(now_s).per_second,
        )


class Traffic:
    """`now_s`: a clock that never goes back; `day`: a number that changes at midnight."""

    def __init__(
        self, now_s: Callable[[], float], day: Callable[[], int], *, most: int = _MOST_COUNTED
    ) -> None:
        self._now_s = now_s
        self._today = day
        self._most = most
        self._put, self._given = _Whole(now_s(), day()), _Whole(now_s(), day())
        self._topics: dict[str, _Both] = {}
        self._groups: dict[tuple[str, str], _Both] = {}  # by topic and group

    def put(self, topic: str, messages: int, size: int) -> None:
        """Stored: of this topic, in one put, so many bytes of records."""
        now_s = self._now_s()
        self._put.add(now_s, self._today(), messages, size)
        self._of(self._topics, topic, now_s).add(now_s, messages, size)

    def given(self, group: str, topic: str, messages: int, size: int) -> None:
        """Given to a consumer of a group ("": of none) by one call."""
        now_s = self._now_s()
        self._given.add(now_s, self._today(), messages, size)
        if group:
            self._of(self._groups, (topic, group), now_s).add(now_s, messages, size)

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
        """Messages a second, over the last minute."""
        found = self._groups.get((topic, group))
        return 0.0 if found is None else found.messages.sums(self._now_s()).minute.per_second

    def sums(self, name: str, key: str) -> Sums | None:
        """None: nothing of it was counted, or there is no such name. The key of BROKER_* does not matter."""
        found: _Both | None = None
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

    def _of(self, table: dict[K, _Both], key: K, now_s: float) -> _Both:
        found = table.pop(key, None) or _Both(now_s)
        table[key] = found  # the last one now
        if len(table) > self._most:
            del table[next(iter(table))]
        return found
