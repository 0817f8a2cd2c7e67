"""Followers that are far behind are caught up as fast as clients' appends allow it, or as they must be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.node.members.catch_up_throttle import AppendTotals, CatchUpThrottle

RANGE = 1 << 20
MIB = 1 << 20
_WINDOW_S = 0.04  # a range that was given so long ago hinders nobody


class Leader:
    """Appends of clients, which take longer the faster followers are caught up, and a follower that is never
    done. Time passes in steps of a range or of a wait."""

    def __init__(
        self,
        latency_s: Callable[[float], float],
        *,
        per_second: float = 2000.0,
        body: int = 10_000,
        fastest: float = 200.0 * MIB,
    ) -> None:
        self._latency_s = latency_s
        self.per_second = per_second
        self._body = body
        self._fastest = fastest
        self._answered = 0.0
        self._seconds = 0.0
        self.now = 100.0
        self.pace = CatchUpThrottle()
        self.ranges: list[float] = []

    def _pass(self, seconds: float) -> None:
        while seconds > 1e-9:
            step = min(seconds, 0.005)
            seconds -= step
            self.now += step
            rate = sum(self.now - at < _WINDOW_S for at in self.ranges[-20:]) * RANGE / _WINDOW_S
            self._answered += self.per_second * step
            self._seconds += self.per_second * step * self._latency_s(rate)

    def appends(self) -> AppendTotals:
        return AppendTotals(int(self._answered), self._seconds, int(self._answered) * self._body)

    def append(self, seconds: float) -> None:
        """For clients alone."""
        self._pass(seconds)

    def catch_up(self, seconds: float) -> float:
        """Bytes a second that the follower got."""
        until, before = self.now + seconds, len(self.ranges)
        while self.now < until:
            wait_s = self.pace.wait_s(self.now, self.appends())
            if wait_s > 0:
                self._pass(max(wait_s, 1e-6))
                continue
            self.pace.record_read(RANGE, self.now)
            self.ranges.append(self.now)
            self._pass(RANGE / self._fastest)
        return (len(self.ranges) - before) * RANGE / seconds

    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in zip(self.ranges, self.ranges[1:], strict=False))


def test_without_appends_there_is_no_limit_and_no_pause() -> None:
    leader = Leader(lambda rate: 0.004, per_second=0)
    assert leader.catch_up(10) == pytest.approx(200 * MIB, rel=0.01)


def test_appends_that_do_not_suffer_do_not_slow_a_follower_down() -> None:
    leader = Leader(lambda rate: 0.004)
    leader.catch_up(5)
    assert leader.catch_up(10) > 180 * MIB


def test_the_rate_settles_where_appends_take_1_65_times_as_long_as_in_pauses() -> None:
    leader = Leader(lambda rate: 0.004 * (1 + rate / (160 * MIB)))
    leader.catch_up(10)
    assert leader.catch_up(30) == pytest.approx(104 * MIB, rel=0.15)


def test_a_follower_comes_nearer_by_16_mib_a_second_whatever_appends_take() -> None:
    leader = Leader(lambda rate: 0.004 if not rate else 0.1, body=15_000)
    leader.catch_up(5)
    grows = leader.per_second * 15_000
    assert leader.catch_up(30) >= 0.9 * (grows + 16 * MIB)


def test_a_follower_without_which_nothing_commits_is_not_held_back() -> None:
    """Appends wait for it, none is answered: what they would take says nothing any more."""
    leader = Leader(lambda rate: 0.004 if not rate else 0.1)
    assert leader.catch_up(10) < 60 * MIB
    leader.per_second = 0
    leader.catch_up(2)
    assert leader.catch_up(10) == pytest.approx(200 * MIB, rel=0.01)


def test_appends_of_those_who_hardly_append_may_take_ten_milliseconds_longer() -> None:
    patient = Leader(lambda rate: 0.002 if not rate else 0.011, per_second=50, body=1000)
    patient.catch_up(10)
    assert patient.catch_up(20) > 130 * MIB
    hindered = Leader(lambda rate: 0.002 if not rate else 0.02, per_second=50, body=1000)
    hindered.catch_up(10)
    assert hindered.catch_up(20) < 40 * MIB


def test_what_appends_take_by_themselves_is_looked_at_again_every_three_seconds() -> None:
    slow = [0.004]
    leader = Leader(lambda rate: slow[0] * (1 + rate / (160 * MIB)))
    leader.catch_up(20)
    slow[0] = 0.012  # clients append more, or larger batches: not the follower's doing
    leader.catch_up(10)
    assert leader.catch_up(30) == pytest.approx(104 * MIB, rel=0.2)
    assert leader.longest_gap() < 0.5


def test_a_first_catch_up_is_at_its_rate_within_a_second() -> None:
    leader = Leader(lambda rate: 0.004 * (1 + rate / (160 * MIB)))
    leader.append(2.0)
    leader.catch_up(1)
    assert leader.catch_up(0.5) > 80 * MIB


def test_one_pause_that_something_else_disturbed_does_not_change_the_rate() -> None:
    disturbed: list[float] = [1.0]

    def latency_s(rate: float) -> float:
        return 0.004 * (1 + rate / (160 * MIB)) * (1.0 if rate else disturbed[0])

    leader = Leader(latency_s)
    leader.catch_up(12)
    for factor in (0.6, 1.0, 1.0, 3.0, 1.0, 1.0):
        disturbed[0] = factor
        assert leader.catch_up(3.2) == pytest.approx(104 * MIB, rel=0.2)


def test_clients_that_begin_during_a_catch_up_are_yielded_to() -> None:
    leader = Leader(lambda rate: 0.004 * (1 + rate / (160 * MIB)), per_second=0)
    assert leader.catch_up(5) > 150 * MIB
    leader.per_second = 2000.0
    leader.catch_up(15)
    assert leader.catch_up(30) == pytest.approx(104 * MIB, rel=0.15)
