"""Cluster time of a group of one: it has only its own clock to go by. Rule 12."""

from __future__ import annotations

import pytest

from dledger.store.format.internal import StampedInternal, decode_internal
from dledger.testing.memory_store import MemoryLogStore
from tests.replica.replica_world import Host

DAY_MS = 86_400_000
MINUTE_MS = 60_000


class Alone:
    """One node; `ahead_ms` is how far its wall clock was set."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._passed_ms = 0  # in former lives
        self.host = self._start(None)

    def _start(self, store: MemoryLogStore | None) -> Host:
        host = Host("a", ["a"], store=store)
        host.replica.wall_ms = lambda: 1_000_000 + self._passed_ms + host.now + self.ahead_ms
        host.lead_alone()
        host.disk()
        return host

    def restart(self) -> None:
        self._passed_ms += self.host.now
        self.host = self._start(self.host.store)

    def passes(self, ms: int) -> None:
        for _ in range(ms // 500):
            self.host.pass_time(500)
            self.host.disk()

    @property
    def lag_ms(self) -> int:
        clock = self.host.replica.admission.state.clock
        return self.host.replica.wall_ms() - clock.read(self.host.now, 0)


def test_rule_12_an_empty_log_of_a_single_node_begins_with_its_clock() -> None:
    assert Alone().lag_ms == 0


@pytest.mark.parametrize("ahead_ms", [1_500, MINUTE_MS - 5_000])
def test_rule_12_a_single_node_steps_over_a_short_stop_at_once(ahead_ms: int) -> None:
    node = Alone()
    node.ahead_ms = ahead_ms
    node.restart()
    assert abs(node.lag_ms) <= 200


@pytest.mark.parametrize("ahead_ms", [5 * MINUTE_MS, DAY_MS])
def test_rule_12_a_single_node_steps_over_a_long_stop_after_thirty_seconds(ahead_ms: int) -> None:
    node = Alone()
    node.ahead_ms = ahead_ms
    node.restart()
    node.passes(29_000)
    assert node.lag_ms == ahead_ms
    node.host.append("served", b"x")
    node.passes(2_000)
    assert abs(node.lag_ms) <= 200
    heads = [decode_internal(e.body) for e in node.host.entries() if e.magic != 1]
    steps_ms = [h.change.step_ms for h in heads if isinstance(h, StampedInternal) and h.change is not None]
    assert len([ms for ms in steps_ms if ms]) == 1


def test_rule_12_a_single_node_does_not_follow_a_clock_that_is_not_steady() -> None:
    node = Alone()
    for _ in range(10):
        node.ahead_ms += DAY_MS
        node.passes(20_000)
    assert node.lag_ms == 10 * DAY_MS
    node.passes(11_000)
    assert abs(node.lag_ms) <= 200
