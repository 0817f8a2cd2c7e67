"""Messages that consumers send to their group's retry topic themselves, as Java clients do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.wire.properties import split_properties
from tests.broker_adapter.v4.asker import Asker, asking, send_fields
from tests.broker_adapter.v4.stores import STORES, started
from tests.broker_adapter.v4.test_remoting_consumers import SUBSCRIPTION, SUSPEND, beat, pull, records

RETRY, DEAD = "%RETRY%g", "%DLQ%g"
#: What Java's clients leave in such a message, and the level of its delay.
PROPERTIES = {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "first", "UNIQ_KEY": "u1"}
DELAY = {"DELAY": "1"}


@pytest.fixture(params=STORES)
async def asker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asker]:
    """A member of group g, which has its retry topic."""
    async with started(request.param, tmp_path) as address, asking(address) as asker:
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
        yield asker


async def send(
    asker: Asker, times: int, most: int, delay: Mapping[str, str] = DELAY, **properties: str
) -> int:
    fields = {**send_fields(RETRY, 0, **PROPERTIES, **delay, **properties), "j": times, "l": most}
    return (await asker.ask(RequestCode.SEND_MESSAGE_V2, b"x", **fields)).code


async def only(asker: Asker, topic: str) -> dict[str, str]:
    """The properties of the only message, when it can be seen."""
    found = records(
        (await pull(asker, topic, 0, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=30_000)).body
    )
    (message,) = found
    assert message.body == b"x"
    return split_properties(message.properties)


async def lock(asker: Asker) -> None:
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": 0}
    body = {"consumerGroup": "g", "clientId": "c1", "mqSet": [queue]}
    await asker.get(RequestCode.LOCK_BATCH_MQ, json.dumps(body).encode())


@pytest.mark.parametrize("delay", [DELAY, {}], ids=["delayed", "immediate"])
async def test_beyond_the_maximum_it_is_a_dead_letter(asker: Asker, delay: Mapping[str, str]) -> None:
    """The fallback after a failed send-back counts the failure that it reports."""
    assert await send(asker, 3, 2, delay) == ResponseCode.SUCCESS
    found = await only(asker, DEAD)
    assert (found["RETRY_TOPIC"], found["RECONSUME_TIME"]) == ("t", "3")
    assert "DELAY" not in found


async def test_up_to_the_maximum_it_is_tried_again(asker: Asker) -> None:
    assert await send(asker, 2, 2) == ResponseCode.SUCCESS
    assert (await only(asker, RETRY))["RECONSUME_TIME"] == "2"


async def test_of_a_group_that_consumes_in_order_it_is_a_dead_letter(asker: Asker) -> None:
    """Such a consumer sends only what has reached the maximum, which it does not exceed."""
    await lock(asker)
    assert await send(asker, 2, 2) == ResponseCode.SUCCESS
    await only(asker, DEAD)


@pytest.mark.parametrize(("times", "topic"), [(1, RETRY), (9, DEAD)])
async def test_one_of_a_transaction_waits_for_no_end_of_it(asker: Asker, times: int, topic: str) -> None:
    """Clients before 4.6.1 leave the property in the message."""
    assert await send(asker, times, 2, TRAN_MSG="true", PGROUP="p") == ResponseCode.SUCCESS
    assert "TRAN_MSG" not in await only(asker, topic)


async def test_a_group_without_retries_has_dead_letters_at_once(asker: Asker) -> None:
    group = json.dumps({"groupName": "g", "retryQueueNums": 0}).encode()
    await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
    assert await send(asker, 1, 16) == ResponseCode.SUCCESS
    await only(asker, DEAD)


async def test_a_batch_is_refused(asker: Asker) -> None:
    fields = {**send_fields(RETRY, 0), "m": "true"}
    refused = await asker.ask(RequestCode.SEND_BATCH_MESSAGE, b"", **fields)
    assert refused.code != ResponseCode.SUCCESS and "retry topic" in (refused.remark or "")
