"""The image of the state: pinned, there and back, and damage is found."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.metadata.commands import (
    METADATA_TOPIC,
    BeginQueue,
    DeleteTopic,
    GrantLocks,
    NewGeneration,
    ReleaseLocks,
)
from broker_adapter.metadata.state import MetadataState
from tests.broker_adapter.metadata.samples import Replica, commit, put_group, put_topic

EMPTY = b'{"appliedIndex":-1,"groups":[],"rulesVersion":1,"topics":[]}'


def image_of(payload: bytes) -> bytes:
    return b"DMSI\2" + zlib.crc32(payload).to_bytes(4, "big") + payload


def sample() -> Replica:
    replica = Replica()
    replica.do(put_topic("t"), put_group("g"), NewGeneration("g", frozenset({"m"})))
    replica.do(commit("g", 2, ("t", 10 % 4, 7), ("t", 0, 5)))
    return replica


def test_bytes_of_the_empty_image() -> None:
    assert MetadataState().save() == image_of(EMPTY)


def test_bytes_of_an_image() -> None:
    expected = (
        b'{"appliedIndex":3,"groups":[{"assignment":{"members":{"m":[]},"topics":[]},'
        b'"config":{"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
        b'"groupName":"g","retryMaxTimes":16,"retryQueueNums":1},"generation":2,'
        b'"offsets":{"t":[[0,5],[2,7]]}}],"rulesVersion":1,"topics":[{"order":false,"perm":6,"readQueueNums":4,'
        b'"topicName":"t","topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert sample().save() == image_of(expected)


def test_an_image_brings_everything_back() -> None:
    before, after = sample(), MetadataState()
    after.load(before.save())
    assert (after.topics, after.groups(), after.applied_index) == (
        before.topics,
        before.groups(),
        before.applied_index,
    )


def test_holders_of_locks_are_in_the_image_if_there_are_any() -> None:
    """An image of 0.1.0 has none: so are these bytes, and they load."""
    before, after = sample(), MetadataState()
    without = before.save()
    before.do(GrantLocks("g", "c", (("t", 0), ("t", 2))), GrantLocks("g", "d\u00e9", (("t", 1),)))
    assert b'"lockHolders":{"g":{"c":{"t":[0,2]},"d\\u00e9":{"t":[1]}}}' in before.save()
    after.load(before.save())
    assert after.lock_holders == {"g": {("t", 0): "c", ("t", 2): "c", ("t", 1): "d\u00e9"}}
    assert after.save() == before.save()
    before.do(ReleaseLocks("g", "c", (("t", 0), ("t", 2))), ReleaseLocks("g", "d\u00e9", (("t", 1),)))
    assert b"lockHolders" not in before.save()
    after.load(without)
    assert after.lock_holders == {}


def test_no_image_is_the_empty_state() -> None:
    replica = sample()
    replica.load(b"")
    assert replica.save() == MetadataState().save()


def test_loading_tells_of_no_topic() -> None:
    replica = Replica()
    replica.load(sample().save())
    assert replica.topic("t") is not None and not replica.cuts


@given(st.data())
def test_every_flipped_bit_and_every_cut_is_found(data: st.DataObject) -> None:
    replica = sample()
    before, raw = replica.save(), bytearray(replica.save())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del raw[max(at, 1) :]
    with pytest.raises(StoredDataDamaged) as caught:
        replica.load(bytes(raw))
    assert caught.value.status is Status.METADATA_DAMAGED
    assert replica.save() == before


@given(st.binary(min_size=1, max_size=100))
def test_arbitrary_bytes_are_no_image(data: bytes) -> None:
    for image in (data, image_of(data)):
        with pytest.raises(StoredDataDamaged):
            MetadataState().load(image)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"appliedIndex":3', '"appliedIndex":-2'),
        ('"appliedIndex":3', '"appliedIndex":true'),
        ('"generation":2', '"generation":-2'),
        ("[[0,5],[2,7]]", "[[0,-5],[2,7]]"),
        ("[[0,5],[2,7]]", "[[1024,5],[2,7]]"),
        ("[[0,5],[2,7]]", "[[0,5,6]]"),
        ('"topicName":"t"', f'"topicName":"{METADATA_TOPIC}"'),
        ('"groupName":"g"', '"groupName":""'),
        ('"groupName":"g",', ""),
        ('"m":[]', '"m ":[]'),
        ('{"m":[]}', '["m"]'),
    ],
)
def test_an_image_with_impossible_contents_is_refused(old: str, new: str) -> None:
    payload = sample().save()[9:].decode()
    assert old in payload
    with pytest.raises(StoredDataDamaged):
        MetadataState().load(image_of(payload.replace(old, new).encode()))


def test_an_image_is_sorted_json() -> None:
    payload = sample().save()[9:]
    assert payload == json.dumps(json.loads(payload), separators=(",", ":"), sort_keys=True).encode()


def test_an_image_knows_which_queues_were_imported_without_their_begin() -> None:
    state = Replica()
    state.do(put_topic("t"), put_topic("u"))
    state.do(BeginQueue("t", 1, 7), BeginQueue("t", 0, 0), BeginQueue("u", 2, 3))
    other = Replica()
    other.load(state.save())
    assert (other.imported_queues("t"), other.imported_queues("u")) == ({1}, {2})
    other.do(DeleteTopic("t"), put_topic("t"))
    assert not other.imported_queues("t")
