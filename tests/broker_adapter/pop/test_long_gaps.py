"""A group begins far behind where its queue does: what was purged or deleted may be millions of messages."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.format.consume_queue_unit import MAX_FILLERS
from broker_adapter.pop.api import AckStatus
from broker_adapter.pop.commands import MAX_SPAN
from broker_adapter.server.program import BrokerProgram
from tests.broker_adapter.cluster import brokers, in_step
from tests.broker_adapter.pop.test_node import bodies, send


async def leave_out(program: BrokerProgram, count: int) -> None:
    """So many offsets of queue 0 of topic t, in which no message is: as if there had been more of them."""
    end = program.files.bounds("t", 0)[1]
    program.writer.table.raise_to("t", 0, end + count)
    await send(program, f"old {end}")
    await in_step(program)


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_a_group_goes_on_behind_more_than_one_command_passes_over(
    tmp_path: Path, is_orderly: bool
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        while program.files.bounds("t", 0)[1] <= MAX_SPAN:
            await leave_out(program, MAX_FILLERS)
        await program.broker.delete_topic("t")
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await program.broker.put_group(GroupConfig("g", consume_orderly=is_orderly))
        await send(program, "new")
        receive = partial(program.delivery.receive, "g", "t", client_id="c", invisible_ms=60_000)
        (one,) = found = await asyncio.wait_for(receive(wait_ms=20_000), 30)
        assert bodies(found) == ["new"] and one.attempt == 1
        assert await program.delivery.ack("g", "t", [one.handle]) == [AckStatus.OK]
        assert program.delivery.figures().damaged == 0
