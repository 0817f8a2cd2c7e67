"""Filters of the remoting protocol: of pulls, pops and heartbeats, and the check when a consumer starts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.endpoints.filters.sql92 import MAX_LENGTH
from broker_adapter.endpoints.v4.bodies import MAX_BODY_BYTES, MAX_BODY_VALUES
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import beat, pull, records
from tests.broker_adapter.v4.test_remoting_pops import pop

LONG = " || ".join(f"t{i}" for i in range(2_500))
CODES = {True: ResponseCode.SUCCESS, False: ResponseCode.SUBSCRIPTION_PARSE_FAILED}


@pytest.fixture
async def asker(tmp_path: Path) -> AsyncIterator[Asker]:
    async with (
        brokers(tmp_path, 1, LISTEN) as cluster,
        asking((await cluster.master()).remoting.address) as it,
    ):
        for body, properties in (
            (b"none", {}),
            (b"a", {"s": "a", "TAGS": "red"}),
            (b"b", {"s": "b", "TAGS": "t2499"}),
            (b"c", {"TAGS": "a|b"}),
        ):
            await it.send("t", body, 0, **properties)
        yield it


#: As RocketMQ 5.5 answers. It accepts every expression of tags.
CHECKS = [
    ("TAG", "red ||", True),
    ("TAG", "a|b", True),
    ("TAG", "||", True),
    ("", "red", True),
    (None, "red", True),
    ("SQL92", "n > 3L", True),
    ("SQL92", "n > 0x10", True),
    ("SQL92", "n > 2 -- c", True),
    ("SQL92", "a == 1", False),
    ("SQL92", "n in (3)", False),
    ("SQL92", "a > 'b'", False),
    ("SQL92", "n between 4 and 1", False),
    ("SQL92", "n = null", False),
    ("SQL92", "", False),
    ("FOO", "x", False),
]


@pytest.mark.parametrize(("kind", "text", "is_valid"), CHECKS)
async def test_the_check_at_the_start_of_a_consumer(
    asker: Asker, kind: str | None, text: str, *, is_valid: bool
) -> None:
    subscription = {"topic": "t", "subString": text, "subVersion": 1, "expressionType": kind}
    body = {"clientId": "c", "group": "g", "subscriptionData": subscription}
    answer = await asker.ask(RequestCode.CHECK_CLIENT_CONFIG, json.dumps(body).encode())
    assert answer.code == CODES[is_valid]
    answer = await pull(asker, "t", 0, subscription=text, expressionType=kind or "")
    assert (answer.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED) == is_valid, "pulls agree with the check"


SELECTED = [
    ("TAG", "red ||", [b"a"]),
    ("TAG", "|| red", [b"a"]),
    ("TAG", "red || || t2499", [b"a", b"b"]),
    ("TAG", "a|b", [b"c"]),
    ("TAG", "red || *", [b"a"]),
    ("TAG", " ", [b"none", b"a", b"b", b"c"]),
    ("TAG", LONG, [b"b"]),
    ("SQL92", "NOT (s CONTAINS 'a')", [b"none", b"b", b"c"]),
    ("SQL92", "s = missing", [b"none", b"c"]),
    ("SQL92", " OR ".join(f"TAGS = 't{i}'" for i in range(500, 1_000)) + " OR s = 'a'", [b"a"]),
    ("SQL92", "TAGS IN (" + ",".join(f"'t{i}'" for i in range(2_500)) + ")", [b"b"]),
]


@pytest.mark.parametrize(("kind", "text", "bodies"), SELECTED, ids=[text[:24] for _, text, _ in SELECTED])
async def test_pulls_pops_and_heartbeats_select_the_same(
    asker: Asker, kind: str, text: str, bodies: list[bytes]
) -> None:
    await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t", text, kind))
    by_heartbeat = await pull(asker, "t", 0, sysFlag=0, subscription="")
    assert [one.body for one in records(by_heartbeat.body)] == bodies
    by_pull = await pull(asker, "t", 0, subscription=text, expressionType=kind)
    assert [one.body for one in records(by_pull.body)] == bodies
    by_pop = await pop(asker, exp=text, expType=kind)
    assert [one.body for one in records(by_pop.body)] == bodies


async def test_a_large_heartbeat_is_accepted_up_to_a_bound_of_its_work(asker: Asker) -> None:
    """RocketMQ's clients send all subscriptions of all their groups in one body."""

    def heartbeat(count: int, size: int = 3_000) -> bytes:
        one = json.loads(beat("c1", "g", "t"))
        group = one["consumerDataSet"][0]
        (subscription,) = group["subscriptionDataSet"]
        padded = {**subscription, "subString": "x" * (size // 10)}
        group["subscriptionDataSet"] = [{**padded, "topic": f"t{i}"} for i in range(count)]
        return json.dumps(one).encode()

    large = heartbeat(3_000)
    assert 1 << 20 < len(large) < MAX_BODY_BYTES
    await asker.get(RequestCode.HEART_BEAT, large)
    listed = await asker.body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert listed["consumerIdList"] == ["c1"]
    lists = b'{"clientID":"c","x":[' + b"[]," * (MAX_BODY_VALUES // 2) + b"[]]}"
    assert len(lists) < MAX_BODY_BYTES
    longest = beat("c1", "g", "t", "x" * MAX_LENGTH)
    await asker.get(RequestCode.HEART_BEAT, longest)
    for refused in (lists, b" " * MAX_BODY_BYTES + longest, beat("c1", "g", "t", "x" * (MAX_LENGTH + 1))):
        assert "REQUEST_MALFORMED" in str(await asker.ask(RequestCode.HEART_BEAT, refused))
