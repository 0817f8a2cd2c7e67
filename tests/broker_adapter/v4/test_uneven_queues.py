"""Topics with different numbers of read and write queues, and topics that may not be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.v4.asker import Asker, asking, send_fields
from tests.broker_adapter.v4.stores import STORES, started
from tests.broker_adapter.v4.test_remoting_consumers import beat, pull, records

READ, WRITE = 4, 2
OFFSET_REQUESTS = (
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)


@pytest.fixture(params=STORES)
async def asker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asker]:
    async with started(request.param, tmp_path) as address, asking(address) as asker:
        yield asker


async def put(asker: Asker, read: int, write: int, permission: int = READ | WRITE) -> None:
    counts = {"readQueueNums": read, "writeQueueNums": write, "perm": permission}
    await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="t", **counts)


async def reset(asker: Asker, **more: object) -> dict[int, int]:
    fields = {"topic": "t", "group": "g", "timestamp": 1, "isForce": "true", **more}
    answer = await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer
    fields = {"consumerGroup": "g", "topic": "t"}
    table = (await asker.ask(RequestCode.GET_CONSUME_STATS, **fields)).body
    return {number: offset_of(table, number) for number in range(4)}


def offset_of(table: bytes, queue_id: int) -> int:
    """Of the statistics of a group: their keys are objects, which is no JSON."""
    row = table.split(b'"queueId":%d,"topic":"t"}:' % queue_id)[1]
    return int(row.split(b'"consumerOffset":')[1].split(b",")[0])


async def test_sends_are_accepted_up_to_the_larger_count(asker: Asker) -> None:
    """A producer with an older route sends to the queues that a topic had before."""
    await put(asker, read=4, write=2)
    sent = await asker.send("t", b"x", 3)
    assert sent["queueId"] == "3"
    (message,) = records((await pull(asker, "t", 0, queueId=3)).body)
    assert message.body == b"x"
    refused = await asker.ask(RequestCode.SEND_MESSAGE_V2, b"x", **send_fields("t", 4))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("permission", [READ | WRITE, WRITE])
async def test_a_repeated_send_to_a_queue_that_may_not_be_read_gets_the_first_answer(
    asker: Asker, permission: int
) -> None:
    await put(asker, read=2, write=4, permission=permission)
    first, again = [await asker.send("t", b"x", 3, UNIQ_KEY="id") for _ in range(2)]
    assert again["duplicate"] == "true"
    assert again["msgId"] == first["msgId"]


@pytest.mark.parametrize("permission", [READ | WRITE, WRITE])
async def test_a_reset_by_time_and_statistics_need_no_read_permission(asker: Asker, permission: int) -> None:
    await put(asker, read=2, write=4)
    for queue_id in range(4):
        await asker.send("t", b"x", queue_id)
    await asker.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))
    await put(asker, read=2, write=4, permission=permission)
    assert await reset(asker, timestamp=-1) == dict.fromkeys(range(4), 1)
    assert await reset(asker) == dict.fromkeys(range(4), 0)
    for code in OFFSET_REQUESTS:
        await asker.get(code, topic="t", queueId=3, timestamp=1)


@pytest.mark.parametrize("number", [0, 2])
async def test_a_reset_of_one_queue_by_time_leaves_the_others(asker: Asker, number: int) -> None:
    await put(asker, read=4, write=4)
    for queue_id in range(4):
        await asker.send("t", b"x", queue_id)
    await asker.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))
    await reset(asker, timestamp=-1)
    assert await reset(asker, queueId=number, offset=-1) == dict.fromkeys(range(4), 1) | {number: 0}
