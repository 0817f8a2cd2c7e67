"""Pure parts of the client: tag expressions, unique keys, batching limits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.client.send_queue import ProducerLimits
from broker_adapter.client.values import message_of, parse_tags
from broker_adapter.errors import IllegalMessage, StoredDataDamaged
from broker_adapter.format.host import Host
from broker_adapter.format.message import Message, decode, encode
from broker_adapter.format.properties import join_properties, split_properties
from broker_adapter.format.unique_keys import UniqueKeys


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", ()), ("", ()), (" * ", ()), ("a", ("a",)), ("a || b", ("a", "b")), ("a||b||a", ("a", "b"))],
)
def test_tag_expressions(expression: str, tags: tuple[str, ...]) -> None:
    assert parse_tags(expression) == tags


@pytest.mark.parametrize("expression", ["a ||", "|| a", "a || * ", "||"])
def test_what_is_no_tag_expression_is_refused(expression: str) -> None:
    with pytest.raises(IllegalMessage):
        parse_tags(expression)


def ms(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type,misc]


def test_a_unique_key_has_address_process_loader_time_in_month_and_counter() -> None:
    times = iter([ms(2024, 2, 1) + 5, ms(2024, 2, 29, 23, 59, 59), ms(2024, 3, 1), ms(2024, 12, 31)])
    keys = UniqueKeys(lambda: next(times), address=bytes([10, 0, 0, 1]), loader=0xABCD)
    keys._process = 0x1234
    assert keys.next() == "0A00000112340000ABCD000000050001"
    assert keys.next() == f"0A00000112340000ABCD{(29 * 86_400 - 1) * 1000:08X}0002"
    assert keys.next() == "0A00000112340000ABCD000000000003"
    assert keys.next() == f"0A00000112340000ABCD{30 * 86_400_000:08X}0004"


def test_a_damaged_record_is_no_message() -> None:
    record = encode(Message("t", b"body"))
    record[-7] ^= 1
    with pytest.raises(StoredDataDamaged):
        message_of(bytes(record))


FIELDS = ["topic", "queue_id", "queue_offset", "body", "store_timestamp", "born_timestamp", "offset_id"]
HOSTS = st.sampled_from([Host(bytes([10, 0, 0, 1]), 10911), Host(bytes(15) + b"\x01", 10911)])
PROPERTIES = st.dictionaries(st.text("kv", min_size=1), st.text("xyü", min_size=1)).map(join_properties)
LONG = st.integers(0, 1 << 41)
MESSAGES = st.builds(
    lambda topic, body, properties, numbers, hosts: Message(
        topic,
        body,
        properties,
        numbers[0] & 0xFF,
        queue_offset=numbers[1],
        physical_offset=numbers[2],
        born_timestamp=numbers[3],
        born_host=hosts[0],
        store_timestamp=numbers[4],
        store_host=hosts[1],
    ),
    st.text("abc%|_-", min_size=1, max_size=200),
    st.binary(max_size=100),
    PROPERTIES,
    st.tuples(LONG, LONG, LONG, LONG, LONG),
    st.tuples(HOSTS, HOSTS),
)


@given(MESSAGES, st.data())
def test_a_message_says_what_its_record_says(whole: Message, data: st.DataObject) -> None:
    record = bytes(encode(whole))
    found, expected = message_of(record), decode(record)
    for name in FIELDS:
        assert getattr(found, name) == getattr(expected, name)
    assert found.properties == split_properties(expected.properties)
    # A damaged record is judged as `decode` judges it.
    corrupt = bytearray(record)
    corrupt[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        expected = decode(bytes(corrupt))
    except StoredDataDamaged as error:
        with pytest.raises(StoredDataDamaged) as refused:
            message_of(bytes(corrupt))
        assert refused.value.status is error.status
    else:
        found = message_of(bytes(corrupt))
        assert all(getattr(found, name) == getattr(expected, name) for name in FIELDS)


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        ProducerLimits(max_batch_bytes=0)
