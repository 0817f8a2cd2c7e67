"""The CommitLog's files: places, blanks, what is durable, purging, truncation, full disks."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event, Lock, current_thread, main_thread

import pytest

from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.layout import places_of
from broker_adapter.log.classic.store_directory import StoreDirectory
from dledger import StorageError
from dledger.infra.files.disk import OsDisk
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.broker_adapter.classic.log_helpers import (
    BEGIN_MS,
    FILE_SIZE,
    PATHS,
    ROOT,
    bodies_of,
    on_disk,
    opened,
    put,
    record,
)


def refused(status: Status, call: object, *args: object) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        call(*args)  # type: ignore[operator]
    assert caught.value.status is status
    return caught.value


@pytest.mark.parametrize(
    ("end", "sizes", "places"),
    [
        (0, [100, 100], [0, 100]),
        (0, [1016], [0]),
        (0, [500, 516, 1], [0, 500, 1024]),
        (0, [500, 517], [0, 1024]),
        (1016, [1], [1024]),
        (1015, [1], [1015]),
        (1024, [1], [1024]),
        (3000, [100, 1016], [3072, 4096]),
        (0, [], []),
    ],
)
def test_a_record_leaves_room_for_a_blank_or_goes_to_the_next_file(
    end: int, sizes: list[int], places: list[int]
) -> None:
    assert places_of(end, sizes, FILE_SIZE) == places


def test_a_record_that_no_file_has_room_for_is_refused() -> None:
    refused(Status.BODY_TOO_LARGE, places_of, 0, [1017], FILE_SIZE)


def test_records_go_where_they_were_placed_over_many_files() -> None:
    disk = SimDisk()
    log = opened(disk)
    bodies = [b"%d" % number * 40 for number in range(60)]
    put(log, *bodies[:3])
    put(log, *bodies[3:50])
    put(log, *bodies[50:])
    assert bodies_of(log) == bodies
    assert log.end_offset > 5 * FILE_SIZE and log.begin_offset == 0
    assert log.last_file_offset == log.end_offset // FILE_SIZE * FILE_SIZE
    assert log.recovery.was_clean and log.recovery.records == 0


def test_the_blank_of_a_file_has_its_size_and_zeros() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, bytes(700))
    put(log, bytes(700))
    raw = disk.content(PATHS.file(0))
    end = 700 + 92
    assert raw[end : end + 8] == struct.pack(">II", FILE_SIZE - end, 0xCBD43194)
    assert raw[end + 8 :] == bytes(FILE_SIZE - end - 8)


def test_all_is_private(tmp_path: Path) -> None:
    log = opened(OsDisk(), root=tmp_path / "a" / "store")
    put(log, b"x")
    log.close()
    for path in (tmp_path / "a").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_an_import_reads_what_was_written(tmp_path: Path) -> None:
    log = opened(OsDisk(), root=tmp_path, file_size=4096)
    bodies = [bytes([number]) * 100 for number in range(100)]
    put(log, *bodies)
    log.close()
    assert not (tmp_path / "abort").exists()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"t":{"topicName":"t","readQueueNums":1,"writeQueueNums":1,"perm":6}}}'
    )
    scan = StoreDirectory(tmp_path).scan()
    assert [found.message.body for found in scan.messages()] == bodies
    assert (scan.end, scan.dirty_bytes) == (log.end_offset, 0)


def test_a_record_of_another_place_or_size_is_an_error_of_the_program() -> None:
    log = opened(SimDisk())
    for wrong in (record(b"x", 5), record(b"x", 0)[:-1], b"short"):
        with pytest.raises(ValueError, match="record"):
            log.append([wrong])
    assert (log.end_offset, on_disk_of(log)) == (0, b"")


def on_disk_of(log: object) -> bytes:
    disk = log._disk  # type: ignore[attr-defined]
    assert isinstance(disk, SimDisk)
    return on_disk(disk)


def test_reads_end_with_the_file_and_with_the_log() -> None:
    log = opened(SimDisk())
    first, second = put(log, bytes(700), b"y" * 700)
    assert log.read(0, 10_000)[: len(first)] == first
    assert len(log.read(0, 10_000)) == FILE_SIZE
    assert log.read(FILE_SIZE, 10_000) == second
    assert log.read(FILE_SIZE + 4, 3) == second[4:7]
    assert log.read(log.end_offset, 10) == b"" and log.read(0, 0) == b""
    refused(Status.OFFSET_ABOVE_MAXIMUM, log.read, log.end_offset + 1, 1)
    log.flush()
    log.purge_below(FILE_SIZE)
    refused(Status.OFFSET_BELOW_MINIMUM, log.read, FILE_SIZE - 1, 1)


def test_a_flush_covers_what_was_appended_before_it() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, *[bytes(300)] * 9, stamp=5_000_000)
    assert log.flushed_offset == 0 < log.end_offset
    assert log.flush() == log.flushed_offset == log.end_offset
    for begin in range(0, log.end_offset, FILE_SIZE):
        assert disk.is_durable(PATHS.file(begin), 0, FILE_SIZE)
    assert log.checkpoint.physic_ms == 5_000_000
    before = len(disk.operations)
    assert log.flush() == log.end_offset
    assert len(disk.operations) == before


def test_what_is_appended_while_the_disk_syncs_is_not_durable_yet() -> None:
    class BusyDisk(SimDisk):
        def fdatasync(self, handle: int) -> None:
            super().fdatasync(handle)
            if waiting:
                put(log, waiting.pop())

    disk, waiting = BusyDisk(), list[bytes]()
    log = opened(disk)
    put(log, b"first")
    end = log.end_offset
    waiting.append(b"second")
    assert log.flush() == end == log.flushed_offset < log.end_offset
    assert log.flush() == log.end_offset


def test_a_failed_fdatasync_is_the_end() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, b"x")
    disk.fail("fdatasync")
    refused(Status.LOG_FAILED, log.flush)
    assert log.failure is not None and log.flushed_offset == 0
    for call, *args in (
        (log.flush,),
        (log.append, [record(b"y", log.end_offset)]),
        (log.append_bytes, log.end_offset, b"z"),
        (log.truncate, 0),
        (log.purge_below, 0),
        (log.save_checkpoint,),
    ):
        refused(Status.LOG_FAILED, call, *args)
    assert bodies_of(log) == [b"x"]
    log.close()
    assert disk.exists(PATHS.abort)


def test_a_full_disk_is_told_before_anything_is_written() -> None:
    disk = SimDisk(capacity=FILE_SIZE * 2 + 5_000)
    log = opened(disk)
    put(log, bytes(700), bytes(700))
    before = on_disk(disk)
    records = [record(bytes(700), 2 * FILE_SIZE)]
    refused(Status.DISK_FULL, log.append, records)
    assert on_disk(disk) == before and log.failure is None
    assert log.prepare() is False
    disk.capacity *= 2
    log.append(records)
    assert len(bodies_of(log)) == 3


@pytest.mark.parametrize("call", ["open", "truncate", "allocate"])
def test_a_file_that_cannot_be_made_is_a_full_disk_wherever_that_shows(call: str) -> None:
    """A file system without inodes, or a quota of files, has no room for a name."""
    disk = SimDisk()
    log = opened(disk)
    put(log, b"first")
    disk.fail(call, errno.ENOSPC)
    assert not log.prepare()
    disk.fail(call, errno.EDQUOT)
    refused(Status.DISK_FULL, log.make_room, [FILE_SIZE - 8])
    assert log.failure is None
    log.make_room([FILE_SIZE - 8])


def test_an_append_that_room_was_made_for_is_not_refused_since() -> None:
    """Another thread looks at the disk; queue offsets are taken by then."""
    log = opened(SimDisk())
    log.make_room([len(record(b"x", 0))])
    log.refusal = "91 % of the disk are used"
    put(log, b"x")
    assert bodies_of(log) == [b"x"]
    refused(Status.DISK_FULL, log.make_room, [100])


def test_files_leave_the_reserve_of_the_disk() -> None:
    disk = SimDisk(capacity=20_000)
    log = opened(disk, reserve_bytes=10_000)
    with pytest.raises(BrokerError, match="10000 are reserved"):
        for _ in range(100):
            put(log, bytes(700))
    assert disk.free_bytes(ROOT) >= 10_000


@pytest.mark.parametrize("short", [0, 100])
def test_no_room_within_a_file_leaves_nothing_behind(short: int) -> None:
    """Copy-on-write file systems need room for bytes that were there."""
    disk = SimDisk()
    log = opened(disk)
    put(log, b"first")
    before = on_disk(disk)
    if short:
        disk.shorten_write(short)
    disk.fail("pwritev", errno.ENOSPC, nth=2 if short else 1)
    refused(Status.DISK_FULL, log.append, [record(b"second" * 20, log.end_offset)])
    assert on_disk(disk) == before and log.failure is None
    put(log, b"third")
    assert bodies_of(log) == [b"first", b"third"]


@pytest.mark.parametrize("written", ["only the blank", "the blank and a part"])
def test_no_room_in_the_next_file_leaves_nothing_in_either(written: str) -> None:
    """The blank of the full file was written first, and another append might be placed there."""
    disk = SimDisk()
    log = opened(disk)
    put(log, bytes(700))
    assert log.prepare()
    before = on_disk(disk)
    records = [record(b"second" * 60, *log.place([92 + 360]))]
    assert not int.from_bytes(records[0][28:36], "big") % FILE_SIZE
    if written != "only the blank":
        disk.shorten_write(100, nth=2)
    disk.fail("pwritev", errno.ENOSPC, nth=2 if written == "only the blank" else 3)
    refused(Status.DISK_FULL, log.append, records)
    assert on_disk(disk) == before and log.failure is None


def test_a_failed_write_is_the_end() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, b"x")
    disk.fail("pwritev")
    refused(Status.LOG_FAILED, log.append, [record(b"y", log.end_offset)])
    refused(Status.LOG_FAILED, log.flush)


def test_a_slave_has_the_bytes_of_its_master() -> None:
    one, other = SimDisk(), SimDisk()
    master, slave = opened(one), opened(other)
    for number in range(30):
        put(master, b"%d" % number * (10 + number * 7), stamp=1_000 + number)
        while slave.end_offset < master.end_offset:
            slave.append_bytes(slave.end_offset, master.read(slave.end_offset, FILE_SIZE))
        assert slave.last_stamp_ms == master.last_stamp_ms == 1_000 + number
    assert on_disk(one) == on_disk(other)
    refused(Status.LOG_OFFSET, slave.append_bytes, slave.end_offset + 1, b"x")
    refused(Status.LOG_OFFSET, slave.append_bytes, 0, b"x")
    slave.append_bytes(slave.end_offset, b"")


def test_half_a_record_or_blank_is_an_error_of_the_program() -> None:
    master, slave = opened(SimDisk()), opened(SimDisk())
    put(master, bytes(700), b"y" * 300)
    data = master.read(0, FILE_SIZE) + master.read(FILE_SIZE, FILE_SIZE)
    size = 700 + 92
    for end in (1, 7, size - 1, size + 1, size + 7, size + 8, FILE_SIZE - 1, FILE_SIZE + 50, len(data) - 1):
        with pytest.raises(ValueError, match="bytes"):
            slave.append_bytes(0, data[:end])
    with pytest.raises(ValueError, match="offset"):
        slave.append_bytes(FILE_SIZE, data[:size])
    assert (slave.end_offset, on_disk_of(slave)) == (0, b"")
    for begin, end in ((0, size), (size, FILE_SIZE), (FILE_SIZE, len(data))):
        slave.append_bytes(begin, data[begin:end])
    assert bodies_of(slave) == [bytes(700), b"y" * 300]


def test_shipped_bytes_may_cross_files() -> None:
    one, other = SimDisk(), SimDisk()
    master, slave = opened(one), opened(other)
    put(master, *[bytes(300)] * 12)
    data = b"".join(
        master.read(at, min(FILE_SIZE, master.end_offset - at))
        for at in range(0, master.end_offset, FILE_SIZE)
    )
    slave.append_bytes(0, data)
    assert on_disk(one) == on_disk(other)


def test_a_fresh_slave_begins_at_any_file() -> None:
    disk = SimDisk()
    log = opened(disk)
    refused(Status.LOG_OFFSET, log.append_bytes, 3 * FILE_SIZE + 1, b"x")
    refused(Status.LOG_OFFSET, log.append_bytes, -FILE_SIZE, b"x")
    refused(Status.LOG_OFFSET, log.append_bytes, ((1 << 63) - FILE_SIZE) // FILE_SIZE * FILE_SIZE, b"x")
    data = record(b"x", 3 * FILE_SIZE)
    log.append_bytes(3 * FILE_SIZE, bytes(data))
    assert (log.begin_offset, log.end_offset) == (3 * FILE_SIZE, 3 * FILE_SIZE + len(data))
    put(log, b"y")
    log.close()
    again = opened(disk)
    assert bodies_of(again) == [b"x", b"y"] and again.begin_offset == 3 * FILE_SIZE
    refused(Status.LOG_OFFSET, again.append_bytes, 7 * FILE_SIZE, b"x")


def test_an_empty_log_that_has_files_begins_elsewhere_when_told() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, b"x")
    log.truncate(0)
    log.append_bytes(5 * FILE_SIZE, bytes(record(b"y", 5 * FILE_SIZE)))
    log.close()
    assert [path.name for path in disk.files() if path.parent == PATHS.commit_log] == [
        f"{5 * FILE_SIZE:020d}"
    ]


def test_whole_files_are_purged_and_never_the_last() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, *[bytes(700)] * 5)
    log.purge_below(4 * FILE_SIZE)
    assert log.begin_offset == 0, "nothing of that is durable"
    log.flush()
    log.purge_below(2 * FILE_SIZE + 5)
    assert log.begin_offset == 2 * FILE_SIZE and not disk.exists(PATHS.file(FILE_SIZE))
    log.purge_below(1 << 40)
    assert log.begin_offset == 4 * FILE_SIZE == log.last_file_offset
    log.close()
    assert len(bodies_of(opened(disk))) == 1


def test_the_last_file_stays_when_it_is_full() -> None:
    disk = SimDisk()
    log = opened(disk)
    put(log, bytes(700), bytes(700))
    slave_disk = SimDisk()
    slave = opened(slave_disk)
    slave.append_bytes(0, log.read(0, FILE_SIZE))
    assert slave.end_offset == FILE_SIZE == slave.last_file_offset
    slave.flush()
    slave.purge_below(FILE_SIZE)
    slave.close()
    assert opened(slave_disk).end_offset == FILE_SIZE


@pytest.mark.parametrize("count", range(13))
def test_after_a_truncation_there_are_zeros(count: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    ends = [0]
    for number in range(12):
        put(log, b"%x" % number * 250)
        ends.append(log.end_offset)
    log.flush()
    log.truncate(ends[count])
    assert log.end_offset == log.flushed_offset == ends[count]
    assert len(bodies_of(log)) == count
    assert not on_disk(disk)[ends[count] :].strip(b"\0")
    put(log, b"new")
    log.close()
    again = opened(disk)
    assert bodies_of(again) == [b"%x" % number * 250 for number in range(count)] + [b"new"]
    assert not again.recovery.cut_bytes


@pytest.mark.parametrize("kind", CrashKind)
def test_nothing_that_was_cut_is_read_or_comes_back(kind: CrashKind) -> None:
    disk = SimDisk()
    log = opened(disk)
    for number in range(12):
        put(log, b"%x" % number * 250)
    cut = log.end_offset
    assert cut % FILE_SIZE, "a part of a file is cut, too"
    for number in range(12, 18):
        put(log, b"%x" % number * 125)
    log.flush()
    log.truncate(cut)
    assert log.complete_end_offset == cut, "readers of records end there, too"
    for seed in range(8):
        crashed = disk.copy()
        crashed.crash(kind, Random(seed))
        assert len(bodies_of(opened(crashed))) == 12


@pytest.mark.parametrize("cut", [0, FILE_SIZE])
def test_files_that_replace_those_of_a_cut_have_their_own_bytes_and_times(cut: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    for number in range(4):
        put(log, b"old" * 233, stamp=BEGIN_MS + number)
    log.old_files()
    log.truncate(cut)
    for number in range(4):
        put(log, b"new" * 233, stamp=2 * BEGIN_MS + number)
    kept = cut // FILE_SIZE
    newest = [2 * BEGIN_MS + number for number in range(1, 4)]
    assert [one.newest_ms for one in log.old_files()] == [2 * BEGIN_MS, *newest][1 - kept :]
    log.close()
    assert bodies_of(opened(disk)) == [b"old" * 233] * kept + [b"new" * 233] * 4


def test_a_truncation_beyond_the_ends_is_refused() -> None:
    log = opened(SimDisk())
    put(log, *[bytes(700)] * 3)
    log.flush()
    log.purge_below(FILE_SIZE)
    refused(Status.LOG_OFFSET, log.truncate, log.end_offset + 1)
    refused(Status.LOG_OFFSET, log.truncate, FILE_SIZE - 1)
    assert log.end_offset > 2 * FILE_SIZE


def test_the_next_file_is_prepared_once() -> None:
    disk = SimDisk()
    log = opened(disk)
    assert log.prepare()
    assert not on_disk(disk), "nobody knows where this log will begin"
    put(log, b"x")
    for _ in range(3):
        assert log.prepare()
    assert len(on_disk(disk)) == 2 * FILE_SIZE
    names = len(disk.operations)
    put(log, bytes(800))
    assert not any(operation.startswith("open") for operation in disk.operations[names:])
    log.close()
    assert opened(disk).prepare()
    assert len(on_disk(disk)) == 2 * FILE_SIZE


def test_a_directory_has_one_broker() -> None:
    disk = SimDisk()
    log = opened(disk)
    with pytest.raises(StorageError, match="another broker"):
        opened(disk)
    log.close()
    opened(disk).close()


def test_a_closed_log_takes_nothing() -> None:
    log = opened(SimDisk())
    log.close()
    log.close()
    refused(Status.SHUTTING_DOWN, log.append, [record(b"x", 0)])
    refused(Status.SHUTTING_DOWN, log.flush)


@pytest.mark.parametrize("size", [0, 127, 1 << 31])
def test_files_have_sizes_that_rocketmq_can_map(size: int) -> None:
    with pytest.raises(BrokerError) as caught:
        opened(SimDisk(), file_size=size)
    assert caught.value.status is Status.STORE_UNREADABLE


def test_the_last_record_is_known_from_whatever_was_written() -> None:
    disk, copy_disk = SimDisk(), SimDisk()
    log, copy = opened(disk), opened(copy_disk)
    assert log.last_record_offset == -1
    put(log, b"a", b"b" * 300)
    assert log.last_record_offset == log.end_offset - len(record(b"b" * 300, 0))
    copy.append_bytes(0, log.read(0, log.end_offset))
    assert copy.last_record_offset == log.last_record_offset
    for disk_of in (disk, copy_disk):
        disk_of.crash(CrashKind.PROCESS, Random(1))
        assert opened(disk_of).last_record_offset == log.last_record_offset


class Raced(CommitLogFiles):
    """`race` runs once, between the first two accesses to the log's end and newest timestamp."""

    race: Callable[[], object] | None = None

    def _once(self, name: str) -> None:
        race = self.race
        if race is not None and name in ("end_offset", "_last_stamp_ms"):
            self.race = None
            race()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self.is_writing:
            self._once(name)

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name in ("end_offset", "_last_stamp_ms") and not self.is_writing:
            self._once(name)
        return value

    is_writing = False


@pytest.mark.parametrize("is_writing", [False, True])
def test_no_timestamp_is_durable_before_its_record(is_writing: bool) -> None:
    """A record comes while another thread begins to flush; a flush comes while a record ends."""
    log = opened(SimDisk())
    put(log, b"before")
    log.__class__ = Raced
    assert isinstance(log, Raced)
    if is_writing:
        log.is_writing, log.race = True, log.flush
        put(log, b"later", stamp=BEGIN_MS + 1)
    else:
        log.race = lambda: put(log, b"later", stamp=BEGIN_MS + 1)
        log.flush()
    assert log.race is None
    assert log.flushed_offset == log.end_offset and log.checkpoint.physic_ms == BEGIN_MS


class NotedLock:
    """A lock. `wanted` is set when another thread than the test's wants it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.wanted = Event()

    def __enter__(self) -> None:
        if current_thread() is not main_thread():
            self.wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_flush_is_not_over_before_the_name_of_a_new_file_is_durable() -> None:
    """Another thread prepares a file, and syncs the directory meanwhile."""

    class BusyDisk(SimDisk):
        def sync_directory(self, path: Path) -> None:
            if is_preparing and not flushes:
                flushes.append(thread.submit(log.flush))
                flushes[0].add_done_callback(lambda _: names.wanted.set())
                names.wanted.wait()
                assert not flushes[0].done(), "it reported durability without the name of its file"
            super().sync_directory(path)

    is_preparing, flushes, names = False, list[Future[int]](), NotedLock()
    log = opened(BusyDisk())
    log._names_lock = names  # type: ignore[assignment]
    put(log, b"x")
    with ThreadPoolExecutor(1) as thread:
        is_preparing = True
        assert log.prepare()
        assert flushes[0].result() == log.end_offset
