"""What a slave may store: whole records and blanks, each checked."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.log.classic.ha.records import WholeRecords
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, Version, encode
from tests.broker_adapter.ha.memory_log import FILE_SIZE, MemoryLog, blank
from tests.broker_adapter.ha.test_transfers import pieces, record


def log_of(count: int, begin: int = 0) -> bytes:
    log = MemoryLog(begin)
    log.fill(count, 500)
    return bytes(log.data)


@given(st.lists(st.integers(0, 10**6), max_size=30), st.sampled_from((0, 5 * FILE_SIZE)))
def test_every_byte_is_given_on_once_and_what_was_taken_ends_with_a_record(
    cuts: list[int], begin: int
) -> None:
    log, records, stored = log_of(20, begin), WholeRecords(begin, FILE_SIZE), b""
    assert len(log) > FILE_SIZE
    ends = {begin, *(begin + at for at in unit_ends(log))}
    for piece in pieces(log, cuts):
        records.feed(piece)
        offset, taken, _ = records.take_complete()
        assert offset == begin + len(stored)
        stored += taken
        assert begin + len(stored) == records.position and records.position in ends
        assert records.take_complete()[:2] == (records.position, b"")
    assert stored == log and not records.incomplete_bytes


def unit_ends(log: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(log):
        at += struct.unpack_from(">I", log, at)[0]
        ends.append(at)
    return ends


def damaged(data: bytes, at: int = 0) -> Status:
    records = WholeRecords(at, FILE_SIZE)
    with pytest.raises(StoredDataDamaged) as caught:
        records.feed(data)
    assert records.take_complete()[:2] == (at, b"")
    return caught.value.status


def taken(data: bytes, at: int = 0) -> memoryview:
    """What of it may be stored."""
    records = WholeRecords(at, FILE_SIZE)
    with suppress(StoredDataDamaged):
        records.feed(data)
    return records.take_complete()[1]


def test_what_is_no_record_of_its_place() -> None:
    whole = record(0, 0)
    assert damaged(record(0, 8)) is Status.RECORD_FIELD
    assert damaged(bytes(8)) is Status.RECORD_MAGIC
    assert damaged(whole.replace(b"body", b"bode")) is Status.RECORD_BODY_CRC
    assert damaged(struct.pack(">II", 91, Version.V1)) is Status.RECORD_LENGTHS
    assert damaged(struct.pack(">II", 1 << 31, Version.V1)) is Status.RECORD_LENGTHS
    # Refused before it has come: no file has room for it here.
    assert damaged(struct.pack(">II", FILE_SIZE, Version.V1), 8) is Status.RECORD_LENGTHS


@pytest.mark.parametrize("size", [0, 7, 8, 100, FILE_SIZE - 101, FILE_SIZE - 99, 1 << 31])
def test_a_blank_that_does_not_end_a_file(size: int) -> None:
    assert damaged(struct.pack(">II", size, 0xCBD43194), 100) is Status.RECORD_LENGTHS


def test_a_blank_that_is_larger_than_any_record_is_not_gathered() -> None:
    records = WholeRecords(0, 1 << 20, max_body_bytes=100)
    with pytest.raises(StoredDataDamaged):
        records.feed(struct.pack(">II", 1 << 20, 0xCBD43194))


def test_what_was_complete_before_the_damage_may_be_taken() -> None:
    log = log_of(3)
    records = WholeRecords(0, FILE_SIZE)
    broken = log[:-1] + bytes((log[-1] ^ 1,)) + b"\0" * 8
    with pytest.raises(StoredDataDamaged):
        records.feed(broken)
    offset, taken, _ = records.take_complete()
    assert offset == 0 and taken == log[: len(taken)] and len(taken) in unit_ends(log)


@pytest.mark.parametrize("size", [8, 9, 700])
def test_a_blank_comes_whole_whatever_is_in_it(size: int) -> None:
    at = FILE_SIZE - size
    records = WholeRecords(at, FILE_SIZE)
    data = blank(size) + record(0, FILE_SIZE)
    records.feed(data[: size - 1])
    assert records.take_complete()[:2] == (at, b"")
    records.feed(data[size - 1 :])
    assert records.take_complete()[:2] == (at, data)


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize("born", [Host(bytes(4), 1), Host(bytes(16), 1)])
@pytest.mark.parametrize("store", [Host(bytes(4), 1), Host(bytes(16), 1)])
def test_no_cut_and_no_flipped_bit_of_sizes_or_body_passes(version: Version, born: Host, store: Host) -> None:
    message = MessageRecord(
        "topic", b"some body", "a\x01b\x02", version=version, born_host=born, store_host=store
    )
    whole = bytes(encode(message._replace(physical_offset=77)))
    assert taken(whole, 77) == whole
    body = whole.index(b"some body")
    for at in [*range(12), *range(body - 4, body + 9), body + 9, whole.index(b"topic") + 5]:
        for bit in range(8):
            wrong = bytearray(whole)
            wrong[at] ^= 1 << bit
            if bytes(wrong[4:8]) in (struct.pack(">I", one) for one in Version) and at in range(4, 8):
                continue  # the other version: seen by its lengths, if at all
            assert taken(bytes(wrong), 77) == b""
    for end in range(len(whole)):
        assert taken(whole[:end], 77) == b""


def test_texts_are_not_looked_at() -> None:
    """Whoever copies bytes does not ask whether RocketMQ has written good UTF-8."""
    whole = bytes(encode(MessageRecord("topic", b"", "a\x01b\x02"))).replace(b"topic", b"to\xff\xfec")
    assert taken(whole) == whole
