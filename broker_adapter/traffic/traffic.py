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
    """Since the start of the node. `by_morning`: messages until the last midnight, to a second;
    `by_yesterday`: until the one before it."""

    messages: int = 0
    size: int = 0  # bytes of records
    calls: int = 0
    by_morning: int = 0
    by_yesterday: int = 0


class _Counted:
    """One kind of thing of one key. What comes within a second is summed up before windows get it: they are
    whole seconds wide, and a message is counted in up to eleven of them."""

    __slots__ = ("_amount", "_events", "_second", "_windows")

    def __init__(self, now_s: float, *others: Window) -> None:
        """`others`: windows beside those of the last minute, hour and day."""
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
        """With what has come since they were filled."""
        if self._events:
            for window in self._windows:
                window.add(self._second, self._amount, self._events)
            self._amount = self._events = 0


class _Both:
    """Messages and bytes of one key."""

    __slots__ = ("messages", "size")

    def __init__(self, now_s: float) -> None:
        self.messages, self.size = _Counted(now_s), _Counted(now_s)

    def add(self, second: int, messages: int, size: int) -> None:
        self.messages.add(second, messages)
        self.size.add(second, size)


class _Whole:
    """Of the whole node, one direction."""

    def __init__(self, now_s: float, day: int) -> None:
        self._day = day
        self._messages = self._size = self._calls = self._by_morning = self._by_yesterday = 0
        self._ten_s, self._ten_minutes = Window(now_s, 1, 10), Window(now_s, 60, 10)
        self.counted = _Counted(now_s, self._ten_s, self._ten_minutes)

    def totals(self, day: int) -> Totals:
        self._turn_to(day)
        return Totals(self._messages, self._size, self._calls, self._by_morning, self._by_yesterday)

    def add(self, second: int, day: int, messages: int, size: int) -> None:
        if day != self._day:
            self._turn_to(day)
        self._messages += messages
        self._size += size
        self._calls += 1
        self.counted.add(second, messages)

    def _turn_to(self, day: int) -> None:
        """Nobody may have asked for days. A clock that goes back over midnight begins no day anew."""
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
    """`now_s`: a clock that never goes back; `day`: a number that changes at midnight."""

    def __init__(
        self, now_s: Callable[[], float], day: Callable[[], int], *, most: int = _MOST_COUNTED
    ) -> None:
        self._now_s = now_s
        self._today = day
        self._most = most
        self._second, self._day = int(now_s()), day()
        self._put, self._given = _Whole(now_s(), day()), _Whole(now_s(), day())
        self._topics: dict[str, _Both] = {}
        self._groups: dict[tuple[str, str], _Both] = {}  # by topic and group

    def put(self, topic: str, messages: int, size: int) -> None:
        """Stored: of this topic, in one put, so many bytes of records."""
        now_s = self._now_s()
        second = self._second_of(now_s)
        self._put.add(second, self._day, messages, size)
        self._of(self._topics, topic, now_s).add(second, messages, size)

    def given(self, group: str, topic: str, messages: int, size: int) -> None:
        """Given to a consumer of a group ("": of none) by one call."""
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

    def _second_of(self, now_s: float) -> int:
        """A calendar takes longer to be asked than all that is counted of a message: once a second."""
        second = int(now_s)
        if second != self._second:
            self._second, self._day = second, self._today()
        return second

    def _of(self, table: dict[K, _Both], key: K, now_s: float) -> _Both:
        found = table.pop(key, None) or _Both(now_s)
        table[key] = found  # the last one now
        if len(table) > self._most:
            del table[next(iter(table))]
        return found
