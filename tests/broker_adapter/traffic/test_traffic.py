"""What a node counts of messages that come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.endpoints.traffic import StatsName, Sum, Traffic, Window


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.day = 1

    def to_day(self, day: int) -> None:
        """A second later at least, as on any calendar."""
        self.now_s += 1
        self.day = day

    def traffic(self, most: int = 100) -> Traffic:
        return Traffic(lambda: self.now_s, lambda: self.day, most=most)


def test_a_window_has_what_was_added_within_it() -> None:
    window = Window(1_000, 10, 6)
    window.add(1_000, 5)
    window.add(1_009, 1)
    window.add(1_031, 3)
    assert window.sum(1_031)[:2] == (9, 3)
    assert window.sum(1_059.9)[:2] == (9, 3)
    assert window.sum(1_060)[:2] == (3, 1)
    assert window.sum(5_000)[:2] == (0, 0)
    window.add(5_000, 2)
    assert window.sum(5_000)[:2] == (2, 1)


def test_rates_are_of_the_time_that_was_watched() -> None:
    window = Window(1_000, 10, 6)
    window.add(1_002, 40)
    assert window.sum(1_004).per_second == 10
    assert Window(0, 10, 6).sum(0) == Sum()
    window.add(1_100, 30)
    assert window.sum(1_105) == Sum(30, 1, 55.0)


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(0, 100)), max_size=30))
def test_a_window_agrees_with_a_list_of_all_events(events: list[tuple[float, int]]) -> None:
    events.sort()
    window = Window(0, 7, 4)
    for at, amount in events:
        window.add(at, amount)
    last = events[-1][0] if events else 0.0
    begin = (int(last // 7) - 3) * 7
    within = [amount for at, amount in events if at >= begin]
    assert window.sum(last)[:2] == (sum(within), len(within))


def test_topics_and_groups_are_counted_one_by_one_and_together() -> None:
    clock = Clock()
    traffic = clock.traffic()
    traffic.put("t", 3, 300)
    traffic.put("u", 1, 50)
    traffic.given("g", "t", 2, 200)
    traffic.given("", "t", 1, 100)  # by nobody in particular
    found = traffic.sums(StatsName.TOPIC_PUT_NUMS, "t")
    assert found is not None
    assert found.minute.amount == found.hour.amount == found.day.amount == 3
    assert (size := traffic.sums(StatsName.TOPIC_PUT_SIZE, "t")) is not None and size.day.per_event == 300
    assert (got := traffic.sums(StatsName.GROUP_GET_NUMS, "t@g")) is not None and got.hour.amount == 2
    assert (all_put := traffic.sums(StatsName.BROKER_PUT_NUMS, "any")) is not None
    assert all_put.minute.amount == 4
    assert traffic.put_totals[:3] == (4, 350, 2)
    assert traffic.given_totals[:3] == (3, 300, 2)
    for name, key in (("TOPIC_PUT_NUMS", "x"), ("GROUP_GET_NUMS", "g@t"), ("OTHER", "t"), ("", "")):
        assert traffic.sums(name, key) is None


def test_those_that_were_used_last_stay() -> None:
    traffic = Clock().traffic(most=2)
    for topic in ("a", "b", "a", "c"):
        traffic.put(topic, 1, 1)
    assert traffic.sums(StatsName.TOPIC_PUT_NUMS, "b") is None
    assert traffic.sums(StatsName.TOPIC_PUT_NUMS, "a") is not None
    assert traffic.put_totals.messages == 4


def test_midnights_are_kept() -> None:
    clock = Clock()
    traffic = clock.traffic()
    traffic.put("t", 5, 5)
    clock.to_day(clock.day + 1)
    traffic.put("t", 2, 2)
    assert (traffic.put_totals.by_morning, traffic.put_totals.by_yesterday) == (5, 0)
    clock.to_day(clock.day + 1)
    assert (traffic.put_totals.by_morning, traffic.put_totals.by_yesterday) == (7, 5)
    assert traffic.given_totals.by_morning == 0


def test_a_day_for_which_nobody_asked_had_no_messages() -> None:
    clock = Clock()
    traffic = clock.traffic()
    traffic.put("t", 5, 500)
    clock.to_day(clock.day + 2)
    assert (traffic.put_totals.by_morning, traffic.put_totals.by_yesterday) == (5, 5)


def test_a_clock_that_goes_back_over_midnight_begins_no_day_anew() -> None:
    clock = Clock()
    traffic = clock.traffic()
    traffic.put("t", 5, 500)
    for step in (1, -1, 1):
        clock.to_day(clock.day + step)
        assert (traffic.put_totals.by_morning, traffic.put_totals.by_yesterday) == (5, 0)
    clock.to_day(clock.day - 1_000)  # it was wrong for long: days go on from there
    assert traffic.put_totals.by_morning == 5
    traffic.put("t", 2, 200)
    clock.to_day(clock.day + 1)
    assert (traffic.put_totals.by_morning, traffic.put_totals.by_yesterday) == (7, 5)


@given(st.lists(st.tuples(st.floats(0, 90), st.integers(1, 100)), min_size=1, max_size=30))
def test_what_comes_within_a_second_is_in_every_window_that_has_it(events: list[tuple[float, int]]) -> None:
    clock = Clock()
    clock.now_s = 0.0
    traffic = clock.traffic()
    minute, hour, ten_s = Window(0, 10, 6), Window(0, 600, 6), Window(0, 1, 10)
    for clock.now_s, amount in sorted(events):
        traffic.put("t", amount, 10 * amount)
        for window in (minute, hour, ten_s):
            window.add(clock.now_s, amount)
    found = traffic.sums(StatsName.TOPIC_PUT_NUMS, "t")
    assert found is not None and found.minute[:2] == minute.sum(clock.now_s)[:2]
    assert found.hour[:2] == hour.sum(clock.now_s)[:2]
    assert traffic.put_rates().ten_s == ten_s.sum(clock.now_s).per_second
    assert (size := traffic.sums(StatsName.TOPIC_PUT_SIZE, "t")) is not None
    assert size.minute.amount == 10 * found.minute.amount
