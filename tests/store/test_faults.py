"""Failing, full and short-writing disks (docs/guarantees.md rule 9), locks, and reads beside the writer."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from dledger.core.values import EMPTY_TAIL, HardState
from dledger.errors import Code, DLedgerError, ReadFailed, StorageError
from dledger.infra.files.disk import OsDisk, write_all
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import encode_batch, verify_entries
from dledger.store.format.layout import file_name
from dledger.store.identity import init_directory
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.store.helpers import IDENTITY, ROOT, SIZE, join, make_batches, new_sim_store, read_all


def test_rule_9_a_failed_fsync_stops_the_store_and_leaves_a_marker() -> None:
    disk, store = new_sim_store()
    batches = make_batches(4, seed=1)
    store.append(batches[:2])
    store.sync()
    store.append(batches[2:])
    disk.fail("fdatasync")
    with pytest.raises(StorageError) as error:
        store.sync()
    assert error.value.code is Code.FSYNC_FAILED
    assert store.durable_index == batches[1].last_index
    for use in (store.sync, lambda: store.append([]), lambda: store.save_hard_state(HardState(1))):
        with pytest.raises(StorageError, match="failed and must be reopened"):
            use()
    assert disk.exists(ROOT / "fsync-failed")


def test_rule_9_the_start_after_a_failed_fsync_reads_the_disk_and_not_the_cache() -> None:
    disk, store = new_sim_store()
    batches = make_batches(4, seed=1, max_body=30)
    store.append(batches[:2])
    store.sync()
    store.append(batches[2:])
    disk.fail("fdatasync")
    with pytest.raises(StorageError):
        store.sync()
    store.close()
    disk.crash(CrashKind.PROCESS, Random(0))
    assert disk.content(ROOT / "data" / file_name(0))[batches[2].pos :].strip(b"\0"), "still in the cache"
    store = DiskLogStore.open(ROOT, disk=disk)
    assert read_all(store) == join(batches[:2])
    assert not disk.exists(ROOT / "fsync-failed")


def test_rule_9_a_full_disk_is_refused_before_anything_changes() -> None:
    disk = SimDisk(capacity=20_000)
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    while True:
        batches = make_batches(3, seed=store.end_index + 50, tail=store.tail)
        before = store.tail
        try:
            store.append(batches)
        except StorageError as error:
            assert error.code is Code.DISK_FULL
            break
    assert store.tail == before and store.sync() == before.index
    whole = read_all(store)
    # Room again: the same append goes through.
    disk.capacity *= 2
    store.append(batches)
    store.sync()
    assert read_all(store) == whole + join(batches)
    disk.crash(CrashKind.POWER, Random(3))
    assert read_all(DiskLogStore.open(ROOT, disk=disk)) == whole + join(batches)


@pytest.mark.parametrize("operation", ["pwritev", "allocate", "sync_directory", "open"])
def test_rule_9_a_failed_write_stops_the_store(operation: str) -> None:
    disk, store = new_sim_store()
    disk.fail(operation, errno.EIO)
    with pytest.raises(StorageError) as error:
        store.append(make_batches(2))
    assert error.value.code is Code.DISK_ERROR
    with pytest.raises(StorageError, match="failed and must be reopened"):
        store.append(make_batches(2))
    disk.crash(CrashKind.PROCESS, Random(0))
    assert DiskLogStore.open(ROOT, disk=disk).durable_index == -1


def test_rule_2_a_vote_that_cannot_be_saved_is_an_error() -> None:
    for operation in ("pwritev", "fdatasync", "rename", "sync_directory"):
        disk, store = new_sim_store()
        disk.fail(operation)
        with pytest.raises(StorageError):
            store.save_hard_state(HardState(5, "n2", 1))
        assert store.hard_state == HardState()


def test_short_writes_are_carried_on() -> None:
    disk, store = new_sim_store()
    batches = make_batches(12, seed=2)
    for nth, size in enumerate((1, 47, 200, 3), 1):
        disk.shorten_write(size, nth=nth)
    store.append(batches)
    store.sync()
    assert read_all(store) == join(batches)


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    disk = OsDisk()
    handle = disk.open(tmp_path / "file", create=True)
    buffers = [bytes([i % 256]) * (i % 3) for i in range(5000)]
    assert write_all(disk, handle, buffers, 10) == sum(map(len, buffers))
    assert disk.pread(handle, 1 << 20, 10) == b"".join(buffers)
    disk.close(handle)


def test_rule_11_a_group_commit_into_a_removed_file_is_an_error(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    store = DiskLogStore.open(tmp_path / "n0")
    batches = make_batches(2)
    store.append(batches[:1])
    store.sync()
    for file in (tmp_path / "n0" / "data").iterdir():
        file.unlink()
    store.append(batches[1:])
    with pytest.raises(StorageError, match="removed while in use"):
        store.sync()
    store.close()


def test_a_second_opener_is_told_who_has_the_directory(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    store = DiskLogStore.open(tmp_path / "n0")
    pid = (tmp_path / "n0" / "lock").read_text().strip()
    with pytest.raises(StorageError, match=f"process {pid}") as error:
        DiskLogStore.open(tmp_path / "n0")
    assert error.value.code is Code.DIRECTORY_LOCKED
    store.close()
    DiskLogStore.open(tmp_path / "n0").close()


def test_damage_found_by_a_read_names_entry_file_and_offset() -> None:
    disk, store = new_sim_store()
    batches = make_batches(10, seed=4)
    store.append(batches)
    store.sync()
    hit = batches[6]
    path = ROOT / "data" / file_name(hit.pos - hit.pos % SIZE)
    disk.flip(path, hit.pos % SIZE + 38)
    where = f"entry {hit.first_index}, file {path}, offset {hit.pos % SIZE}: chain_crc"
    with pytest.raises(StorageError, match=where):
        read_all(store)
    disk.flip(path, hit.pos % SIZE + 38)
    assert read_all(store) == join(batches)


def test_a_read_that_a_truncation_overtakes_is_out_of_range_and_not_damage() -> None:
    """The truncation comes between a reader's look at the index and its look at the data."""
    disk, store = new_sim_store()
    batches = make_batches(10, seed=4)
    store.append(batches)
    store.sync()
    real_pread = disk.pread
    calls = 0

    def pread(handle: int, size: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:
            disk.pread = real_pread  # type: ignore[method-assign]
            store.truncate_after(batches[1].last_index)
        return real_pread(handle, size, offset)

    disk.pread = pread  # type: ignore[method-assign]
    with pytest.raises(ReadFailed, match="truncated"):
        store.read(batches[5].first_index, batches[9].last_index, 10_000, whole_batches=True)
    assert read_all(store) == join(batches[:2])


def test_reads_from_another_thread_while_appending(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    store = DiskLogStore.open(tmp_path / "n0")
    done = threading.Event()
    problems: list[object] = []
    seen = 0

    def reader() -> None:
        nonlocal seen
        rng = Random(1)
        try:
            while not done.is_set() or not seen:
                end = store.end_index
                if end < 0:
                    continue
                first = rng.randint(0, end)
                entries = verify_entries(store.read(first, end, 2000, whole_batches=False).data)
                assert entries[0].index == first
                assert [e.body for e in entries] == [b"%d" % e.index * 9 for e in entries]
                seen += 1
        except (AssertionError, DLedgerError) as error:
            problems.append(error)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    tail = EMPTY_TAIL
    for number in range(300):
        bodies = [b"%d" % (tail.index + 1 + i) * 9 for i in range(3)]
        batch = encode_batch(tail, 1, bodies, data_file_size=SIZE)
        store.append([batch])
        tail = batch.tail
        if number % 3 == 0:
            store.sync()
    done.set()
    for thread in threads:
        thread.join()
    store.close()
    assert problems == [] and seen > 0
