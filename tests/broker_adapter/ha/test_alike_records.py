"""Runs of records that are checked by columns: the result equals that of checking each record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.log.classic import shipped_units
from broker_adapter.log.classic.alike_records import count_alike, count_intact
from broker_adapter.log.classic.append_heads import encode_head, head_size
from broker_adapter.log.classic.ha import records as ha_records
from broker_adapter.log.classic.ha.records import WholeRecords
from broker_adapter.log.classic.layout import blank_head
from broker_adapter.log.classic.node.records import whole_appends, whole_units
from broker_adapter.log.classic.shipped_units import UnitRun
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, encode, patch_offsets
from broker_adapter.wire.sys_flag import BORN_HOST_V6, TRANSACTION_PREPARED
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.classic.log_helpers import opened

BEGIN, LEFT = 4096, 1 << 20
HOST = Host(bytes(4), 1)


def run_of(count: int, begin: int = BEGIN, **changes: Any) -> bytes:
    """Records that differ in offsets, bodies and ids."""
    found = bytearray()
    for number in range(count):
        message = MessageRecord("topic", b"%08d" % number, f"UNIQ_KEY\x01{number:06d}\x02", **changes)
        raw = bytearray(encode(message))
        patch_offsets(raw, number, begin + len(found))
        found += raw
    return bytes(found)


SIZE = len(run_of(1))


def outcome(data: bytes, begin: int) -> tuple[Status | None, int, bytes]:
    records, status = WholeRecords(begin, 2 * LEFT), None
    try:
        records.feed(data)
    except StoredDataDamaged as error:
        status = error.status
    offset, taken, _ = records.take_complete()
    return status, offset, bytes(taken)


def test_a_run_is_found_whole() -> None:
    for count in (32, 64, 65, 1000):
        data = run_of(count)
        assert count_alike(data, 0, SIZE, BEGIN, LEFT) == count
        assert count_alike(data[:-1], 0, SIZE, BEGIN, LEFT) == (count - 1 if count > 32 else 1)
        assert count_intact(data, 0, SIZE, count) == count
    data = run_of(100)
    assert count_alike(data, 0, SIZE, BEGIN, 50 * SIZE + 7) == 50, "a run ends with its file"
    assert count_alike(data, 10 * SIZE, SIZE, BEGIN + 10 * SIZE, LEFT) == 90


def test_heads_of_appends_are_in_no_run() -> None:
    assert count_alike(run_of(100, sys_flag=TRANSACTION_PREPARED), 0, SIZE, BEGIN, LEFT) == 1


@pytest.mark.parametrize("flag", [TRANSACTION_PREPARED, BORN_HOST_V6])
def test_a_record_with_other_flags_ends_a_run(flag: int) -> None:
    """It may be the head of an append, or its fields may be at other places."""
    data = bytearray(run_of(100))
    data[50 * SIZE + 39] |= flag  # the last byte of sys_flag
    assert count_alike(data, 0, SIZE, BEGIN, LEFT) == 50
    if flag == TRANSACTION_PREPARED:
        expected = [UnitRun(SIZE, 50), UnitRun(SIZE, 1), UnitRun(SIZE, 49)]
        assert whole_units(bytes(data), BEGIN, LEFT) == expected


def test_lengths_of_the_properties_of_each_record_are_checked() -> None:
    properties_at = SIZE - len("UNIQ_KEY\x01000000\x02") - 2
    for at in (properties_at, properties_at + 1):
        data = bytearray(run_of(100))
        data[50 * SIZE + at] ^= 1
        assert outcome(bytes(data), BEGIN)[0] is Status.RECORD_LENGTHS
        assert len(outcome(bytes(data), BEGIN)[2]) == 50 * SIZE


def test_a_record_that_would_cross_the_end_of_its_file_is_in_no_run() -> None:
    file_size = BEGIN + 4 * SIZE + 9
    with pytest.raises(StoredDataDamaged, match=f"at {BEGIN + 4 * SIZE}$"):
        whole_units(run_of(10), BEGIN, file_size)


def test_a_blank_ends_an_append_that_another_broker_did_not_complete() -> None:
    data = appends(2, 5)[:-SIZE]
    assert whole_appends(data, whole_units(data, 0, LEFT))[0] < len(data)
    data += blank_head(64).ljust(64, b"\0")
    assert whole_appends(data, whole_units(data, 0, LEFT)) == (len(data), 0)


@given(st.integers(0, 99), st.integers(0, SIZE - 1), st.integers(1, 255))
def test_a_changed_byte_has_the_result_of_checking_each_record(number: int, at: int, change: int) -> None:
    data = bytearray(run_of(100))
    data[number * SIZE + at] ^= change
    by_columns = outcome(bytes(data), BEGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ha_records, "count_alike", lambda *_: 1)
        assert by_columns == outcome(bytes(data), BEGIN)


def appends(*counts: int) -> bytes:
    found = bytearray()
    for count in counts:
        begin = len(found)
        plain = run_of(count, begin + head_size(count, HOST), born_host=HOST, store_host=HOST)
        records = [plain[at : at + SIZE] for at in range(0, len(plain), SIZE)]
        found += encode_head(records, HOST, begin, 7) + plain
    return bytes(found)


@pytest.mark.parametrize("cut", [0, 1, 40, 99])
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_slave_follows_appends_as_by_each_record(
    cut: int, is_changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record with another checksum than its head lists was appended by another broker."""
    data = appends(100, 40, 100)
    data = data[: len(data) - cut * SIZE]
    if is_changed:
        data = data.replace(b"00000000", b"00000001")

    def state(*units: list[UnitRun]) -> tuple[int, int, int, int]:
        log = opened(SimDisk(), file_size=1 << 20)
        log.append_bytes(0, data, *units)
        return log.end_offset, log.complete_end_offset, log.last_record_offset, log.cut_incomplete()

    by_columns = state()
    if not is_changed:
        records = WholeRecords(0, 1 << 20)
        records.feed(data)
        assert by_columns == state(records.take_complete().units)
    monkeypatch.setattr(shipped_units, "count_alike", lambda *_: 1)
    assert by_columns == state()
    assert (by_columns[1] < by_columns[0]) == (bool(cut) and not is_changed)


@pytest.mark.parametrize("begins_after", [0, 30, 63])
def test_a_run_that_is_longer_than_its_append_completes_it(begins_after: int) -> None:
    """An alike run may contain the rest of an append and records of other brokers."""
    data, foreign = appends(64), bytearray()
    for number in range(40):
        raw = bytearray(data[-SIZE:])
        patch_offsets(raw, 64 + number, len(data) + len(foreign))
        foreign += raw
    log = opened(SimDisk(), file_size=1 << 20)
    head = head_size(64, HOST)
    log.append_bytes(0, data[: head + begins_after * SIZE])
    assert log.complete_end_offset == 0
    log.append_bytes(log.end_offset, data[log.end_offset :] + foreign)
    assert log.complete_end_offset == log.end_offset == len(data) + len(foreign)


@given(st.integers(0, 99), st.sampled_from((-3, 0, 5)), st.integers(0, 300))
def test_whole_units_are_those_of_one_record_after_the_other(number: int, more: int, end: int) -> None:
    """The record `number` has another size, and the data is cut."""
    data = bytearray(appends(40, 60))
    others = bytearray(run_of(number))
    others += encode(MessageRecord("topic", b"x" * (8 + more), f"UNIQ_KEY\x01{number:06d}\x02"))
    data += others + run_of(100 - number)
    cut = bytes(data[: len(data) - end])
    sizes, at = list[int](), 0
    while at + 4 <= len(cut) and at + (size := int.from_bytes(cut[at : at + 4])) <= len(cut):
        sizes.append(size)
        at += size
    units = whole_units(cut, 0, LEFT)
    assert [size for size, records in units for _ in range(records)] == sizes
    assert whole_appends(cut, units) == whole_appends(cut, [UnitRun(size, 1) for size in sizes])


@pytest.mark.parametrize("number", [0, 1, 31, 32, 63, 64, 65, 199])
def test_a_corrupt_record_within_a_run_is_named_and_the_records_before_it_are_stored(number: int) -> None:
    data = bytearray(run_of(200, 0))
    data[number * SIZE + 90] ^= 1
    records, log = WholeRecords(0, LEFT), opened(SimDisk(), file_size=LEFT)
    with pytest.raises(StoredDataDamaged) as caught:
        records.feed(data)
    assert caught.value.status is Status.RECORD_BODY_CRC
    if number:
        log.append_bytes(*records.take_complete())
    assert log.end_offset == records.position == number * SIZE


@pytest.mark.parametrize("received", [0, 1, 40])
def test_after_a_cut_the_newest_record_is_the_last_one_of_the_append_before(received: int) -> None:
    """Both appends arrive in one transfer."""
    log = opened(SimDisk(), file_size=1 << 20)
    complete, data = len(appends(40)), appends(40, 60)
    incomplete = head_size(60, HOST) + received * SIZE
    log.append_bytes(0, data[: complete + incomplete])
    assert log.cut_incomplete() == incomplete
    assert log.end_offset == complete and log.last_record_offset == complete - SIZE
