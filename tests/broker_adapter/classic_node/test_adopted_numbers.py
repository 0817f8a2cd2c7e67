"""Numbers from tables and from other brokers: whatever a state adopts, its image can hold."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.commands import SystemOffset
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.metadata.commands import (
    MAX_QUEUES_PER_TOPIC,
    CommitOffsets,
    DropOffsets,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server.classic_tables import TableAdoption
from broker_adapter.server.table_merge import parse_tables
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.topic_names import HALF_TOPIC, OP_TOPIC

#: Around every limit of a field, and far beyond all of them.
EDGES = [
    sign * (1 << bits) + step for bits in (0, 10, 16, 31, 63, 70) for sign in (-1, 1) for step in (-1, 0, 1)
]
NUMBERS = st.sampled_from(EDGES) | st.integers()
NAMES = st.sampled_from([SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, "t"]) | st.text(max_size=3)
OFFSETS = st.lists(st.builds(QueueOffset, NAMES, NUMBERS, NUMBERS), max_size=3).map(tuple)
COMMANDS = st.one_of(
    st.builds(PutTopic, st.builds(TopicConfig, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS)),
    st.builds(PutGroup, st.builds(GroupConfig, st.just("g"), retry_queues=NUMBERS, retry_max_times=NUMBERS)),
    st.builds(ResetOffsets, st.just("g"), OFFSETS),
    st.builds(CommitOffsets, st.just("g"), NUMBERS, OFFSETS),
    st.builds(DropOffsets, st.just("g"), st.lists(st.tuples(NAMES, NUMBERS), max_size=3).map(tuple)),
)


@pytest.mark.slow
@given(st.lists(st.builds(SystemOffset, NAMES, NUMBERS, NUMBERS)), st.booleans())
def test_whatever_delivery_adopts_its_image_brings_back(offsets: list[SystemOffset], is_whole: bool) -> None:
    before, after = DeliveryState(), DeliveryState()
    refused = before.set_system_offsets(offsets) if is_whole else before.adopt(offsets)
    assert {error.status for error in refused} <= {Status.FIELD_OUT_OF_RANGE}
    image.load(after, image.save(before))
    assert after.system_offsets() == before.system_offsets()


@given(st.lists(COMMANDS), OFFSETS)
def test_whatever_metadata_adopts_its_image_brings_back(
    commands: list[PutTopic], offsets: tuple[QueueOffset, ...]
) -> None:
    before, after = MetadataState(), MetadataState()
    before.adopt(PutTopic(TopicConfig("t", MAX_QUEUES_PER_TOPIC, MAX_QUEUES_PER_TOPIC)))
    before.adopt(PutGroup(GroupConfig("g")))
    for command in commands:
        with suppress(BrokerError):
            before.adopt(command)
    rows = {(topic, queue_id): offset for topic, queue_id, offset in offsets}
    before.restore_offsets("g", {**before.groups()[0].offsets, **rows})
    before.restore_offsets("deleted", rows)
    after.load(before.save())
    assert (after.topics, after.groups()) == (before.topics, before.groups())
    assert after.deleted_groups == before.deleted_groups


def adopted(folder: Path, table: dict[str, int]) -> DeliveryState:
    (folder / "delayOffset.json").write_text(json.dumps({"offsetTable": table}))
    delivery = DeliveryState()
    adoption = TableAdoption(folder, MetadataState(), delivery)
    adoption.begin(True)
    adoption.finish(lambda *queue: 100)
    return delivery


def test_a_level_that_no_image_can_hold_is_not_adopted(tmp_path: Path) -> None:
    delivery = adopted(tmp_path, {"99999999999": 5, "1025": 6, "20": 7, "3": 8})
    assert delivery.system_offsets() == {(SCHEDULE_TOPIC, 19): 7, (SCHEDULE_TOPIC, 2): 8}
    assert image.save(delivery)


@pytest.mark.parametrize("key", ["9" * 19, "9" * 5000, "-1"], ids=["19", "5000", "negative"])
@pytest.mark.parametrize("name", ["delayOffset.json", "consumerOffset.json"])
def test_a_key_beyond_a_long_is_damage(name: str, key: str) -> None:
    numbers = {key: 5}
    table = {"offsetTable": numbers if name == "delayOffset.json" else {"t@g": numbers}}
    with pytest.raises(StoredDataDamaged) as raised:
        parse_tables({name: json.dumps(table).encode()})
    assert raised.value.status is Status.STORE_TABLE_DAMAGED


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("delayOffset.json", {"offsetTable": {"1": 1 << 70}}),
        ("consumerOffset.json", {"offsetTable": {"t@g": {"0": 1 << 63}}}),
        ("topics.json", {"topicConfigTable": {"t": {"readQueueNums": 1 << 63}}}),
        ("subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"retryMaxTimes": -(1 << 64)}}}),
    ],
)
def test_a_number_beyond_a_long_is_damage(name: str, table: dict[str, object]) -> None:
    with pytest.raises(StoredDataDamaged) as raised:
        parse_tables({name: json.dumps(table).encode()})
    assert raised.value.status is Status.STORE_TABLE_DAMAGED
