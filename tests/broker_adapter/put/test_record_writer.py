"""Batches of records are byte for byte what `encode` makes of each message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.api import OutgoingMessage
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.put.record_writer import RecordBatch
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, encode
from broker_adapter.wire.properties import join_properties
from broker_adapter.wire.sys_flag import TRANSACTION_MASK

V4, V6 = Host(bytes((10, 0, 0, 1)), 10911), Host(bytes(range(16)), 65535)
NAMES = st.text("abcXYZ_", min_size=1, max_size=5)

messages = st.builds(
    OutgoingMessage,
    body=st.binary(max_size=64),
    properties=st.dictionaries(NAMES, NAMES, max_size=3),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sys_flag=st.integers(0, 0xFFF).map(lambda bits: bits & ~TRANSACTION_MASK),
    born_timestamp=st.integers(0, 1 << 42),
)


@given(
    st.lists(messages, min_size=1, max_size=5),
    st.sampled_from(["t", "%RETRY%group", "x" * 127, "%DLQ%" + "y" * 200]),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 40),
    st.integers(1, 1 << 42),
    st.sampled_from([V4, V6]),
    st.sampled_from([V4, V6]),
)
def test_records_are_those_of_encode(
    batch: list[OutgoingMessage],
    topic: str,
    offset: int,
    pos: int,
    stored: int,
    born_host: Host,
    store_host: Host,
) -> None:
    writer = RecordBatch(
        topic, 3, batch, born_host=born_host, store_host=store_host, now_ms=777, max_body_bytes=64
    )
    offsets = [pos + 48 + 1000 * i for i in range(len(batch))]
    expected = [
        bytes(
            encode(
                MessageRecord(
                    topic=topic,
                    body=message.body,
                    properties=join_properties(message.properties),
                    queue_id=3,
                    flag=message.flag,
                    queue_offset=offset + i,
                    physical_offset=offsets[i],
                    sys_flag=message.sys_flag,
                    born_timestamp=message.born_timestamp or 777,
                    born_host=born_host,
                    store_timestamp=stored,
                    store_host=store_host,
                )
            )
        )
        for i, message in enumerate(batch)
    ]
    assert writer.fill(offset, offsets, stored) == expected
    assert writer.sizes == [len(record) for record in expected]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (OutgoingMessage(bytes(65)), Status.BODY_TOO_LARGE),
        (OutgoingMessage(b"", {"a": "b\x01"}), Status.PROPERTIES_INVALID),
        (OutgoingMessage(b"", {"a": "b" * 32_767}), Status.PROPERTIES_TOO_LONG),
        (OutgoingMessage(b"", flag=1 << 31), Status.FIELD_OUT_OF_RANGE),
        (OutgoingMessage(b"", sys_flag=1 << 31), Status.FIELD_OUT_OF_RANGE),
        (OutgoingMessage(b"", sys_flag=0x4), Status.FIELD_OUT_OF_RANGE),
        (OutgoingMessage(b"", sys_flag=0x8), Status.FIELD_OUT_OF_RANGE),
        (OutgoingMessage(b"", sys_flag=0xC), Status.FIELD_OUT_OF_RANGE),
        (OutgoingMessage(b"", sys_flag=-1), Status.FIELD_OUT_OF_RANGE),
        (OutgoingMessage(b"", born_timestamp=1 << 63), Status.FIELD_OUT_OF_RANGE),
    ],
)
def test_one_wrong_message_refuses_the_batch(message: OutgoingMessage, status: Status) -> None:
    with pytest.raises(IllegalMessage) as caught:
        RecordBatch(
            "t",
            0,
            [OutgoingMessage(b"good"), message],
            born_host=V4,
            store_host=V4,
            now_ms=1,
            max_body_bytes=64,
        )
    assert caught.value.status is status and caught.value.message.startswith("message 1: ")


def test_the_first_wrong_message_is_named_whatever_is_wrong_with_those_behind_it() -> None:
    batch = [
        OutgoingMessage(b"good"),
        OutgoingMessage(b"", flag=1 << 31),
        OutgoingMessage(bytes(65)),
        OutgoingMessage(b"", {"a": ""}),
    ]
    for first in (1, 2, 3):
        with pytest.raises(IllegalMessage, match=": message 1: "):
            RecordBatch(
                "t",
                0,
                [batch[0], *batch[first:]],
                born_host=V4,
                store_host=V4,
                now_ms=1,
                max_body_bytes=64,
            )
