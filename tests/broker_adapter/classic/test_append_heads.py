"""Incomplete appends at the end of a CommitLog: a crash or a dead master leaves no part of an append."""

from __future__ import annotations

import errno
from itertools import chain
from pathlib import Path
from random import Random

import pytest

from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.append_heads import APPEND_TOPIC, decode_head, encode_head, head_size
from broker_adapter.log.classic.commit_log import LogScan, log_files
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.layout import StorePaths, blank_head
from broker_adapter.log.classic.record_check import check_record
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, decode, encode
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from dledger.infra.files.disk import OsDisk
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash

from .log_helpers import (
    BEGIN_MS,
    BORN,
    FILE_SIZE,
    PATHS,
    STORED,
    append_of,
    bodies_of,
    on_disk,
    opened,
    put,
    record,
)
from .slow_log import records_of

V6 = Host(bytes(15) + b"\1", 10_911)
#: Record sizes of the bodies make appends that fill files of 1 KiB in different ways.
APPENDS = [(b"a" * 9, b"b" * 80), (b"c" * 300, b"d", b"e" * 200), (b"f",) * 4, (b"g" * 400, b"h" * 250)]


def written(log: CommitLogFiles, *bodies: bytes, stamp: int = BEGIN_MS) -> list[bytes]:
    _, records = append_of(log, *bodies, stamp=stamp)
    log.append(records)
    return records


def slave(disk: SimDisk) -> tuple[CommitLogFiles, int, list[bytes]]:
    """A log with two complete appends, and an append that its master sends next: offset and records."""
    log = opened(disk)
    written(log, b"x", b"y")
    put(log, b"z", stamp=BEGIN_MS + 5)
    log.flush()
    return log, *append_of(log, b"a" * 30, b"b" * 40, b"c" * 50, stamp=BEGIN_MS + 9)


@pytest.mark.parametrize("host", [STORED, V6])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_head_lists_the_records_of_its_append(host: Host, count: int) -> None:
    records = [bytes(record(b"%d" % number, number)) for number in range(count)]
    head = encode_head(records, host, 7_000, BEGIN_MS)
    assert len(head) == head_size(count, host)
    assert check_record(head, 0, 7_000, len(head)) == (len(head), 7_000, BEGIN_MS)
    found = decode_head(head)
    assert found is not None and found.size == len(head) + sum(map(len, records))
    assert len(found.sums) == len(set(found.sums)) == count
    assert decode(head).topic == APPEND_TOPIC


def test_a_record_of_a_client_is_no_head() -> None:
    head = decode(encode_head([b"record"], STORED, 0, BEGIN_MS))
    changes = (
        {"born_host": BORN},
        {"sys_flag": 0},
        {"sys_flag": TRANSACTION_COMMIT},
        {"topic": "DLEDGER_SYS_APPENX"},
        {"properties": "KEYS\1k\2"},
        {"body": head.body[:9]},
        {"body": head.body[:8]},
        {"body": head.body[:-1]},
        {"body": b"DLAX" + head.body[4:]},
        {"body": head.body[:4] + b"\2" + head.body[5:]},
    )
    assert decode_head(encode(head)) is not None
    for change in changes:
        assert decode_head(encode(head._replace(**change))) is None, change  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_crash_within_an_append_leaves_none_of_it(count: int) -> None:
    disk = SimDisk()
    log, begin, records = slave(disk)
    log.append(records)
    end = begin + sum(map(len, records[:count]))
    file = PATHS.file(begin - begin % FILE_SIZE)
    disk.set_content(file, disk.content(file)[: end % FILE_SIZE].ljust(FILE_SIZE, b"\0"))
    disk.crash(CrashKind.PROCESS, Random(1))
    again = opened(disk)
    assert bodies_of(again)[-1] == b"z" and again.end_offset == begin == again.complete_end_offset
    found = again.recovery
    assert (found.incomplete_bytes, found.cut_records, found.damage) == (end - begin, count, "")
    assert (again.last_stamp_ms, decode_at(again, again.last_record_offset).body) == (BEGIN_MS + 5, b"z")
    assert not on_disk(disk)[begin:].strip(b"\0")


def decode_at(log: CommitLogFiles, offset: int) -> MessageRecord:
    size = int.from_bytes(log.read(offset, 4), "big")
    return decode(log.read(offset, size))


@pytest.mark.parametrize("kind", list(CrashKind))
def test_after_any_crash_the_log_has_whole_appends(kind: CrashKind) -> None:
    """A loss of power leaves any sectors of what was not flushed."""

    def workload(disk: SimDisk, appended: list[list[bytes]], durable: list[int]) -> None:
        log = opened(disk)
        for number, bodies in enumerate(APPENDS * 2):
            _, records = append_of(log, *bodies, stamp=BEGIN_MS + number)
            appended.append(records)
            log.append(records)
            if number % 3 == 2:
                log.flush()
                durable.append(len(appended))
                log.save_checkpoint()
        log.close()
        durable.append(len(appended))

    disk = SimDisk()
    workload(disk, [], [])
    for number in range(1, len(disk.operations) + 1):
        for point in (CrashPoint.BEFORE, CrashPoint.DURING):
            appended: list[list[bytes]] = []
            durable = [0]
            disk = SimDisk()
            disk.schedule_crash(number, point)
            with pytest.raises(SimulatedCrash):
                workload(disk, appended, durable)
            disk.crash(kind, Random(number), reorder=True)
            log = opened(disk)
            found = [raw for _, raw in records_of(on_disk(disk), 0, FILE_SIZE)[0]]
            wholes = [[*chain(*appended[:length])] for length in range(len(appended) + 1)]
            count = wholes.index(found) if found in wholes else None
            assert count is not None, (number, point, "the log ends within an append")
            assert count >= durable[-1], (number, point)
            assert log.end_offset == log.flushed_offset == log.complete_end_offset


@pytest.mark.parametrize("step", ["a record", "all at once"])
def test_a_slave_gives_nothing_of_an_append_before_all_of_it_has_come(step: str) -> None:
    log, begin, records = slave(SimDisk())
    assert log.complete_end_offset == log.end_offset == begin
    for number, raw in enumerate(records, 1) if step == "a record" else [(4, b"".join(records))]:
        log.append_bytes(log.end_offset, raw)
        log.flush()
        assert log.complete_end_offset == (begin if number < 4 else log.end_offset)
    assert log.cut_incomplete() == 0 and bodies_of(log)[-3:] == [b"a" * 30, b"b" * 40, b"c" * 50]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_slave_cuts_the_append_whose_master_is_gone(count: int) -> None:
    disk = SimDisk()
    log, begin, records = slave(disk)
    before = log.last_stamp_ms, log.last_record_offset
    part = b"".join(records[:count])
    log.append_bytes(begin, part)
    log.flush()
    assert log.cut_incomplete() == len(part)
    assert log.end_offset == log.flushed_offset == log.complete_end_offset == begin
    assert (log.last_stamp_ms, log.last_record_offset) == before
    assert log.checkpoint.physic_ms <= BEGIN_MS + 5
    put(log, b"next")
    assert bodies_of(log)[-2:] == [b"z", b"next"] and log.cut_incomplete() == 0


def test_a_record_that_did_not_fit_is_not_counted_twice() -> None:
    """Its second attempt would not match the head, and the incomplete append would be given to readers."""
    disk = SimDisk()
    log, begin, records = slave(disk)
    log.append_bytes(begin, b"".join(records[:2]))
    disk.fail("pwritev", errno.ENOSPC)
    with pytest.raises(BrokerError) as full:
        log.append_bytes(log.end_offset, records[2])
    assert full.value.status is Status.DISK_FULL
    log.append_bytes(log.end_offset, records[2])
    assert log.complete_end_offset == begin
    log.append_bytes(log.end_offset, records[3])
    assert log.complete_end_offset == log.end_offset


def test_records_of_a_master_behind_an_incomplete_append_are_given() -> None:
    log, begin, records = slave(SimDisk())
    log.append_bytes(begin, b"".join(records[:2]))
    put(log, b"of the master")
    assert log.complete_end_offset == log.end_offset


def test_a_truncation_before_an_incomplete_append_leaves_nothing_to_cut() -> None:
    log, begin, records = slave(SimDisk())
    log.append_bytes(begin, b"".join(records[:2]))
    log.truncate(0)
    assert log.cut_incomplete() == 0
    put(log, b"first")
    assert bodies_of(log) == [b"first"] and log.complete_end_offset == log.end_offset


def test_an_incomplete_append_that_a_slave_made_durable_is_no_damage() -> None:
    disk = SimDisk()
    log, begin, records = slave(disk)
    log.append_bytes(begin, b"".join(records[:2]))
    log.flush()
    log.save_checkpoint()
    disk.crash(CrashKind.POWER, Random(1))
    again = opened(disk)
    assert again.end_offset == again.flushed_offset == begin and not again.recovery.damage
    put(again, b"torn", stamp=BEGIN_MS + 9)  # the same millisecond, never flushed
    disk.flip(PATHS.file(begin - begin % FILE_SIZE), begin % FILE_SIZE + 90)
    put(again, b"behind", stamp=BEGIN_MS + 9)
    disk.crash(CrashKind.PROCESS, Random(1))
    assert bodies_of(opened(disk))[-1] == b"z"


@pytest.mark.parametrize("count", [1, 3])
def test_what_another_broker_stored_behind_an_incomplete_append_stays(count: int) -> None:
    """A broker of RocketMQ takes records for whole appends, and may have acknowledged the later ones."""
    disk = SimDisk()
    log, begin, records = slave(disk)
    log.append_bytes(begin, b"".join(records[:count]))
    log.append_bytes(log.end_offset, bytes(record(b"foreign", log.end_offset)))
    assert log.complete_end_offset == log.end_offset and log.cut_incomplete() == 0
    disk.crash(CrashKind.PROCESS, Random(1))
    again = opened(disk)
    assert bodies_of(again)[-1] == b"foreign" and again.recovery.incomplete_bytes == 0
    # So do those before another append that is incomplete.
    place, more = append_of(again, b"1", b"2")
    gap = place - again.end_offset
    blank = blank_head(gap).ljust(gap, b"\0") if gap else b""
    again.append_bytes(again.end_offset, blank + b"".join(more[:2]))
    assert again.complete_end_offset == place and again.cut_incomplete()
    assert bodies_of(again)[-1] == b"foreign"


def test_a_blank_behind_an_incomplete_append_means_that_another_broker_continued() -> None:
    disk = SimDisk()
    log, begin, records = slave(disk)
    log.append_bytes(begin, b"".join(records[:2]))
    left = FILE_SIZE - log.end_offset % FILE_SIZE
    log.append_bytes(log.end_offset, blank_head(left).ljust(left, b"\0"))
    assert log.complete_end_offset == log.end_offset
    disk.crash(CrashKind.PROCESS, Random(1))
    assert opened(disk).end_offset == log.end_offset


def test_an_append_lies_in_one_file_and_may_be_the_only_one_there() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, b"x" * 700)
    begin, records = append_of(log, b"a" * 100, b"b" * 100)
    assert begin == FILE_SIZE
    log.append(records)
    disk.set_content(PATHS.file(FILE_SIZE), records[0].ljust(FILE_SIZE, b"\0"))
    disk.crash(CrashKind.PROCESS, Random(1))
    again = opened(disk)
    assert again.end_offset == FILE_SIZE and again.last_stamp_ms == BEGIN_MS
    assert bodies_of(again) == [b"x" * 700]
    assert put(again, b"y") and bodies_of(again) == [b"x" * 700, b"y"]


@pytest.mark.parametrize("born_at", [BORN, STORED])
def test_acknowledged_records_behind_a_forged_head_are_never_cut(born_at: Host) -> None:
    disk = SimDisk()
    log = opened(disk)
    (place,) = log.place([head_size(5, STORED)])
    head = decode(encode_head([b"nothing like it"] * 5, STORED, place, BEGIN_MS))
    log.append([encode(head._replace(born_host=born_at, sys_flag=TRANSACTION_PREPARED))])
    for number in range(3):
        put(log, b"%d" % number)
    disk.crash(CrashKind.PROCESS, Random(1))
    assert bodies_of(opened(disk))[1:] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(("count", "kept"), [(1, 4), (2, 4), (3, 7)])
def test_an_import_of_a_directory_leaves_out_an_incomplete_append(
    tmp_path: Path, count: int, kept: int
) -> None:
    log = opened(OsDisk(), root=tmp_path)  # type: ignore[arg-type]
    written(log, b"x", b"y")
    put(log, b"z")
    begin, records = append_of(log, b"a", b"b")
    log.append_bytes(begin, b"".join(records[:count]))
    end = log.end_offset
    log.flush()
    scan = LogScan(log_files(StorePaths(tmp_path).commit_log), 0)
    assert len(list(scan.messages())) == kept
    assert (scan.end, scan.dirty_bytes) == ((begin, end - begin) if count < 3 else (end, 0))
    log.close()
