"""A reset of the offsets of a running group, at a classic master and its slave."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_adapter.api import QueueOffset, TopicConfig
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.cluster import messages
from tests.broker_adapter.sending import send_to
from tests.broker_adapter.v4.asker import asking
from tests.broker_adapter.v4.test_remoting_consumers import beat, pull
from tests.broker_adapter.v4.test_remoting_resets import commit, stored
from tests.node.local import until


def test_a_slave_sends_a_member_to_the_master_until_it_has_followed_a_reset(tmp_path: Path) -> None:
    """Otherwise a member that reads at the slave stays where it was, and its commits never count."""

    async def run() -> None:
        async with classic_pair(tmp_path, "n1", "n2") as pair:
            master = await pair.writable("n1")
            await until(lambda: pair.node("n2").replication.follows)
            await master.broker.put_topic(TopicConfig("t", 1, 1))
            await send_to(master, "t", messages("a", "b", "c", "d"), queue_id=0)
            async with asking(pair.remoting["n1"]) as at_master, asking(pair.remoting["n2"]) as at_slave:
                for asker in (at_master, at_slave):
                    await asker.get(RequestCode.HEART_BEAT, beat("m", "g", "t"))
                assert await commit(at_master, 4) == ResponseCode.SUCCESS
                await master.broker.reset_offsets("g", [QueueOffset("t", 0, 1)])
                await pair.in_step()
                there = await pull(at_slave, "t", 3, suspendTimeoutMillis=1)
                assert there.code == ResponseCode.PULL_NOT_FOUND
                assert there.fields["suggestWhichBrokerId"] == "0"
                assert there.fields["nextBeginOffset"] == "3"
                assert await commit(at_master, 4) == ResponseCode.SUCCESS
                assert await stored(at_master) == 1
                assert (await pull(at_master, "t", 3)).code == ResponseCode.PULL_OFFSET_MOVED
                assert (await pull(at_master, "t", 1)).code == ResponseCode.SUCCESS
                assert await commit(at_master, 2) == ResponseCode.SUCCESS
                await pair.in_step()
                assert (await pull(at_slave, "t", 2)).code == ResponseCode.SUCCESS

    asyncio.run(run())
