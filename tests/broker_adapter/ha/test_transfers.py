"""Bytes between a master of RocketMQ and a slave, by values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import HaRefused, Status, StoredDataDamaged
from broker_adapter.log.classic.ha.records import RecordReader
from broker_adapter.log.classic.ha.transfers import (
    ReportReader,
    Transfer,
    TransferReader,
    encode_report,
    encode_transfer,
    first_report,
    supplied,
)
from broker_adapter.wire.message import MessageRecord, encode


def frame(offset: int, data: bytes) -> bytes:
    """As RocketMQ 5.5 was seen to send it."""
    return struct.pack(">qi", offset, len(data)) + data


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def test_reports() -> None:
    assert encode_report(0x0102030405060708).hex() == "0102030405060708"
    # 0 would give the newest file only.
    assert encode_report(first_report(0)) == encode_report(first_report(1)) == bytes(7) + b"\x01"
    assert first_report(7) == 7
    assert (supplied(0), supplied(1), supplied(7)) == (b"\0", b"", b"")


@given(st.lists(st.integers(0, 10**6), max_size=9), st.integers(0, 1 << 62))
def test_a_stream_however_it_is_cut(cuts: list[int], offset: int) -> None:
    begin = max(offset, 1)
    sent = frame(begin, b"abc") + frame(begin + 3, b"") + frame(begin + 3, b"defg") + frame(begin + 7, b"")
    reader = TransferReader(begin)
    found = [one for piece in pieces(sent, cuts) for one in reader.feed(piece)]
    assert b"".join(one.data for one in found) == b"abcdefg" and reader.position == begin + 7
    assert [one for one in found if not one.data] == [Transfer(begin + 3, b""), Transfer(begin + 7, b"")]
    at = begin
    for one in found:
        assert one.offset == at
        at += len(one.data)


@pytest.mark.parametrize(
    "sent",
    [frame(6, b"x"), frame(4, b""), struct.pack(">qi", 5, -1), struct.pack(">qi", 5, (1 << 30) + 1)],
)
def test_frames_that_do_not_go_on(sent: bytes) -> None:
    with pytest.raises(HaRefused):
        list(TransferReader(5).feed(sent))


def test_a_frame_takes_no_memory_for_what_has_not_come() -> None:
    reader = TransferReader(5)
    assert list(reader.feed(struct.pack(">qi", 5, 1 << 30) + b"x")) == [Transfer(5, b"x")]


@given(st.lists(st.integers(0, 10**6), max_size=9), st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_reports_however_they_are_cut(cuts: list[int], offsets: list[int]) -> None:
    reader = ReportReader()
    sent = b"".join(struct.pack(">q", offset) for offset in offsets)
    assert [one for piece in pieces(sent, cuts) for one in reader.feed(piece)] == offsets
    assert not reader.feed(b"1234567") and reader.feed(b"8") == [int.from_bytes(b"12345678")]


def test_a_master_sends_what_rocketmq_was_seen_to_send() -> None:
    assert encode_transfer(5, b"abc") == frame(5, b"abc") and encode_transfer(1 << 40, b"") == frame(
        1 << 40, b""
    )


def test_the_first_frame_with_data_says_where_a_log_begins() -> None:
    reader = TransferReader(0, begins_anywhere=True)
    sent = frame(4096, b"") + frame(8192, b"") + frame(8192, b"ab") + frame(8194, b"c")
    assert [one.data for one in reader.feed(sent) if one.data] == [b"ab", b"c"] and reader.position == 8195
    with pytest.raises(HaRefused):
        list(reader.feed(frame(4096, b"x")))
    with pytest.raises(HaRefused):
        list(TransferReader(0, begins_anywhere=True).feed(frame(-4096, b"x")))


def record(number: int, position: int, body: bytes = b"body") -> bytes:
    return bytes(encode(MessageRecord("t", body, queue_offset=number, physical_offset=position)))


def blank(size: int) -> bytes:
    return struct.pack(">II", size, 0xCBD43194) + bytes(size - 8)


@given(st.lists(st.integers(0, 10**6), max_size=9))
def test_records_and_blanks_however_they_are_cut(cuts: list[int]) -> None:
    log, begin, records = b"", 4096, []
    for number, size in enumerate((8, 0, 300, 9)):
        records.append(record(number, begin + len(log)))
        log += records[-1] + (blank(size) if size else b"")
    reader = RecordReader(begin)
    found = [one for piece in pieces(log, cuts) for one in reader.feed(piece)]
    assert [one.message.queue_offset for one in found] == [0, 1, 2, 3]
    assert [one.record for one in found] == records
    assert reader.position == begin + len(log)


def test_a_record_that_is_not_complete_counts_for_nothing() -> None:
    whole = record(0, 7)
    reader = RecordReader(7)
    assert not list(reader.feed(whole[:-1])) and reader.position == 7
    assert len(list(reader.feed(whole[-1:]))) == 1 and reader.position == 7 + len(whole)


def test_no_byte_of_a_record_can_be_wrong_unseen() -> None:
    """What no sum covers has another way to be seen: positions here, and queue offsets by who stores it."""
    whole = record(0, 7)
    for data, status in (
        (record(0, 8), Status.RECORD_FIELD),
        (bytes(8), Status.RECORD_MAGIC),
        (struct.pack(">II", 7, 0xCBD43194), Status.RECORD_LENGTHS),
        (struct.pack(">II", 1 << 31, 0xDAA320A7), Status.RECORD_LENGTHS),
        (whole.replace(b"body", b"bode"), Status.RECORD_BODY_CRC),
    ):
        with pytest.raises(StoredDataDamaged) as caught:
            list(RecordReader(7).feed(data))
        assert caught.value.status is status


def test_a_record_that_is_larger_than_any_is_refused_before_it_has_come() -> None:
    reader = RecordReader(0, max_body_bytes=100)
    with pytest.raises(StoredDataDamaged) as caught:
        list(reader.feed(record(0, 0, bytes(60_000))[:8]))
    assert caught.value.status is Status.RECORD_LENGTHS
