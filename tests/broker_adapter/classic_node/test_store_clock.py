"""The time of a classic log, and clocks that are set."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from broker_adapter.api import TopicConfig
from broker_adapter.classic_node.store_clock import StoreClock
from broker_adapter.server.program import BrokerProgram
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_system_queues import ALONE, bodies, delayed
from tests.broker_adapter.cluster import messages
from tests.node.local import until

DAY_MS = 86_400_000


class Clocks:
    def __init__(self) -> None:
        self.wall_ms, self.monotonic_ms = 1_000_000, 50
        self.clock = StoreClock(lambda: self.wall_ms, lambda: self.monotonic_ms)

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms


def test_it_is_the_wall_clock_where_that_does_not_fall() -> None:
    clocks = Clocks()
    assert clocks.clock.read(0) == 1_000_000
    clocks.passes(5)
    assert clocks.clock.read(1_000_001) == 1_000_005
    clocks.wall_ms += DAY_MS
    assert clocks.clock.read(1_000_001) == 1_000_005 + DAY_MS


def test_it_goes_on_while_the_wall_clock_is_behind_it_and_meets_it_again() -> None:
    clocks = Clocks()
    set_to = clocks.clock.read(0)
    clocks.wall_ms -= 3_000
    for ms in (1, 499, 999_500):
        clocks.passes(ms)
        assert clocks.clock.read(set_to) == set_to + (clocks.monotonic_ms - 50) * 999 // 1000
    clocks.passes(2_000_000)
    assert clocks.clock.read(set_to) == clocks.wall_ms == set_to + 3_000_000 - 3_000
    clocks.passes(1)
    assert clocks.clock.read(set_to) == clocks.wall_ms


def test_a_record_of_another_machine_that_is_ahead_is_where_it_goes_on() -> None:
    clocks = Clocks()
    clocks.clock.read(0)
    ahead = clocks.wall_ms + DAY_MS
    assert clocks.clock.read(ahead) == ahead
    clocks.passes(1_000)
    assert clocks.clock.read(ahead) == ahead + 999
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
        await program.broker.send("t", messages("seen"), queue_id=0)
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
