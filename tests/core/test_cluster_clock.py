"""Cluster time as a count from stamps, and the corrections that members' clocks call for. Rule 12."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest

from dledger.core.cluster_clock import ClockChange, ClusterClock, CountedTime, Stamp, slewed_ms
from dledger.core.member_clocks import (
    MAX_WALL_MS,
    ClockBounds,
    MemberClocks,
    SteadyWatch,
    bounds,
    changed_stamp,
    correction,
)
from dledger.core.messages import HeartbeatResponse
from dledger.core.values import Membership

DAY_MS = 86_400_000
T = 1_700_000_000_000
THREE = Membership(("a", "b", "c"))


def stamped(*stamps: Stamp) -> ClusterClock:
    clock = ClusterClock()
    for index, stamp in enumerate(stamps):
        clock.learn(index, stamp, 0)
    return clock


def test_rule_12_time_counts_from_the_newest_stamp_whatever_the_wall_clock_shows() -> None:
    clock = stamped(Stamp(T))
    for wall_ms in (0, T - DAY_MS, T + DAY_MS):
        assert clock.read(700, wall_ms) == T + 700


@pytest.mark.parametrize("slew_ms", [5, -5, 1000, -1000, 1500, -1500, 600_000, -600_000])
def test_rule_12_a_slew_changes_the_speed_within_its_bounds_and_ends_by_itself(slew_ms: int) -> None:
    coarse_ms, times = max(0, abs(slew_ms) - 1000), range(0, 3_000_000, 500)
    clock = stamped(Stamp(T, ClockChange(0, slew_ms, 0, 0)))
    for now_ms, later_ms in pairwise(times):
        passed_ms = clock.read(later_ms, 0) - clock.read(now_ms, 0)
        fine = now_ms >= (coarse_ms if slew_ms > 0 else 2 * coarse_ms)
        low, high = (450, 550) if fine else (250, 1000)
        assert low <= passed_ms <= high
    assert clock.read(3_000_000, 0) == T + 3_000_000 + slew_ms
    assert clock.slew_left_ms(3_000_000) == 0


def test_rule_12_a_lag_is_made_up_at_double_speed_and_a_lead_is_lost_at_half_speed() -> None:
    assert slewed_ms(600_000, 100_000) == 100_000
    assert slewed_ms(-600_000, 100_000) == -50_000
    assert slewed_ms(1000, 1000) == 100 and slewed_ms(-1000, 1000) == -100


def test_rule_12_a_stamp_without_a_change_goes_on_with_the_slew() -> None:
    clock = stamped(Stamp(T, ClockChange(0, 10_000, 0, 0)))
    clock.learn(1, Stamp(clock.read(4000, 0)), 4000)
    assert clock.slew_left_ms(4000) == 6000
    assert clock.read(60_000, 0) == T + 60_000 + 10_000


def test_rule_12_a_step_goes_with_the_entry_that_a_truncation_removes() -> None:
    clock = stamped(Stamp(T))
    clock.learn(1, Stamp(T + 50 + DAY_MS, ClockChange(DAY_MS, 0, DAY_MS, DAY_MS)), 50)
    assert (clock.steps_ms, clock.pause_ms) == (DAY_MS, DAY_MS)
    clock.truncate_after(0)
    assert clock.read(60, 0) == T + 60
    assert (clock.steps_ms, clock.pause_ms) == (0, 0)


def test_rule_12_a_late_stamp_does_not_turn_time_back() -> None:
    clock = stamped(Stamp(T))
    assert clock.read(1000, 0) == T + 1000
    clock.learn(1, Stamp(T + 900), 1000)
    assert clock.read(1000, 0) == clock.read(1100, 0) == T + 1000
    assert clock.read(1101, 0) == T + 1001


def test_rule_12_what_a_node_stores_is_the_time_of_the_committed_log() -> None:
    clock = stamped(Stamp(T), Stamp(T + DAY_MS, ClockChange(DAY_MS, 0, DAY_MS, DAY_MS)))
    assert clock.stored == (-1, 0, 0)
    clock.committed(0)
    assert clock.stored == (T, 0, 0)
    clock.committed(1)
    assert clock.stored == (T + DAY_MS, DAY_MS, DAY_MS)


@pytest.mark.parametrize("wrong_ms", [DAY_MS, -DAY_MS])
def test_rule_12_one_wrong_clock_of_three_moves_nothing(wrong_ms: int) -> None:
    for a, b, c in permutations((T, T, T + wrong_ms)):
        assert bounds(THREE, {"a": a, "b": b, "c": c}) == ClockBounds(T, T)
    two = bounds(THREE, {"a": T, "b": T + wrong_ms})
    assert two == ClockBounds(min(T, T + wrong_ms), max(T, T + wrong_ms))
    assert correction(T, two, is_first=True) == correction(T, two, is_first=False) == (0, 0)


def test_rule_12_fewer_clocks_than_a_majority_of_the_configured_voters_move_nothing() -> None:
    five = Membership(("a", "b", "c", "d", "e"))
    assert bounds(five, {"a": T, "b": T}) == ClockBounds(None, None)
    assert bounds(five, {"a": T, "b": T + 1, "c": T + 2}) == ClockBounds(T, T + 2)
    assert bounds(THREE, {"a": T, "x": T, "y": T}) == ClockBounds(None, None), "x and y are no voters"
    assert correction(0, ClockBounds(None, None), is_first=True) == (0, 0)


@pytest.mark.parametrize(
    ("lag_ms", "is_first", "expected"),
    [
        (600_001, False, (600_001, 0)),
        (600_000, False, (0, 600_000)),
        (1001, False, (0, 1001)),
        (1001, True, (1001, 0)),
        (1000, True, (0, 1000)),
        (DAY_MS, True, (DAY_MS, 0)),
        (0, True, (0, 0)),
        (-DAY_MS, True, (0, -DAY_MS)),
        (-10, False, (0, -10)),
    ],
)
def test_rule_12_a_leader_steps_over_stops_and_long_lags_only(
    lag_ms: int, is_first: bool, expected: tuple[int, int]
) -> None:
    assert correction(T, ClockBounds(T + lag_ms, T + lag_ms), is_first=is_first) == expected


def test_rule_12_stamps_sum_up_their_steps_and_remember_the_one_that_pauses_purging() -> None:
    clock = stamped(Stamp(T))
    for index, step_ms in enumerate((1000, 3_600_000, 3_600_001, 5), 1):
        clock.learn(index, changed_stamp(clock, clock.read(0, 0), step_ms, 0), 0)
    assert clock.steps_ms == 1000 + 3_600_000 + 3_600_001 + 5
    assert clock.pause_ms == 3_600_001
    assert clock.read(0, 0) == T + clock.steps_ms


@pytest.mark.parametrize("slew_ms", [0, 600_000, -600_000])
def test_rule_12_a_restarted_member_counts_as_the_leader_does(slew_ms: int) -> None:
    stamp = Stamp(T, ClockChange(0, slew_ms, 0, 0))
    leader, restarted = stamped(stamp), ClusterClock()
    leader.committed(0)
    restarted.learn(-1, Stamp(T, ClockChange(0, 0, 0, 0)), 0)  # as from the stored table: without the slew
    for now_ms in (500_000, 700_000, 3_000_000):
        restarted.catch_up(leader.counted(now_ms), now_ms - 400_000)
        assert restarted.read(now_ms - 400_000, 0) == leader.read(now_ms, 0)
    assert abs(restarted.read(2_650_000, 0) - leader.read(3_050_000, 0)) <= 1


def test_rule_12_a_count_is_taken_from_the_same_committed_stamp_only_and_never_back() -> None:
    clock = stamped(Stamp(T), Stamp(T + 100))
    clock.committed(0)
    assert clock.counted(50) is None
    clock.catch_up(CountedTime(T + 100, T + 900, 0), 50)
    assert clock.read(50, 0) == T + 150, "the stamp may be truncated, and is another then"
    clock.committed(1)
    assert clock.counted(50) == CountedTime(T + 100, T + 150, 0)
    for counted in (None, CountedTime(T, T + 900, 0), CountedTime(T + 100, T + 120, 0)):
        clock.catch_up(counted, 50)
        assert clock.read(50, 0) == T + 150
    clock.catch_up(CountedTime(T + 100, T + 900, 0), 50)
    assert clock.read(60, 0) == T + 910


def test_rule_12_clocks_that_are_old_or_impossible_do_not_count() -> None:
    clocks = MemberClocks()
    clocks.note("b", T, 100)
    assert clocks.fresh(150, 100) == {"b": T + 50}
    assert clocks.fresh(150, 101) == {}
    for wall_ms in (None, -1, MAX_WALL_MS + 1):
        clocks.note("c", wall_ms, 100)
    assert set(clocks.fresh(150, 0)) == {"b"}
    clocks.hear("b", HeartbeatResponse(1, "b", 1, True, counts=False), 150)
    assert clocks.fresh(150, 0) == {}


def test_rule_12_a_clock_is_steady_after_thirty_seconds_in_step_with_the_monotonic_one() -> None:
    watch = SteadyWatch()
    looks = [watch.observe(T + ms, ms) for ms in range(0, 31_000, 1000)]
    assert looks.index(True) == 30
    assert not watch.observe(T + 31_000 + 501, 31_000), "it was set"
    assert not watch.observe(T + 60_999 + 501, 60_999)
    assert watch.observe(T + 61_000 + 501 - 500, 61_000)


def test_rule_12_a_replaced_log_goes_on_from_the_newest_committed_stamp() -> None:
    clock = stamped(Stamp(T), Stamp(T + 100), Stamp(T + DAY_MS, ClockChange(DAY_MS, 0, DAY_MS, DAY_MS)))
    clock.committed(1)
    for _ in range(2):
        clock.reset()
        assert (clock.last_stamp_ms, clock.steps_ms, clock.pause_ms) == (T + 100, 0, 0)
    clock = stamped(Stamp(T))
    clock.reset()
    assert clock.last_stamp_ms is None, "no stamp was committed"
