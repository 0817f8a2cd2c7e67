"""What of a level is due, and how often it was tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.put.record_writer import BrokerFields
from broker_adapter.scheduled.system_queues import LevelDelivery, _due
from broker_adapter.scheduled.waiting import waiting
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit
from broker_adapter.wire.message import MessageRecord, encode
from broker_adapter.wire.properties import join_properties

NOW, LATEST = 100_000, 110_000  # of a level of 10 s


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([], 0),
        ([NOW], 1),
        ([NOW + 1], 0),
        ([LATEST], 0),
        ([LATEST + 1], 1),  # a clock was set back since: it would wait for longer than its level
        ([NOW - 5, LATEST + 1, NOW, NOW + 1, NOW], 3),
    ],
)
def test_what_is_due_of_a_level(times: list[int], count: int) -> None:
    units = [ConsumeQueueUnit(100 * at, 100, due_ms) for at, due_ms in enumerate(times)]
    assert _due(units, NOW, LATEST) == count


@pytest.mark.parametrize(
    ("topic", "told", "stored", "times"),
    [("%RETRY%g", "2", 0, 2), ("%RETRY%g", "2", 5, 5), ("%RETRY%g", "", 5, 5), ("t", "2", 0, 0)],
)
def test_how_often_it_was_tried_is_what_either_broker_says(
    topic: str, told: str, stored: int, times: int
) -> None:
    """RocketMQ's has it in the record alone."""
    noted: list[BrokerFields] = []

    def records(*_: object, own: BrokerFields, **__: object) -> None:
        noted.append(own)

    parts = SimpleNamespace(writer=SimpleNamespace(records=records), now_ms=lambda: NOW)
    properties = {"REAL_TOPIC": topic, "REAL_QID": "0"} | ({"RECONSUME_TIME": told} if told else {})
    record = encode(
        MessageRecord("SCHEDULE_TOPIC_XXXX", b"x", join_properties(properties), reconsume_times=stored)
    )
    found = waiting(bytes(record))
    assert found is not None
    LevelDelivery(cast(Any, parts))._records(found, 0)
    assert [own.reconsume_times for own in noted] == [times]
