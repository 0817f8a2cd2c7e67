"""A classic broker that was stopped for hours serves on old time at first, and then makes a step."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.delivery.api import AckStatus
from broker_adapter.scheduled.deferring import OrphanedHalf, Resolution
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.topic_names import CHECK_MAX_TOPIC
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_system_queues import ALONE, bodies
from tests.broker_adapter.cluster import messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until

HOUR_MS = 3_600_000
NIGHT_MS = 8 * HOUR_MS
#: Both clocks have agreed long enough for a step.
STEADY_MS = 31_000


class Stops:
    """Starts a lone broker again and again, on clocks that tests move."""

    def __init__(self, pair: ClassicPair, behind_ms: int, **classic: Any) -> None:
        """`behind_ms`: how far its wall clock is behind that of the file system at first."""
        self.pair = pair
        self._classic = classic
        self._wall_ms, self._monotonic_ms = -behind_ms, 0

    def passes(self, ms: int) -> None:
        self._wall_ms += ms
        self._monotonic_ms += ms

    def sets_wall(self, by_ms: int) -> None:
        self._wall_ms += by_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._wall_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._monotonic_ms

    async def start(self) -> BrokerProgram:
        program = self.pair.programs["n1"] = self.pair.program("n1", **ALONE, **self._classic)
        node = program.make_node(wall_ms=self.wall_ms, monotonic_ms=self.monotonic_ms)
        await node.start()
        await program.start()
        return await self.pair.writable("n1")

    async def start_after(self, stopped_ms: int) -> BrokerProgram:
        await self.pair.stop()
        self.sets_wall(stopped_ms)
        program = await self.start()
        assert self.lag_ms(program) > stopped_ms - 60_000, "the step waits"
        return program

    def lag_ms(self, program: BrokerProgram) -> int:
        return self.wall_ms() - program.node.cluster_time_ms()

    def make_step(self, program: BrokerProgram) -> None:
        program.node.cluster_time_ms()
        self.passes(STEADY_MS)
        assert self.lag_ms(program) < 1_000, "the step is made"


@asynccontextmanager
async def stops(
    folder: Path, *, behind_ms: int = 0, **classic: Any
) -> AsyncIterator[tuple[Stops, BrokerProgram]]:
    async with classic_pair(folder) as pair:
        made = Stops(pair, behind_ms, **classic)
        program = await made.start()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await send_to(program, "t", messages("before"), queue_id=0)
        yield made, program


@pytest.mark.parametrize("are_more_sent", [False, True])
async def test_a_send_repeated_across_the_step_is_stored_once(tmp_path: Path, are_more_sent: bool) -> None:
    """Also after a second stop: the sum of the steps continues where the log's ends."""
    async with stops(tmp_path) as (clocks, program):
        for night in ("first", "second"):
            program = await clocks.start_after(NIGHT_MS)
            message = OutgoingMessage(night.encode(), born_timestamp=clocks.wall_ms())
            send = partial(send_to, program, "t", message, message_id=night, queue_id=0)
            first = await send()
            clocks.make_step(program)
            if are_more_sent:
                await send_to(program, "t", OutgoingMessage(b"x"), message_id=f"x{night}", queue_id=0)
            again = await send()
            assert again.is_repeated and again.queue_offset == first.queue_offset, night


HOURLY = ";".join(map(str, range(24)))


async def test_messages_stored_before_a_step_of_days_are_not_removed_as_old(tmp_path: Path) -> None:
    """Their store timestamps are those of before the stop."""
    stopped_ms = 100 * HOUR_MS
    async with stops(tmp_path, behind_ms=stopped_ms, delete_when=HOURLY) as (clocks, program):
        program = await clocks.start_after(stopped_ms)
        for _ in range(40):
            await send_to(program, "t", messages("x" * 60_000), queue_id=0)
        node = clocks.pair.node("n1")
        assert len(node.log.old_files()) > 1
        clocks.make_step(program)
        for passed_ms in (11_000, HOUR_MS, 11_000):  # the last look is after the pause of an hour
            clocks.passes(passed_ms)
            before = node.upkeep.runs
            await until(lambda: node.upkeep.runs > before + 1)  # noqa: B023
            assert node.log.begin_offset == 0
        assert node.node_status().age_purge_step_ms == 0, "the pause is over"


async def test_a_wall_clock_that_jumps_ahead_removes_no_message(tmp_path: Path) -> None:
    async with stops(tmp_path, delete_when=HOURLY) as (clocks, program):
        for _ in range(40):
            await send_to(program, "t", messages("x" * 60_000), queue_id=0)
        clocks.sets_wall(100 * HOUR_MS)
        clocks.passes(11_000)
        node = clocks.pair.node("n1")
        before = node.upkeep.runs
        await until(lambda: node.upkeep.runs > before + 1)
        assert node.log.begin_offset == 0


async def test_a_transaction_that_starts_before_a_step_of_days_can_be_committed_after_it(
    tmp_path: Path,
) -> None:
    """Its producer is asked first. Its producer's clock is right, and so 100 h ahead of the log's time."""
    async with stops(tmp_path) as (clocks, program):
        clocks.pair.more = {"delivery": {"check_first_ms": 6_000, "check_again_ms": 20_000}}
        program = await clocks.start_after(100 * HOUR_MS)
        asked: list[OrphanedHalf] = []
        program.delivery.on_orphan(asked.append)
        message = OutgoingMessage(b"half", {"TAGS": "a"}, born_timestamp=clocks.wall_ms())
        half = await program.delivery.send_half("t", message, message_id="H", client_id="c", check_after_ms=0)
        clocks.make_step(program)
        await until(lambda: len(asked) == 1)
        for _ in range(2):
            clocks.passes(21_000)
            known = len(asked)
            await until(lambda: len(asked) > known or CHECK_MAX_TOPIC in program.metadata.topics)  # noqa: B023
        assert CHECK_MAX_TOPIC not in program.metadata.topics
        await program.delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)
        await until(lambda: bodies(program) == ["before", "half"])


async def test_a_message_that_a_client_holds_across_the_step_goes_to_nobody_else(tmp_path: Path) -> None:
    """Neither one that was given before the stop, nor one that was given between the start and the step."""
    async with stops(tmp_path) as (clocks, program):
        await send_to(program, "t", messages("second"), queue_id=0)
        await program.files.wait_applied()
        hold_ms = 10 * 60_000
        (first,) = await program.delivery.receive(
            "g", "t", client_id="A", max_messages=1, invisible_ms=hold_ms
        )
        program = await clocks.start_after(NIGHT_MS)
        (second,) = await program.delivery.receive(
            "g", "t", client_id="B", max_messages=1, invisible_ms=hold_ms
        )
        assert (first.queue_offset, second.queue_offset) == (0, 1)
        clocks.make_step(program)
        assert await program.delivery.receive("g", "t", client_id="C", invisible_ms=hold_ms) == []
        await send_to(program, "t", OutgoingMessage(b"x"), message_id="x", queue_id=0)
        await program.files.wait_applied()
        (third,) = await program.delivery.receive("g", "t", client_id="C", invisible_ms=hold_ms)
        assert abs(third.invisible_until_ms - hold_ms - program.delivery.now_ms()) < 60_000
        assert await program.delivery.ack("g", "t", [second.handle]) == [AckStatus.OK]
        clocks.passes(hold_ms + 60_000)
        again = await program.delivery.receive("g", "t", client_id="D", invisible_ms=hold_ms)
        assert [(one.queue_offset, one.attempt) for one in again] == [(0, 2), (2, 2)]
