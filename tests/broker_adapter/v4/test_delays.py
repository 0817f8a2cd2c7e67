"""When a message with delays in its properties is delivered, as RocketMQ 5.5 does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.endpoints.v4.sends import Delay, delay_of
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import split_properties
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, send_fields
from tests.broker_adapter.v4.stores import STORES, started
from tests.broker_adapter.v4.test_remoting_consumers import SUBSCRIPTION, SUSPEND, pull, records

NOW_MS = 1_000_000
PAST = str(NOW_MS - 5_000)
IMMEDIATE = [
    {"DELAY": "0"},
    {"DELAY": "-1"},
    {"TIMER_DELAY_MS": "0"},
    {"TIMER_DELAY_MS": "-5"},
    {"TIMER_DELAY_SEC": "-1"},
    {"TIMER_DELIVER_MS": "0"},
    {"TIMER_DELIVER_MS": "-1"},
    {"TIMER_DELIVER_MS": PAST},
    {"__STARTDELIVERTIME": "-1"},
    {"DELAY": "-1", "TIMER_DELIVER_MS": PAST},
]
LAST_LEVEL = Delay(NOW_MS + 7_200_000, 18)


@pytest.mark.parametrize("properties", IMMEDIATE, ids=str)
def test_a_time_that_is_over_delays_nothing(properties: dict[str, str]) -> None:
    assert delay_of(properties, NOW_MS) is None


@pytest.mark.parametrize(
    ("properties", "delay"),
    [
        ({"DELAY": "99"}, LAST_LEVEL),
        ({"DELAY": "1", "TIMER_DELIVER_MS": "5"}, Delay(NOW_MS + 1_000, 1)),
        ({"DELAY": "18", "TIMER_DELAY_SEC": "-1"}, LAST_LEVEL),
        ({"DELAY": "18", "TIMER_DELAY_MS": "90000"}, LAST_LEVEL),
        ({"DELAY": "0", "TIMER_DELAY_MS": "9"}, Delay(NOW_MS + 9)),
        ({"TIMER_DELAY_SEC": "9", "TIMER_DELIVER_MS": "5"}, Delay(NOW_MS + 9_000)),
    ],
    ids=str,
)
def test_a_level_overrides_a_time(properties: dict[str, str], delay: Delay) -> None:
    assert delay_of(properties, NOW_MS) == delay


@pytest.fixture(params=STORES)
async def asker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asker]:
    async with started(request.param, tmp_path) as address, asking(address) as asker:
        yield asker


async def test_messages_whose_time_is_over_are_stored_in_their_queue(asker: Asker) -> None:
    for place, properties in enumerate(IMMEDIATE):
        answer = await asker.get(RequestCode.SEND_MESSAGE_V2, b"x", **send_fields("t", 0, **properties))
        assert (answer["queueOffset"], answer.get("recallHandle")) == (str(place), None)


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
async def test_delays_are_dates_on_cluster_time_whatever_the_clock_of_the_machine_shows(
    tmp_path: Path, ahead_ms: int
) -> None:
    """Cluster time is an hour off the clock of this process; both protocols."""
    options = {"wall_ms": lambda: time.time_ns() // 1_000_000 + ahead_ms}
    async with brokers(tmp_path, 1, LISTEN, options=options) as cluster:
        program = await cluster.master()
        delivery, now_ms = program.delivery, program.node.cluster_time_ms
        async with asking(program.remoting.address) as asker:
            due_ms = now_ms() + 1_000
            for delay in ({"TIMER_DELIVER_MS": str(due_ms)}, {"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}):
                answer = await asker.get(RequestCode.SEND_MESSAGE_V2, b"x", **send_fields("t", 0, **delay))
                assert "recallHandle" in answer, delay
            message = OutgoingMessage(b"x")
            await delivery.send_delayed("t", message, message_id="4", deliver_at_ms=now_ms() + 1_000)
            await asker.send("retried", b"x", 0)
            (record,) = records((await pull(asker, "retried", 0)).body)
            back = {"group": "g", "offset": record.physical_offset, "delayLevel": 1}
            await asker.get(RequestCode.CONSUMER_SEND_MSG_BACK, **back)
        found = 0
        while found < 4:
            got = await delivery.receive("g", "t", client_id="c", invisible_ms=600_000, wait_ms=20_000)
            assert got
            assert all(decode(one.record).store_timestamp >= due_ms for one in got)
            found += len(got)
        assert await delivery.receive("g", "%RETRY%g", client_id="c", wait_ms=20_000)


async def test_the_level_of_a_message_wins_over_its_time(asker: Asker) -> None:
    times = {"TIMER_DELIVER_MS": "5", "TIMER_DELAY_MS": "90000", "TIMER_DELAY_SEC": "90"}
    answer = await asker.ask(RequestCode.SEND_MESSAGE_V2, b"x", **send_fields("t", 0, DELAY="1", **times))
    assert answer.code == ResponseCode.SUCCESS
    found = await pull(asker, "t", 0, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=30_000)
    (message,) = records(found.body)
    assert not times.keys() & split_properties(message.properties).keys()


async def test_a_search_by_time_gives_the_boundary_that_is_asked_for(asker: Asker) -> None:
    for _ in range(3):
        await asker.send("t", b"x", 0)
    stored = [one.store_timestamp for one in records((await pull(asker, "t", 0)).body)]

    async def search(when_ms: int, boundary: str) -> int:
        fields = {"topic": "t", "queueId": 0, "timestamp": when_ms, "boundaryType": boundary}
        return int((await asker.get(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **fields))["offset"])

    for when_ms in (stored[0] - 1, *stored, stored[-1] + 1):
        first = next((at for at, ms in enumerate(stored) if ms >= when_ms), len(stored))
        last = max((at for at, ms in enumerate(stored) if ms <= when_ms), default=0)
        assert await search(when_ms, "LOWER") == await search(when_ms, "") == first
        assert await search(when_ms, "UPPER") == await search(when_ms, "upper") == last
    assert await search(time.time_ns() // 1_000_000 + 3_600_000, "UPPER") == 2
