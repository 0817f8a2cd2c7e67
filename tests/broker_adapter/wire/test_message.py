"""Message records: bytes worked out by hand from the layout, round trips, and records that are none."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.errors import BrokerError, IllegalMessage, Status, StoredDataDamaged
from broker_adapter.wire import message as m
from broker_adapter.wire import sys_flag
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, Version, decode, decode_all, encode, patch_offsets
from broker_adapter.wire.message_id import OffsetId, parse_offset_id
from broker_adapter.wire.properties import split_properties

V1_IPV4 = bytes.fromhex(
    "00000068"  # 104 bytes in all: 88 + 5 of the body + 1 + 1 of the topic + 2 + 7 of the properties
    "DAA320A7"  # V1
    "3610A686"  # CRC32 of "hello"
    "00000003"  # queue 3
    "0000000B"  # flag
    "0000000000000102"  # queue offset
    "0000000000001030"  # physical offset: entry at 0x1000, and 48
    "00000001"  # compressed, both hosts IPv4
    "0000018BCFE56800"  # born 2023-11-14 22:13:20 UTC
    "0A000001 0000D431"  # 10.0.0.1:54321
    "0000018BCFE56BE8"  # stored a second later
    "C0A80102 00002A9F"  # 192.168.1.2:10911
    "00000002"  # consumed twice before
    "0000000000000007"  # prepared transaction offset
    "00000005 68656C6C6F"  # hello
    "01 54"  # T
    "0007 54414753 01 41 02"  # TAGS, A
)
V1_MESSAGE = MessageRecord(
    topic="T",
    body=b"hello",
    properties="TAGS\x01A\x02",
    queue_id=3,
    flag=11,
    queue_offset=0x102,
    physical_offset=0x1030,
    sys_flag=1,
    born_timestamp=1_700_000_000_000,
    born_host=Host.parse("10.0.0.1:54321"),
    store_timestamp=1_700_000_001_000,
    store_host=Host.parse("192.168.1.2:10911"),
    reconsume_times=2,
    prepared_transaction_offset=7,
    version=Version.V1,
)

V2_IPV6 = bytes.fromhex(
    "000000FC"  # 252: 88 + 2 * 12 + 9 + 2 + 127 + 2 + 0
    "DAA320AB"  # V2
    "4BF43926"  # CRC32 of "123456789" is CBF43926; the highest bit is cleared
    "00000000"
    "FFFFFFFF"  # flag -1
    "0000000000000000"
    "0000000000000030"
    "0000003C"  # rollback (12), both hosts IPv6 (16 + 32)
    "0000000000000000"
    "FD000000000000000000000000000001 00000001"
    "0000000000000001"
    "FD000000000000000000000000000002 0000FFFF"
    "00000000"
    "FFFFFFFFFFFFFFFF"
    "00000009 313233343536373839"
    "007F" + "25" * 127 + "0000"
)
V2_MESSAGE = MessageRecord(
    topic="%" * 127,
    body=b"123456789",
    flag=-1,
    physical_offset=48,
    sys_flag=0x3C,
    born_host=Host.parse("[fd00::1]:1"),
    store_timestamp=1,
    store_host=Host.parse("[fd00::2]:65535"),
    prepared_transaction_offset=-1,
    version=Version.V2,
)

VECTORS = pytest.mark.parametrize(
    ("record", "message"), [(V1_IPV4, V1_MESSAGE), (V2_IPV6, V2_MESSAGE)], ids=["v1-ipv4", "v2-ipv6"]
)

I4, I8 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
U31, U63 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
HOSTS = st.builds(
    Host,
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.integers(0, 0xFFFF),
)
UNICODE = st.characters(exclude_categories=["Cs"])
MESSAGES = st.builds(
    MessageRecord,
    topic=st.text(UNICODE, min_size=1, max_size=60).filter(lambda t: len(t.encode()) <= 127),
    body=st.binary(max_size=40),
    properties=st.text(UNICODE, max_size=40),
    queue_id=U31,
    flag=I4,
    queue_offset=U63,
    physical_offset=U63,
    sys_flag=I4,
    born_timestamp=I8,
    born_host=HOSTS,
    store_timestamp=I8,
    store_host=HOSTS,
    reconsume_times=I4,
    prepared_transaction_offset=I8,
    version=st.sampled_from([None, Version.V1, Version.V2]),
)


def status_of(record: bytes | bytearray) -> Status:
    with pytest.raises(StoredDataDamaged) as caught:
        decode(record)
    return caught.value.status


def with_bytes(record: bytes, at: int, new: bytes) -> bytes:
    return record[:at] + new + record[at + len(new) :]


# -- layout


@VECTORS
def test_a_message_has_exactly_these_bytes(record: bytes, message: MessageRecord) -> None:
    assert encode(message) == record
    assert decode(record) == message


def test_ipv6_for_one_host_only_shifts_what_follows_it() -> None:
    born = encode(V1_MESSAGE._replace(born_host=Host.parse("[fd00::1]:54321")))
    assert born[:4] == b"\0\0\0\x74" and born[36:40] == b"\0\0\0\x11"  # 104 + 12; 1 + 16
    assert born[48:68] == bytes.fromhex("FD000000000000000000000000000001 0000D431")
    assert born[68:] == V1_IPV4[56:]
    store = encode(V1_MESSAGE._replace(store_host=Host.parse("[fd00::1]:10911")))
    assert store[:4] == b"\0\0\0\x74" and store[36:40] == b"\0\0\0\x21"
    assert store[40:64] == V1_IPV4[40:64] and store[84:] == V1_IPV4[72:]


def test_the_smallest_record_is_92_bytes() -> None:
    record = encode(MessageRecord("T", b""))
    assert len(record) == m.MIN_RECORD_SIZE + 1 == m.record_size(0, 1, 0)
    assert record[8:12] == bytes(4)  # the crc of nothing is 0
    assert decode(record).body == b""


def test_v2_takes_over_beyond_127_bytes_of_topic() -> None:
    short, long = encode(MessageRecord("x" * 127, b"")), encode(MessageRecord("x" * 128, b""))
    assert decode(short).version is Version.V1 and decode(long).version is Version.V2
    assert len(long) == len(short) + 2
    assert long[88:90] == b"\0\x80" and short[88:89] == b"\x7f"


@given(MESSAGES)
def test_messages_survive_encoding(message: MessageRecord) -> None:
    record = encode(message)
    bits = 16 * message.born_host.is_v6 + 32 * message.store_host.is_v6
    expected = message._replace(sys_flag=message.sys_flag & ~48 | bits, version=message.version or Version.V1)
    assert decode(record) == expected
    assert encode(expected) == record
    topic_size, properties_size = len(message.topic.encode()), len(message.properties.encode())
    assert len(record) == m.record_size(
        len(message.body),
        topic_size,
        properties_size,
        version=expected.version or Version.V1,
        v6_hosts=message.born_host.is_v6 + message.store_host.is_v6,
    )


def test_the_largest_message_has_the_largest_size() -> None:
    host = Host.parse("[::1]:1")
    message = MessageRecord("x" * 255, b"b" * 100, "p" * 32_767, born_host=host, store_host=host)
    record = encode(message, max_body_bytes=100)
    assert len(record) == m.max_record_size(100)
    assert decode(record, max_body_bytes=100).topic == message.topic
    with pytest.raises(StoredDataDamaged) as caught:
        decode(record, max_body_bytes=99)
    assert caught.value.status is Status.RECORD_LENGTHS


def test_the_offset_id_of_a_message_leads_to_its_record() -> None:
    message = decode(V1_IPV4)
    assert message.offset_id == "C0A8010200002A9F0000000000001030"
    assert parse_offset_id(message.offset_id) == OffsetId(message.store_host, message.physical_offset)
    assert split_properties(message.properties) == {"TAGS": "A"}


# -- runs of records


@given(st.lists(MESSAGES, max_size=4))
def test_records_that_follow_each_other_are_read_in_order(messages: list[MessageRecord]) -> None:
    records = [encode(message) for message in messages]
    run = b"".join(records)
    assert decode_all(run) == [decode(record) for record in records]
    at = 0
    for record in records:
        assert m.record_size_at(run, at) == len(record)
        at += len(record)


def test_a_run_with_a_torn_end_is_refused() -> None:
    for length in range(1, len(V1_IPV4)):
        with pytest.raises(StoredDataDamaged) as caught:
            decode_all(V2_IPV6 + V1_IPV4[:length])
        assert caught.value.status is Status.RECORD_TRUNCATED


# -- patching


@VECTORS
def test_patching_changes_both_offsets_and_nothing_else(record: bytes, message: MessageRecord) -> None:
    buffer = bytearray(b"before" + record + b"after")
    patch_offsets(buffer, 0x1122334455667788, 0x0102030405060738, at=6)
    patched = bytes(buffer[6:-5])
    assert patched[20:36] == bytes.fromhex("1122334455667788 0102030405060738")
    assert patched[:20] + patched[36:] == record[:20] + record[36:]
    assert buffer[:6] == b"before" and buffer[-5:] == b"after"
    assert decode(patched) == message._replace(
        queue_offset=0x1122334455667788, physical_offset=0x0102030405060738
    )


@given(MESSAGES, U63, U63)
def test_a_patched_record_is_the_one_encoded_with_its_offsets(
    message: MessageRecord, queue_offset: int, physical_offset: int
) -> None:
    record = encode(message)
    patch_offsets(memoryview(record), queue_offset, physical_offset)
    assert record == encode(message._replace(queue_offset=queue_offset, physical_offset=physical_offset))


@pytest.mark.parametrize(
    ("queue_offset", "physical_offset", "at"),
    [
        (-1, 0, 0),
        (2**63, 0, 0),
        (0, -1, 0),
        (0, 2**63, 0),
        (0, 0, -1),
        (0, 0, 1),
        (0, 0, 14),
        (0, 0, 200),
    ],
)
def test_nothing_is_patched_where_no_record_is(queue_offset: int, physical_offset: int, at: int) -> None:
    buffer = bytearray(V1_IPV4)
    with pytest.raises(ValueError):
        patch_offsets(buffer, queue_offset, physical_offset, at=at)
    assert buffer == V1_IPV4


# -- what cannot be encoded


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"topic": ""}, Status.TOPIC_NAME_INVALID),
        ({"topic": "\ud800"}, Status.TOPIC_NAME_INVALID),
        ({"topic": "x" * 128}, Status.TOPIC_NAME_TOO_LONG),  # the vector says V1
        ({"topic": "x" * 256, "version": None}, Status.TOPIC_NAME_TOO_LONG),
        ({"topic": "é" * 128, "version": Version.V2}, Status.TOPIC_NAME_TOO_LONG),
        ({"properties": "\ud800"}, Status.PROPERTIES_INVALID),
        ({"properties": "x" * 32_768}, Status.PROPERTIES_TOO_LONG),
        ({"body": bytes((4 << 20) + 1)}, Status.BODY_TOO_LARGE),
        ({"queue_id": -1}, Status.FIELD_OUT_OF_RANGE),
        ({"queue_id": 2**31}, Status.FIELD_OUT_OF_RANGE),
        ({"flag": 2**31}, Status.FIELD_OUT_OF_RANGE),
        ({"queue_offset": -1}, Status.FIELD_OUT_OF_RANGE),
        ({"queue_offset": 2**63}, Status.FIELD_OUT_OF_RANGE),
        ({"physical_offset": -1}, Status.FIELD_OUT_OF_RANGE),
        ({"physical_offset": 2**63}, Status.FIELD_OUT_OF_RANGE),
        ({"sys_flag": 2**31}, Status.FIELD_OUT_OF_RANGE),
        ({"born_timestamp": 2**63}, Status.FIELD_OUT_OF_RANGE),
        ({"store_timestamp": -(2**63) - 1}, Status.FIELD_OUT_OF_RANGE),
        ({"reconsume_times": 2**31}, Status.FIELD_OUT_OF_RANGE),
        ({"prepared_transaction_offset": 2**63}, Status.FIELD_OUT_OF_RANGE),
        ({"born_host": Host(bytes(5), 0)}, Status.FIELD_OUT_OF_RANGE),
        ({"store_host": Host(bytes(4), 65_536)}, Status.FIELD_OUT_OF_RANGE),
    ],
)
def test_what_no_record_can_hold_is_refused_with_its_number(
    change: dict[str, object], status: Status
) -> None:
    with pytest.raises(IllegalMessage) as caught:
        encode(V1_MESSAGE._replace(**change))
    assert caught.value.status is status
    [name, *_] = change
    if status is Status.FIELD_OUT_OF_RANGE and not name.endswith("host"):
        assert name in str(caught.value)


def test_a_body_may_have_4_mib_and_whatever_the_limit_allows() -> None:
    body = bytes(4 << 20)
    assert decode(encode(MessageRecord("T", body))).body == body
    encode(MessageRecord("T", b"12345"), max_body_bytes=5)
    with pytest.raises(IllegalMessage) as caught:
        encode(MessageRecord("T", b"123456"), max_body_bytes=5)
    assert caught.value.status is Status.BODY_TOO_LARGE and caught.value.response_code == 13


# -- what is no record


@VECTORS
def test_a_record_cut_anywhere_is_truncated(record: bytes, message: MessageRecord) -> None:
    for length in range(len(record)):
        assert status_of(record[:length]) is Status.RECORD_TRUNCATED


@VECTORS
def test_a_byte_too_many_is_noticed(record: bytes, message: MessageRecord) -> None:
    assert status_of(record + b"\0") is Status.RECORD_LENGTHS


@VECTORS
@pytest.mark.parametrize("flip", [0x01, 0x10, 0x80, 0xFF])
def test_a_flipped_byte_is_an_error_or_another_message_with_just_these_bytes(
    record: bytes, message: MessageRecord, flip: int
) -> None:
    for at in range(len(record)):
        flipped = with_bytes(record, at, bytes([record[at] ^ flip]))
        try:
            other = decode(flipped)
        except BrokerError as error:
            assert isinstance(error, StoredDataDamaged)
        else:
            assert other != message and encode(other) == flipped


@given(st.binary(max_size=200), st.integers(0, 200), st.binary(max_size=12))
@settings(max_examples=300)
def test_what_decodes_encodes_to_the_same_bytes(noise: bytes, at: int, patch: bytes) -> None:
    for data in (noise, with_bytes(V1_IPV4, at % len(V1_IPV4), patch)[: len(V1_IPV4)]):
        try:
            message = decode(data)
        except StoredDataDamaged:
            continue
        assert encode(message) == data


TOPIC_SIZE_AT = 93  # in V1_IPV4: 88 and 5 of the body
PROPERTIES_SIZE_AT = 95


@pytest.mark.parametrize(
    ("at", "new", "status"),
    [
        (0, "00000000", Status.RECORD_LENGTHS),
        (0, "0000005B", Status.RECORD_LENGTHS),  # 91: no room for a topic
        (0, "80000068", Status.RECORD_LENGTHS),
        (0, "00000067", Status.RECORD_LENGTHS),  # a byte less than there is
        (0, "00000069", Status.RECORD_TRUNCATED),
        (0, "00410000", Status.RECORD_LENGTHS),  # 4 MiB + 64 KiB: beyond the limit
        (4, "CBD43194", Status.RECORD_MAGIC),  # a blank
        (4, "00000001", Status.RECORD_MAGIC),  # an entry of the log
        (4, "DAA320AB", Status.RECORD_LENGTHS),  # V1 taken for V2: the topic is 0x0154 bytes long
        (8, "3610A687", Status.RECORD_BODY_CRC),
        (8, "B610A686", Status.RECORD_BODY_CRC),  # the highest bit belongs to no crc
        (12, "FFFFFFFF", Status.RECORD_FIELD),
        (20, "8000000000000000", Status.RECORD_FIELD),
        (28, "FFFFFFFFFFFFFFFF", Status.RECORD_FIELD),
        (36, "00000031", Status.RECORD_LENGTHS),  # hosts of IPv6, which there is no room for
        (52, "00010000", Status.RECORD_FIELD),  # a port beyond 65535
        (68, "FFFFFFFF", Status.RECORD_FIELD),
        (84, "FFFFFFFF", Status.RECORD_LENGTHS),
        (84, "7FFFFFFF", Status.RECORD_LENGTHS),
        (84, "00000010", Status.RECORD_LENGTHS),
        (88, "69", Status.RECORD_BODY_CRC),
        (TOPIC_SIZE_AT, "00", Status.RECORD_LENGTHS),
        (TOPIC_SIZE_AT, "80", Status.RECORD_LENGTHS),  # V1 ends at 127
        (TOPIC_SIZE_AT, "08", Status.RECORD_LENGTHS),  # nothing is left for the size of the properties
        (TOPIC_SIZE_AT + 1, "FF", Status.RECORD_TEXT),
        (PROPERTIES_SIZE_AT, "FFFF", Status.RECORD_LENGTHS),
        (PROPERTIES_SIZE_AT, "0006", Status.RECORD_LENGTHS),
        (PROPERTIES_SIZE_AT, "0008", Status.RECORD_LENGTHS),
        (PROPERTIES_SIZE_AT + 2, "C0", Status.RECORD_TEXT),
    ],
)
def test_each_thing_that_is_wrong_has_its_number(at: int, new: str, status: Status) -> None:
    assert status_of(with_bytes(V1_IPV4, at, bytes.fromhex(new))) is status


def test_a_body_of_negative_size_is_noticed_even_if_all_sizes_add_up() -> None:
    record = with_bytes(V1_IPV4, 84, bytes.fromhex("FFFFFFF8"))  # -8: the body would end at byte 80
    record = with_bytes(record, 80, b"\x0d")  # there a topic of 13 bytes,
    record = with_bytes(record, 94, b"\0\x08")  # and after it properties up to the end
    assert status_of(record) is Status.RECORD_LENGTHS


def test_a_body_beyond_the_limit_is_noticed_even_if_the_record_is_not() -> None:
    with pytest.raises(StoredDataDamaged) as caught:
        decode(V1_IPV4, max_body_bytes=4)
    assert caught.value.status is Status.RECORD_LENGTHS
    assert decode(V1_IPV4, max_body_bytes=5) == V1_MESSAGE


@pytest.mark.parametrize("size", [0, 1, 8, 91])
def test_a_size_that_is_none_ends_no_run_and_begins_none(size: int) -> None:
    broken = with_bytes(V1_IPV4, 0, size.to_bytes(4, "big"))
    for data, at in ((broken, 0), (V2_IPV6 + broken + V1_IPV4, len(V2_IPV6))):
        with pytest.raises(StoredDataDamaged) as caught:
            m.record_size_at(data, at)
        assert caught.value.status is Status.RECORD_LENGTHS
        with pytest.raises(StoredDataDamaged):
            decode_all(data)


def test_a_record_does_not_reach_into_the_next_one() -> None:
    for at, new in ((84, b"\0\0\0\x10"), (TOPIC_SIZE_AT, b"\x10"), (PROPERTIES_SIZE_AT, b"\0\x20")):
        with pytest.raises(StoredDataDamaged) as caught:
            decode_all(with_bytes(V1_IPV4, at, new) + V1_IPV4)
        assert caught.value.status is Status.RECORD_LENGTHS


def test_a_topic_of_v2_ends_at_255_bytes() -> None:
    record = encode(MessageRecord("x" * 255, b""))
    # One byte moves from the properties, of which there are none, so the record grows by it.
    longer = record[:88] + b"\x01\x00" + b"x" * 256 + b"\0\0"
    longer[:4] = len(longer).to_bytes(4, "big")
    assert status_of(longer) is Status.RECORD_LENGTHS


def test_the_body_crc_is_left_alone_on_request() -> None:
    flipped = with_bytes(V1_IPV4, 88, b"j")
    assert decode(flipped, verify_body=False).body == b"jello"
    assert decode_all(flipped + V1_IPV4, verify_body=False)[0].body == b"jello"
    assert status_of(flipped) is Status.RECORD_BODY_CRC
    assert crc32(b"hello") == 0x3610A686


def test_a_negative_place_holds_no_record() -> None:
    with pytest.raises(StoredDataDamaged):
        m.record_size_at(V1_IPV4 + V1_IPV4, -len(V1_IPV4))


def test_the_bits_of_sys_flag_are_those_of_rocketmq() -> None:
    assert (sys_flag.COMPRESSED, sys_flag.MULTI_TAGS) == (1, 2)
    assert (sys_flag.TRANSACTION_NONE, sys_flag.TRANSACTION_PREPARED) == (0, 4)
    assert (sys_flag.TRANSACTION_COMMIT, sys_flag.TRANSACTION_ROLLBACK) == (8, 12)
    assert sys_flag.TRANSACTION_MASK == 12
    assert (sys_flag.BORN_HOST_V6, sys_flag.STORE_HOST_V6, sys_flag.HOST_BITS) == (16, 32, 48)
    assert sys_flag.COMPRESSION_MASK == 7 << 8
