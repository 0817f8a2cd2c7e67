"""The time of a classic log, and clocks that are set."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.log.classic.node.store_clock import StoreClock
from broker_adapter.server.program import BrokerProgram
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_system_queues import ALONE, bodies, delayed
from tests.broker_adapter.cluster import messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until

DAY_MS = 86_400_000


class Clocks:
    def __init__(self) -> None:
        self.wall_ms, self.monotonic_ms = 1_000_000, 50
        self.clock = StoreClock(lambda: self.wall_ms, lambda: self.monotonic_ms)

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms


MINUTE_MS = 60_000


def test_an_empty_log_begins_with_the_wall_clock_and_follows_it() -> None:
    clocks = Clocks()
    assert clocks.clock.read(0) == 1_000_000
    clocks.passes(5)
    assert clocks.clock.read(1_000_001) == 1_000_005


@pytest.mark.parametrize("stopped_ms", [1_001, MINUTE_MS])
def test_a_stop_of_up_to_a_minute_is_stepped_over_at_once(stopped_ms: int) -> None:
    clocks = Clocks()
    assert clocks.clock.read(clocks.wall_ms - stopped_ms) == clocks.wall_ms
    assert clocks.clock.steps_ms == stopped_ms


def test_a_longer_stop_is_stepped_over_when_the_clocks_have_agreed_for_thirty_seconds() -> None:
    clocks = Clocks()
    newest_ms = clocks.wall_ms - 5 * MINUTE_MS
    assert clocks.clock.read(newest_ms) == newest_ms
    for _ in range(29):
        clocks.passes(1000)
        assert clocks.clock.read(newest_ms) == clocks.wall_ms - 5 * MINUTE_MS
    clocks.passes(1000)
    assert clocks.clock.read(newest_ms) == clocks.wall_ms
    assert clocks.clock.steps_ms == 5 * MINUTE_MS


def test_a_clock_that_is_set_by_a_day_is_followed_when_it_has_been_steady_for_thirty_seconds() -> None:
    clocks = Clocks()
    before_ms = clocks.clock.read(0)
    clocks.passes(40_000)
    clocks.wall_ms += DAY_MS
    assert clocks.clock.read(0) == before_ms + 40_000
    clocks.passes(29_999)
    assert clocks.clock.read(0) == before_ms + 69_999
    clocks.passes(1)
    assert clocks.clock.read(0) == clocks.wall_ms


def test_a_clock_that_is_set_forward_by_minutes_is_met_at_double_speed() -> None:
    clocks = Clocks()
    before_ms = clocks.clock.read(0)
    clocks.wall_ms += 5 * MINUTE_MS
    clocks.passes(1000)
    clocks.clock.read(0)
    clocks.passes(MINUTE_MS)
    assert clocks.clock.read(0) == before_ms + 1000 + 2 * MINUTE_MS
    for _ in range(400):
        clocks.passes(1000)
        clocks.clock.read(0)
    assert clocks.clock.read(0) == clocks.wall_ms
    assert clocks.clock.steps_ms == 0


def test_it_runs_at_half_speed_while_the_wall_clock_is_behind_it_and_meets_it_again() -> None:
    clocks = Clocks()
    last_ms = clocks.clock.read(0)
    clocks.wall_ms -= MINUTE_MS
    clocks.passes(1000)
    last_ms = clocks.clock.read(0)
    for _ in range(140):
        clocks.passes(1000)
        passed_ms = clocks.clock.read(0) - last_ms
        assert 500 <= passed_ms <= 1000
        last_ms += passed_ms
    assert clocks.clock.read(0) == clocks.wall_ms


def test_a_record_of_another_machine_that_is_ahead_is_where_it_goes_on() -> None:
    clocks = Clocks()
    clocks.clock.read(0)
    ahead = clocks.wall_ms + DAY_MS
    assert clocks.clock.read(ahead) == ahead
    clocks.passes(1_000)
    assert clocks.clock.read(ahead) == ahead + 500
    assert clocks.clock.read(ahead + 10_000) == ahead + 10_000


async def started(pair: ClassicPair, ahead_ms: list[int]) -> BrokerProgram:
    program = pair.programs["n1"] = pair.program("n1", **ALONE)
    await program.make_node(wall_ms=lambda: time.time_ns() // 1_000_000 + ahead_ms[0]).start()
    await program.start()
    return await pair.writable("n1")


async def test_what_waits_comes_though_the_clock_was_set_back_by_a_day(tmp_path: Path) -> None:
    """Delayed messages, and those that were received and not acknowledged; also after a restart."""
    async with classic_pair(tmp_path) as pair:
        ahead_ms = [DAY_MS]
        program = await started(pair, ahead_ms)
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await send_to(program, "t", messages("seen"), queue_id=0)
        ahead_ms[0] = 0
        await delayed(program, "later", 1)
        await until(lambda: bodies(program) == ["later", "seen"])
        await pair.stop()
        program = await started(pair, ahead_ms)
        receive = partial(program.delivery.receive, "g", "t", client_id="c", max_messages=1)
        for attempt in (1, 2):
            (one,) = await receive(invisible_ms=1_000, wait_ms=60_000)
            assert (one.queue_offset, one.attempt) == (0, attempt)
            await receive(invisible_ms=60_000)  # the other one stays away
