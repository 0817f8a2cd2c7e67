"""Offsets in tables that are ahead of the log: a power failure took its tail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.classic_node.test_classic_node import messages
from tests.broker_adapter.classic_node.test_lost_tail import lose_power
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.broker_adapter.sending import send_to


@pytest.mark.parametrize("is_foreign", [False, True])
async def test_a_group_that_is_ahead_of_the_log_gets_what_comes(tmp_path: Path, is_foreign: bool) -> None:
    """Without a checkpoint the tables count; and those of another broker always do."""
    async with classic_pair(tmp_path, "n1", **ASYNC) as pair:
        master = await pair.writable("n1")
        await master.broker.put_topic(TopicConfig("t", 1, 1))
        await master.broker.put_group(GroupConfig("g"))
        await send_to(master, "t", messages("a"), queue_id=0)
        end = pair.node("n1").log.end_offset
        await send_to(master, "t", messages("lost", "lost too"), queue_id=0)
        await master.files.wait_applied()
        await master.broker.commit_offsets("g", [QueueOffset("t", 0, 3)])
        await pair.stop("n1")
        lose_power(tmp_path / "n1", end)
        if is_foreign:
            await pair.start("n1", **ASYNC)
            await pair.stop("n1")
            path = tmp_path / "n1/config/consumerOffset.json"
            table = json.loads(path.read_bytes())
            table["offsetTable"]["t@g"] = {"0": 3}
            path.write_text(json.dumps(table))
        for _ in range(2):
            await pair.start("n1", **ASYNC)
            master = await pair.writable("n1")
            assert await master.broker.offset("g", "t", 0) == 1
            await pair.stop("n1")
        await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        assert (await send_to(master, "t", messages("new"), queue_id=0)).queue_offset == 1
        assert await master.broker.offset("g", "t", 0) == 1
