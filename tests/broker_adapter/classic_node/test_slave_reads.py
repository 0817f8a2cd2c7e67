"""What a slave answers to clients whose master is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.client import MessageQueue, PullStatus
from broker_adapter.client.core.admin_bodies import (
    parse_consume_stats,
    parse_groups,
    parse_topic_stats,
    parse_topics,
)
from broker_adapter.client.core.pulling import pull_request, pull_result
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.client.scripted import finish
from tests.broker_adapter.cluster import messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_slave_gives_what_it_has_whether_its_master_is_there(tmp_path: Path, is_alive: bool) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, "n1", "n2") as pair:
            master = await pair.writable("n1")
            await until(lambda: pair.node("n2").replication.follows)
            await master.broker.put_topic(TopicConfig("t", 1, 1))
            await send_to(master, "t", messages("a", "b", "c"), queue_id=0)
            await pair.in_step()
            if not is_alive:
                await pair.stop("n1")
            slave = await connect(pair.remoting["n2"], timeout_s=10)
            queue, all_of_it = MessageQueue("t", "broker-a", 0), Subscription("t", "*", 1)
            request = pull_request("g", queue, 1, all_of_it, max_messages=32, wait_s=0)
            found = finish(pull_result(await slave.invoke(request, 30), queue, all_of_it, 32))
            assert found.status is PullStatus.FOUND
            assert [one.body for one in found.messages] == [b"b", b"c"]
            fields = {"topic": "t", "queueId": "0"}
            answer = await slave.invoke(RemotingCommand(RequestCode.GET_MAX_OFFSET, fields), 30)
            assert answer.fields["offset"] == "3"
            slave.close("it was asked")

    asyncio.run(run())


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_slave_answers_questions_of_administrators_from_its_tables(tmp_path: Path, is_alive: bool) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, "n1", "n2") as pair:
            master = await pair.writable("n1")
            await until(lambda: pair.node("n2").replication.follows)
            await master.broker.put_topic(TopicConfig("t", 1, 1))
            await master.broker.put_group(GroupConfig("g"))
            await send_to(master, "t", messages("a", "b", "c"), queue_id=0)
            await master.broker.commit_offsets("g", [QueueOffset("t", 0, 2)])
            await pair.in_step()
            if not is_alive:
                await pair.stop("n1")
            slave = await connect(pair.remoting["n2"], timeout_s=10)

            async def answer(code: int, **fields: str) -> bytes:
                found = await slave.invoke(RemotingCommand(code, fields), 5)
                assert found.code == ResponseCode.SUCCESS, found.remark
                return found.body

            queue = MessageQueue("t", "broker-a", 0)
            stats = parse_topic_stats(await answer(RequestCode.GET_TOPIC_STATS_INFO, topic="t"))
            assert (stats[queue].min_offset, stats[queue].max_offset) == (0, 3)
            assert parse_consume_stats(await answer(RequestCode.GET_CONSUME_STATS, consumerGroup="g")) == {
                queue: 2
            }
            topics = parse_topics(await answer(RequestCode.GET_ALL_TOPIC_CONFIG))
            groups = parse_groups(await answer(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
            assert "t" in {one.name for one in topics} and "g" in {one.name for one in groups}
            slave.close("it was asked")

    asyncio.run(run())
