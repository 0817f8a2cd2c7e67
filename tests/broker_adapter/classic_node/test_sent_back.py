"""How often a message was sent back is a field of its record, by which RocketMQ reads it in the directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, OutgoingMessage, TopicConfig
from broker_adapter.wire.message import decode
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.broker_adapter.sending import send_to


@pytest.mark.parametrize(("topic", "times"), [("%RETRY%g", 2), ("%DLQ%g", 2), ("forwarded", 0)])
async def test_a_message_that_was_sent_back_has_its_tries_in_its_record(
    tmp_path: Path, topic: str, times: int
) -> None:
    async with classic_pair(tmp_path) as pair:
        await pair.start("n1", **ASYNC)
        program = await pair.writable("n1")
        await program.broker.put_topic(TopicConfig(topic, 1, 1))
        message = OutgoingMessage(b"tried", {"RECONSUME_TIME": "2"})
        sent = await send_to(program, topic, message, message_id="", queue_id=0)
        await program.node.wait_applied()
        (record,) = (await program.broker.pull(topic, 0, sent.queue_offset, max_messages=1)).records
        assert decode(record).reconsume_times == times


@pytest.mark.parametrize("is_worn_out", [False, True])
async def test_a_dead_letter_of_a_pop_has_its_tries_in_its_record(tmp_path: Path, is_worn_out: bool) -> None:
    """Given as often as may be, or a consumer had enough of it."""
    async with classic_pair(tmp_path) as pair:
        await pair.start("n1", **ASYNC)
        program = await pair.writable("n1")
        delivery = program.delivery
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        await program.broker.put_group(GroupConfig("g", retry_max_times=2 if is_worn_out else 16))
        await send_to(program, "t", OutgoingMessage(b"tried", {}), message_id="", queue_id=0)
        handle = ""
        for tries in range(3):
            (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000, wait_ms=10_000)
            handle = one.handle
            if tries < 2:
                await delivery.change_invisible("g", "t", handle, 0)
        if is_worn_out:
            await delivery.change_invisible("g", "t", handle, 0)
            await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        else:
            await delivery.dead_letter("g", "t", handle)
        await program.node.wait_applied()
        (record,) = (await program.broker.pull("%DLQ%g", 0, 0, max_messages=1)).records
        assert decode(record).reconsume_times == 3
