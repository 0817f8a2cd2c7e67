"""Opening a CommitLog after a clean stop, after a kill, and after damage."""

from __future__ import annotations

import errno
import struct
from random import Random

import pytest

from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.recovery import RecordsAfterEnd, judge_end
from broker_adapter.log.classic.store_checkpoint import StoreCheckpoint, decode_checkpoint, save_checkpoint
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.broker_adapter.classic.log_helpers import (
    BEGIN_MS,
    FILE_SIZE,
    PATHS,
    bodies_of,
    on_disk,
    opened,
    put,
    record,
)
from tests.broker_adapter.classic.slow_log import records_behind, records_of


def killed(log: CommitLogFiles, disk: SimDisk) -> SimDisk:
    """As SIGKILL leaves it: all that was written is in the page cache."""
    twin = disk.copy()
    twin.crash(CrashKind.PROCESS, Random(0))
    return twin


def filled(disk: SimDisk, count: int = 30) -> CommitLogFiles:
    log = opened(disk)
    for number in range(count):
        put(log, b"%02d" % number * 40, stamp=BEGIN_MS + number * 1_000)
    return log


def offset_of(number: int) -> int:
    """Of a record of `filled`."""
    log = filled(SimDisk(), number)
    return log.place([172])[0]


def refused(disk: SimDisk, **options: object) -> str:
    before = {path: disk.content(path) for path in disk.files()}
    with pytest.raises(BrokerError) as caught:
        opened(disk, **options)
    assert caught.value.status is Status.STORE_DAMAGED
    after = {path: disk.content(path) for path in disk.files()}
    assert after == before, "a log that is not opened is left alone"
    return str(caught.value)


def test_after_a_kill_everything_is_there_and_durable() -> None:
    disk = SimDisk()
    log = filled(disk)
    assert log.flushed_offset == 0
    twin = killed(log, disk)
    again = opened(twin)
    assert bodies_of(again) == bodies_of(log)
    assert again.flushed_offset == again.end_offset == log.end_offset
    assert not again.recovery.was_clean and again.recovery.records == 30
    twin.crash(CrashKind.POWER, Random(0))
    assert bodies_of(opened(twin)) == bodies_of(log)


def test_a_stop_whose_derived_files_lack_something_is_no_clean_one() -> None:
    disk = SimDisk()
    log = filled(disk, 8)
    log.close(keep_abort=True)
    again = opened(disk)
    assert not again.recovery.was_clean and again.end_offset == again.flushed_offset == log.end_offset
    again.close()
    assert opened(disk).recovery.was_clean


def test_after_a_clean_stop_the_last_three_files_are_looked_at() -> None:
    disk = SimDisk()
    log = filled(disk, 60)
    log.prepare()
    log.close()
    again = opened(disk)
    assert again.recovery.was_clean
    # One of the three was prepared, and has nothing.
    assert again.recovery.scanned_from == again.last_file_offset - FILE_SIZE
    assert again.recovery.end_reason and again.last_stamp_ms == BEGIN_MS + 59_000


def test_files_that_were_prepared_and_never_written_do_not_hide_the_end() -> None:
    disk = SimDisk()
    log = filled(disk, 8)
    log.close()
    for more in range(1, 5):
        disk.set_content(PATHS.file(log.last_file_offset + more * FILE_SIZE), bytes(FILE_SIZE))
    again = opened(disk)
    assert again.end_offset == log.end_offset and len(bodies_of(again)) == 8
    names = [path for path in disk.files() if path.parent == PATHS.commit_log]
    assert len(names) == log.last_file_offset // FILE_SIZE + 2, "one of them is kept"


def test_after_a_kill_files_that_are_older_than_the_checkpoint_are_believed() -> None:
    disk = SimDisk()
    log = filled(disk, 60)
    log.flush()
    log.checkpoint.logics_ms = BEGIN_MS + 40_000
    log.save_checkpoint()
    again = opened(killed(log, disk))
    handle_first = [number for number in range(60) if offset_of(number) == again.recovery.scanned_from]
    assert handle_first and 30 < handle_first[0] <= 37, "three seconds before it"
    assert again.end_offset == log.end_offset


def test_without_timestamps_of_derived_files_all_is_looked_at() -> None:
    disk = SimDisk()
    log = filled(disk, 60)
    log.flush()
    log.save_checkpoint()
    again = opened(killed(log, disk))
    assert again.recovery.scanned_from == 0 and again.recovery.records == 60


def test_a_clock_that_jumps_back_hides_no_torn_tail() -> None:
    """The newest file begins with a message that is older than the checkpoint, and is not durable."""
    disk = SimDisk()
    log = opened(disk)
    put(log, b"a" * 600, stamp=BEGIN_MS)
    log.flush()
    log.checkpoint.logics_ms = BEGIN_MS
    log.save_checkpoint()
    put(log, b"b" * 200, stamp=BEGIN_MS)
    put(log, b"c" * 600, stamp=BEGIN_MS - 60_000)
    twin = killed(log, disk)
    twin.flip(PATHS.file(0), 700 + 100)
    again = opened(twin)
    assert bodies_of(again) == [b"a" * 600]


@pytest.mark.parametrize("kind", ["torn", "zeros", "half"])
def test_a_dirty_tail_is_cut_and_overwritten(kind: str) -> None:
    disk = SimDisk()
    log = filled(disk, 20)
    log.flush()
    put(log, b"x" * 600)
    end, last = log.end_offset, log.end_offset - (600 + 92)
    if kind == "torn":
        disk.flip(PATHS.file(last // FILE_SIZE * FILE_SIZE), last % FILE_SIZE + 300)
    else:
        content = bytearray(disk.content(PATHS.file(log.last_file_offset)))
        begin = last % FILE_SIZE + (0 if kind == "zeros" else 300)
        content[begin : end % FILE_SIZE] = bytes(end % FILE_SIZE - begin)
        disk.set_content(PATHS.file(log.last_file_offset), bytes(content))
    again = opened(killed(log, disk))
    assert len(bodies_of(again)) == 20 and again.end_offset == last
    assert again.recovery.cut_bytes == {"torn": 690, "zeros": 0, "half": 300}[kind], "no zeros at its end"
    assert not again.recovery.damage and not again.recovery.cut_records


def test_stale_records_behind_a_short_tail_never_come_back() -> None:
    """Lives of the same log: what a longer life has left behind the end of a shorter one is zeros."""
    disk = SimDisk()
    log = filled(disk, 20)
    log.flush()
    at = log.place([50 + 92] * 3)[0]
    put(log, *[b"%d" % number * 50 for number in range(3)])
    disk.flip(PATHS.file(at // FILE_SIZE * FILE_SIZE), at % FILE_SIZE + 100)
    twin = killed(log, disk)
    again = opened(twin)
    assert again.end_offset == at and again.recovery.cut_records == 2
    put(again, b"n" * 50)
    last = opened(killed(again, twin))
    assert bodies_of(last)[20:] == [b"n" * 50] and last.recovery.cut_bytes == 0


def test_damage_of_what_was_durable_is_told_and_left_alone() -> None:
    disk = SimDisk()
    log = filled(disk, 20)
    log.flush()
    log.save_checkpoint()
    put(log, b"x")
    twin = killed(log, disk)
    place = offset_of(15)
    twin.flip(PATHS.file(place // FILE_SIZE * FILE_SIZE), place % FILE_SIZE + 100)
    text = refused(twin)
    assert f"damaged at {place}" in text and f"durable up to {log.flushed_offset}" in text
    assert "RECORD_BODY_CRC" in text
    again = opened(twin, cut_damage=True)
    assert again.end_offset == place and len(bodies_of(again)) == 15
    assert again.recovery.damage and again.recovery.cut_records == 5
    put(again, b"new")
    assert bodies_of(opened(killed(again, twin)))[-1] == b"new", "once is enough"


def test_after_a_clean_stop_records_behind_a_bad_one_are_damage() -> None:
    """With no checkpoint of ours: a broker of RocketMQ has stopped."""
    disk = SimDisk()
    log = filled(disk, 8)
    log.close()
    disk.lose(PATHS.checkpoint)
    place = offset_of(3)
    disk.flip(PATHS.file(place // FILE_SIZE * FILE_SIZE), place % FILE_SIZE + 4)
    assert f"4 records follow, the first at {offset_of(4)}" in refused(disk)


def test_records_of_an_earlier_life_are_no_damage() -> None:
    """RocketMQ leaves them behind its end: a clean stop of a shorter log, and older records there."""
    disk = SimDisk()
    log = filled(disk, 8)
    log.close()
    disk.lose(PATHS.checkpoint)
    content = bytearray(disk.content(PATHS.file(FILE_SIZE)))
    old = record(b"old" * 20, FILE_SIZE + 800, stamp=BEGIN_MS)
    content[800 : 800 + len(old)] = old
    disk.set_content(PATHS.file(FILE_SIZE), bytes(content))
    again = opened(disk)
    assert again.end_offset == log.end_offset and again.recovery.cut_records == 1
    assert not again.recovery.damage


def test_a_lost_file_at_the_end_is_damage() -> None:
    disk = SimDisk()
    log = filled(disk, 20)
    log.close()
    disk.lose(PATHS.file(log.last_file_offset))
    assert f"durable up to {log.end_offset}" in refused(disk)


def test_a_truncated_log_is_no_damage() -> None:
    disk = SimDisk()
    log = filled(disk, 20)
    log.flush()
    log.save_checkpoint()
    log.truncate(offset_of(10))
    assert len(bodies_of(opened(killed(log, disk)))) == 10


def test_what_the_disk_cannot_read_is_damage() -> None:
    disk = SimDisk()
    log = filled(disk, 3)
    log.close()
    for nth in range(1, 60):
        twin = disk.copy()
        twin.fail("pread", errno.EIO, nth=nth)
        twin.fail("pread", errno.EIO, nth=nth + 1)  # the read again, page by page
        try:
            log = opened(twin)
        except BrokerError as error:
            assert error.status is Status.STORE_DAMAGED
            continue
        twin.repair()
        assert len(bodies_of(log)) == 3
        log.close()


@pytest.mark.parametrize(
    "operation", ["open", "pwritev", "fdatasync", "sync_directory", "truncate", "rename"]
)
def test_an_opening_that_fails_says_so_and_can_be_repeated(operation: str) -> None:
    disk = SimDisk()
    log = filled(disk, 20)
    log.flush()
    put(log, b"x" * 500)
    disk.flip(PATHS.file(log.last_file_offset), log.end_offset % FILE_SIZE - 100)
    killed_disk = killed(log, disk)
    for nth in range(1, 8):
        twin = killed_disk.copy()
        twin.fail(operation, errno.EIO, nth=nth)
        try:
            opened(twin)
        except BrokerError as error:
            assert error.status is Status.LOG_FAILED
        twin.repair()
        twin.crash(CrashKind.PROCESS, Random(0))
        assert len(bodies_of(opened(twin))) == 20


def test_files_that_never_got_their_size_are_removed() -> None:
    disk = SimDisk()
    log = filled(disk, 8)
    end = log.last_file_offset
    disk.set_content(PATHS.file(end + FILE_SIZE), b"")
    disk.set_content(PATHS.file(end + 2 * FILE_SIZE), bytes(FILE_SIZE))
    again = opened(killed(log, disk))
    assert again.end_offset == log.end_offset
    put(again, bytes(900), bytes(900))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (f"{3 * FILE_SIZE:020d}", FILE_SIZE),  # a gap
        (f"{2 * FILE_SIZE:020d}", FILE_SIZE - 1),
        (f"{2 * FILE_SIZE:020d}", FILE_SIZE * 2),
        (f"{2 * FILE_SIZE + 1:020d}", FILE_SIZE),
    ],
)
def test_files_that_are_no_pieces_of_one_log_are_refused(name: str, size: int) -> None:
    disk = SimDisk()
    filled(disk, 8).close()
    disk.set_content(PATHS.commit_log / name, bytes(size))
    with pytest.raises(BrokerError) as caught:
        opened(disk)
    assert caught.value.status is Status.STORE_UNREADABLE
    disk.lose(PATHS.commit_log / name)
    opened(disk)


def test_a_single_file_at_an_odd_offset_is_refused() -> None:
    disk = SimDisk()
    opened(disk).close()
    disk.set_content(PATHS.file(FILE_SIZE + 8), bytes(FILE_SIZE))
    with pytest.raises(BrokerError) as caught:
        opened(disk)
    assert caught.value.status is Status.STORE_UNREADABLE


def test_other_names_are_left_alone() -> None:
    disk = SimDisk()
    filled(disk, 8).close()
    disk.set_content(PATHS.commit_log / "notes.txt", b"mine")
    assert len(bodies_of(opened(disk))) == 8
    assert disk.content(PATHS.commit_log / "notes.txt") == b"mine"


def test_another_file_size_is_told() -> None:
    disk = SimDisk()
    filled(disk, 8).close()
    with pytest.raises(BrokerError, match="has 1024 bytes, and file_size is 2048"):
        opened(disk, file_size=2 * FILE_SIZE)


@pytest.mark.parametrize("seed", range(8))
def test_every_flipped_byte_is_found_or_harmless(seed: int) -> None:
    """Against the oracle: a log that ends before what was durable is not opened; any other is as it was."""
    disk = SimDisk()
    log = filled(disk, 8)
    log.close() if seed % 2 else log.flush()
    log.save_checkpoint() if not seed % 2 else None
    raw = on_disk(disk)
    for at in range(seed, len(raw), 8):
        twin = disk.copy()
        twin.crash(CrashKind.PROCESS, Random(0))
        twin.flip(PATHS.file(at // FILE_SIZE * FILE_SIZE), at % FILE_SIZE, 1 << seed)
        _, end = records_of(on_disk(twin), 0, FILE_SIZE)
        if end < log.end_offset:
            assert f"damaged at {end} " in refused(twin), at
            continue
        again = opened(twin)
        assert again.end_offset == log.end_offset == end, at
        assert again.recovery.cut_bytes == max(0, at + 1 - end)


def test_the_tail_may_be_cut_at_every_byte() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, b"durable")
    log.flush()
    log.save_checkpoint()
    for number in range(7):
        put(log, b"%x" % number * 70, stamp=BEGIN_MS + number)
    raw = on_disk(disk)
    for cut in range(log.flushed_offset, log.end_offset + 1):
        twin = killed(log, disk)
        for begin in range(0, len(raw), FILE_SIZE):
            kept = raw[:cut][begin : begin + FILE_SIZE]
            twin.set_content(PATHS.file(begin), kept + bytes(FILE_SIZE - len(kept)))
        found, end = records_of(on_disk(twin), 0, FILE_SIZE)
        again = opened(twin)
        assert again.end_offset == end and len(bodies_of(again)) == len(found), cut
        assert not on_disk(twin)[end:].strip(b"\0"), cut


def test_records_behind_are_found_at_every_byte() -> None:
    disk = SimDisk()
    log = filled(disk, 20)
    raw = on_disk(disk)
    for at in range(0, log.end_offset, 23):
        twin = killed(log, disk)
        twin.flip(PATHS.file(at // FILE_SIZE * FILE_SIZE), at % FILE_SIZE, 0x80)
        flipped = on_disk(twin)
        _, end = records_of(flipped, 0, FILE_SIZE)
        again = opened(twin)
        assert again.end_offset == end
        behind = records_behind(flipped, 0, end, FILE_SIZE)
        assert again.recovery.cut_records == len(behind), at
        dirty = 0
        for begin in range(0, len(raw), FILE_SIZE):
            low, high = max(begin, end), begin + FILE_SIZE
            ends = [low + len(flipped[low:high].rstrip(b"\0")), *(e for _, e in behind if low < e <= high)]
            dirty += max(0, max(ends) - low)
        assert again.recovery.cut_bytes == dirty, at


def behind(newer: int = 1, first_ms: int = 100) -> RecordsAfterEnd:
    return RecordsAfterEnd(newer, 7, newer, first_ms, 500)


@pytest.mark.parametrize(
    ("was_clean", "end", "checkpoint", "found", "is_damage"),
    [
        (False, 10, StoreCheckpoint(flushed_offset=10), [], False),
        (False, 9, StoreCheckpoint(flushed_offset=10), [], True),
        (True, 10, StoreCheckpoint(), [behind(0, 0)], False),
        (True, 10, StoreCheckpoint(), [behind(0, 0), behind()], True),
        (False, 10, StoreCheckpoint(), [behind()], False),
        (False, 10, StoreCheckpoint(physic_ms=99), [behind()], False),
        (False, 10, StoreCheckpoint(physic_ms=100), [behind()], True),
        (False, 10, StoreCheckpoint(physic_ms=100), [behind(1, 101), behind(1, 100)], True),
    ],
)
def test_the_end_is_damage_if_what_is_behind_was_durable(
    was_clean: bool, end: int, checkpoint: StoreCheckpoint, found: list[RecordsAfterEnd], is_damage: bool
) -> None:
    told = judge_end(was_clean=was_clean, end=end, checkpoint=checkpoint, behind=found)
    assert bool(told) is is_damage


def test_the_checkpoint_is_rocketmqs() -> None:
    disk = SimDisk()
    opened(disk)
    save_checkpoint(disk, PATHS.checkpoint, StoreCheckpoint(1, 2, 3, 4, 5, 6))
    raw = disk.content(PATHS.checkpoint)
    assert len(raw) == 4096 and struct.unpack_from(">qqqqq", raw) == (1, 2, 3, 4, 5)
    assert decode_checkpoint(raw) == StoreCheckpoint(1, 2, 3, 4, 5, 6)
    assert decode_checkpoint(raw[:40]) == StoreCheckpoint(1, 2, 3, 4, 5)
    assert decode_checkpoint(raw[:39]) == StoreCheckpoint()
    assert decode_checkpoint(bytes(4096)) == StoreCheckpoint()
    assert decode_checkpoint(struct.pack(">qqqqq", -1, 5, 5, 5, 5)).recovery_ms == 0
    assert StoreCheckpoint(10_000, 5_000).recovery_ms == 2_000


@pytest.mark.parametrize("at", range(64, 76))
def test_a_changed_bound_of_the_checkpoint_is_none(at: int) -> None:
    raw = bytearray(StoreCheckpoint(flushed_offset=1 << 40).encode())
    raw[at] ^= 1
    assert decode_checkpoint(bytes(raw)).flushed_offset is None
