"""A change of a topic or group changes what it names, and hides no messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking

PUT_TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC
PUT_GROUP = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@pytest.fixture
async def asker(tmp_path: Path) -> AsyncIterator[Asker]:
    async with (
        brokers(tmp_path, 1, LISTEN) as cluster,
        asking((await cluster.master()).remoting.address) as asker,
    ):
        yield asker


async def topic(asker: Asker, name: str = "orders") -> dict[str, object]:
    found = await asker.body(RequestCode.GET_TOPIC_CONFIG, topic=name)
    assert isinstance(found, dict)
    return found


async def group(asker: Asker) -> dict[str, object]:
    found = await asker.body(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    assert isinstance(found, dict)
    return found


async def test_a_change_of_a_topic_keeps_what_it_does_not_name(asker: Asker) -> None:
    attributes = "+message.type=FIFO,+reserve.time=7"
    settings = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "topicSysFlag": 2, "order": "true"}
    await asker.get(PUT_TOPIC, topic="orders", attributes=attributes, **settings)
    before = await topic(asker)
    assert before["attributes"] == {"message.type": "FIFO", "reserve.time": "7"}
    await asker.get(PUT_TOPIC, topic="orders", perm=4)
    assert await topic(asker) == {**before, "perm": 4}
    await asker.get(PUT_TOPIC, topic="orders", attributes="+message.type=NORMAL,-reserve.time")
    assert await topic(asker) == {**before, "perm": 4, "attributes": {"message.type": "NORMAL"}}


async def test_a_change_of_a_group_keeps_what_it_does_not_name(asker: Asker) -> None:
    told = {"groupName": "g", "retryMaxTimes": 3, "consumeMessageOrderly": True, "consumeEnable": False}
    attributes = {"attributes": {"+priority.factor": "50"}}
    await asker.get(PUT_GROUP, json.dumps({**told, **attributes}).encode())
    before = await group(asker)
    assert before["attributes"] == {"priority.factor": "50"}
    await asker.get(PUT_GROUP, json.dumps({"groupName": "g", "consumeEnable": True}).encode())
    assert await group(asker) == {**before, "consumeEnable": True}


@pytest.mark.parametrize(
    "attributes",
    [
        "+color=red",
        "message.type=FIFO",
        "+message.type=LETTERS",
        "+cleanup.policy=COMPACTION",
        "-message.type",
        "+reserve.time=x",
        "+reserve.time=1,-reserve.time",
    ],
)
async def test_attributes_that_rocketmq_does_not_have_are_refused(asker: Asker, attributes: str) -> None:
    refused = await asker.ask(PUT_TOPIC, topic="orders", attributes=attributes)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await asker.ask(RequestCode.GET_TOPIC_CONFIG, topic="orders")).code != ResponseCode.SUCCESS


async def test_attributes_that_only_a_creation_may_set_do_not_change(asker: Asker) -> None:
    await asker.get(PUT_TOPIC, topic="orders", attributes="+queue.type=SimpleCQ,+cleanup.policy=DELETE")
    before = await topic(asker)
    await asker.get(PUT_TOPIC, topic="orders", attributes="+queue.type=SimpleCQ")
    refused = await asker.ask(PUT_TOPIC, topic="orders", attributes="+queue.type=BatchCQ")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL and "queue.type" in (refused.remark or "")
    assert await topic(asker) == before


async def test_queues_that_hold_messages_stay_unless_forced(asker: Asker) -> None:
    await asker.get(PUT_TOPIC, topic="orders", readQueueNums=8, writeQueueNums=8)
    for queue in range(6):
        await asker.send("orders", b"x", queue)
    fewer = {"topic": "orders", "readQueueNums": 4, "writeQueueNums": 4}
    refused = await asker.ask(PUT_TOPIC, **fewer)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "724 QUEUES_NOT_EMPTY" in (refused.remark or "") and "4, 5" in (refused.remark or "")
    found = await topic(asker)
    assert (found["readQueueNums"], found["writeQueueNums"]) == (8, 8)
    await asker.get(PUT_TOPIC, topic="orders", readQueueNums=6, writeQueueNums=6)  # the others are empty
    await asker.get(PUT_TOPIC, topic="orders", writeQueueNums=2)  # consumers still see all of them
    refused = await asker.ask(PUT_TOPIC, topic="orders", readQueueNums=5)
    assert "724 QUEUES_NOT_EMPTY" in (refused.remark or "")
    await asker.get(PUT_TOPIC, force="true", **fewer)
    assert (await topic(asker))["readQueueNums"] == 4


async def test_changes_of_one_topic_at_the_same_time_all_hold(asker: Asker) -> None:
    await asker.get(PUT_TOPIC, topic="orders", readQueueNums=1, writeQueueNums=1)
    changes: list[dict[str, object]] = [
        {"perm": 4},
        {"attributes": "+message.type=FIFO"},
        {"order": "true"},
        {"topicSysFlag": 2},
        {"readQueueNums": 3},
    ]
    await asyncio.gather(*[asker.get(PUT_TOPIC, topic="orders", **change) for change in changes])
    found = await topic(asker)
    names = ("perm", "attributes", "order", "topicSysFlag", "readQueueNums")
    assert [found[name] for name in names] == [4, {"message.type": "FIFO"}, True, 2, 3]
