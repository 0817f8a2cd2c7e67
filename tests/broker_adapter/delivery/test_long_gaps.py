"""A group begins far behind where its queue does: what was purged or deleted may be millions of messages."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from broker_adapter.api import GetMessageResult, GetMessageStatus, GroupConfig, TopicConfig
from broker_adapter.delivery.api import AckStatus, Filter
from broker_adapter.delivery.reading import QueueReadPlan, read_plans
from broker_adapter.delivery_state.commands import MAX_SPAN, QueueKey
from broker_adapter.delivery_state.queue_state import PoppedMessage
from broker_adapter.server.program import BrokerProgram
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.wire.consume_queue_unit import MAX_FILLERS
from tests.broker_adapter.cluster import brokers, in_step
from tests.broker_adapter.delivery.test_node import bodies, send


async def leave_out(program: BrokerProgram, count: int) -> None:
    """So many offsets of queue 0 of topic t, in which no message is: as if there had been more of them."""
    end = program.files.bounds("t", 0)[1]
    program.writer.table.raise_to("t", 0, end + count)
    await send(program, f"old {end}")
    await in_step(program)


@pytest.mark.slow
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


@pytest.mark.parametrize(("least", "end", "gone"), [(8, 9, [7]), (0, 5, [])])
def test_what_was_purged_is_given_up_and_what_is_not_there_yet_is_not(
    least: int, end: int, gone: list[int]
) -> None:
    """A broker may have to make its queues again: what it has not reached may come."""
    reader = Mock(spec=QueueReader)
    reader.read.return_value = GetMessageResult(GetMessageStatus.OFFSET_ILLEGAL, least, least, end)
    popped = PoppedMessage(1, 0, 1, "c", "", False, 0)
    (found,) = read_plans(
        reader, [QueueReadPlan(QueueKey("g", "t", 0), [(7, popped)], 8, 0)], Filter(), 32, 1 << 20
    )
    assert [offset for offset, _ in found.unwanted] == gone and not found.again
