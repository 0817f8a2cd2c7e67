"""Topics that a client of the remoting protocol creates by sending to them, and those that never come so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_adapter.api import PERM_INHERIT, PERM_READ, PERM_WRITE
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.wire.topic_names import UNSENDABLE_TOPICS
from tests.broker_adapter.v4.asker import Asker, asking, send_fields
from tests.broker_adapter.v4.stores import STORES, started

PUT_TOPIC, DELETE_TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER
OPEN = PERM_READ | PERM_WRITE
both_stores = pytest.mark.parametrize("store", STORES)


async def send(asker: Asker, topic: str, default_topic: str, queues: int) -> int:
    fields = {**send_fields(topic), "c": default_topic, "d": queues}
    return (await asker.ask(RequestCode.SEND_MESSAGE_V2, b"x", **fields)).code


async def made(asker: Asker, topic: str) -> tuple[int, int, int]:
    """(read queues, write queues, perm)."""
    config = json.loads((await asker.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)).body)
    return config["readQueueNums"], config["writeQueueNums"], config["perm"]


@both_stores
async def test_a_topic_has_as_many_queues_as_its_producer_wants_and_the_default_allows(
    tmp_path: Path, store: str
) -> None:
    async with started(store, tmp_path) as address, asking(address) as asker:
        for wanted, queues in ((1, 1), (2, 2), (99, 2), (0, 2), (-1, 2)):
            topic = f"t{wanted}"
            assert await send(asker, topic, "TBW102", wanted) == ResponseCode.SUCCESS
            assert await made(asker, topic) == (queues, queues, OPEN)


@both_stores
async def test_a_topic_is_made_like_the_default_topic_that_its_producer_names(
    tmp_path: Path, store: str
) -> None:
    """RocketMQ lets only topics with the permission to inherit be one."""
    async with started(store, tmp_path) as address, asking(address) as asker:
        model = {"topic": "model", "readQueueNums": 3, "writeQueueNums": 3}
        await asker.get(PUT_TOPIC, **model, perm=OPEN | PERM_INHERIT)
        await asker.get(PUT_TOPIC, **{**model, "topic": "other"}, perm=OPEN)
        assert await send(asker, "like", "model", 16) == ResponseCode.SUCCESS
        assert await made(asker, "like") == (3, 3, OPEN)
        for default_topic in ("other", "unknown"):
            assert await send(asker, "unlike", default_topic, 4) == ResponseCode.TOPIC_NOT_EXIST
        batch = {**send_fields("unlike"), "c": "unknown", "m": "true"}
        item = b"\0\0\0\x16" + bytes(18)
        answer = await asker.ask(RequestCode.SEND_BATCH_MESSAGE, item, **batch)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@both_stores
@pytest.mark.parametrize("topic", sorted(UNSENDABLE_TOPICS))
async def test_no_client_sends_to_a_topic_of_the_broker_or_changes_it(
    tmp_path: Path, store: str, topic: str
) -> None:
    async with started(store, tmp_path) as address, asking(address) as asker:
        assert await send(asker, topic, "TBW102", 4) == ResponseCode.NO_PERMISSION
        for name in {topic, "TBW102"}:
            if name != "SCHEDULE_TOPIC_XXXX":  # an import keeps its account there
                created = await asker.ask(PUT_TOPIC, topic=name, readQueueNums=1, writeQueueNums=1, perm=OPEN)
                assert created.code == ResponseCode.NO_PERMISSION
            deleted = await asker.ask(DELETE_TOPIC, topic=name)
            assert deleted.code == ResponseCode.NO_PERMISSION


@both_stores
async def test_no_administrator_deletes_a_system_topic(tmp_path: Path, store: str) -> None:
    """As in RocketMQ's AdminBrokerProcessor. Deletions were answered with success."""
    reserved = ["BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer", "CHECKPOINT_TOPIC"]
    reserved += ["RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "broker-a", "DefaultCluster_REPLY_TOPIC"]
    async with started(store, tmp_path) as address, asking(address) as asker:
        fields = {"readQueueNums": 1, "writeQueueNums": 1, "perm": OPEN}
        await asker.get(PUT_TOPIC, topic="RMQ_SYS_TRACE_TOPIC", **fields)
        for topic in reserved:
            deleted = await asker.ask(DELETE_TOPIC, topic=topic)
            assert (deleted.code, "769" in (deleted.remark or "")) == (ResponseCode.NO_PERMISSION, True), (
                topic
            )
        assert (await asker.ask(RequestCode.GET_TOPIC_CONFIG, topic="RMQ_SYS_TRACE_TOPIC")).code == 0
        for topic in ("RMQ_SYS_X", "x_REPLY_TOPIC", "broker-b"):
            await asker.get(DELETE_TOPIC, topic=topic)
