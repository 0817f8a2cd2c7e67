"""Space ahead of need (guarantees.md rule 9): prepared files, the reserve, and what works on a full disk."""

from __future__ import annotations

import errno
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dledger.core.membership_change import first_members
from dledger.core.values import Base, HardState, MembershipAt
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import OsDisk
from dledger.store.api import LogStore
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import encode_batch
from dledger.store.format.layout import file_name
from dledger.store.identity import init_directory
from dledger.store.image_files import ImageMark
from dledger.testing.memory_store import MemoryLogStore
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.store.helpers import IDENTITY, ROOT, SIZE, join, make_batches, new_sim_store, read_all
from tests.store.test_contract import Reopen, opened, store

__all__ = ["opened", "store"]


def test_what_is_reserved_needs_no_allocation() -> None:
    disk, store = new_sim_store()
    assert store.reserved_bytes == 0 and store.has_room_after(store.tail)
    assert store.prepare(4 * SIZE) and store.reserved_bytes >= 4 * SIZE
    end = store.reserved_end
    before = len(disk.operations)
    used = 0
    while True:
        batch = make_batches(1, seed=store.end_index + 7, tail=store.tail)[0]
        if batch.end_pos > end.pos or batch.last_index > end.index:
            break
        store.append([batch])
        used += batch.size
    done = {operation.split()[0] for operation in disk.operations[before:]}
    assert done == {"pwritev"} and used > 2 * SIZE
    store.sync()
    assert store.reserved_end == end


@pytest.mark.parametrize("body", [0, 10, 400, 900])
def test_reserved_bytes_hold_for_entries_of_any_one_size(store: LogStore, body: int) -> None:
    while store.end_index < 60:
        assert store.prepare(2 * SIZE)
        end = store.reserved_end
        batch = encode_batch(store.tail, 1, [bytes(body)], data_file_size=SIZE)
        assert batch.end_pos <= end.pos and batch.last_index <= end.index
        left = store.reserved_bytes
        store.append([batch])
        assert store.reserved_bytes <= left
    store.sync()


def test_prepared_files_are_no_part_of_the_log(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = make_batches(9, seed=2)
    assert store.prepare(5 * SIZE)
    store.append(batches)
    store.sync()
    store = reopen(store)
    assert store.tail == batches[-1].tail and read_all(store) == join(batches)
    store.truncate_after(batches[4].last_index)
    assert store.prepare(3 * SIZE)
    store = reopen(store)
    assert read_all(store) == join(batches[:5])
    store.append(batches[5:])
    store.sync()
    assert read_all(reopen(store)) == join(batches)


def test_prepared_files_survive_a_power_loss_and_hold_zeros() -> None:
    disk, store = new_sim_store()
    batches = make_batches(5, seed=2)
    store.append(batches)
    store.sync()
    store.prepare(6 * SIZE)
    before = store.reserved_end
    disk.crash(CrashKind.POWER, Random(1))
    store = DiskLogStore.open(ROOT, disk=disk)
    assert store.reserved_end == before
    for path in [p for p in disk.files() if p.parent.name == "data" and int(p.name) > store.tail.pos]:
        assert disk.content(path) == bytes(SIZE)


def full_store(*, reserve: int = 3 * SIZE) -> tuple[SimDisk, DiskLogStore]:
    disk = SimDisk(capacity=40_000)
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk, disk_reserve_bytes=reserve)
    while store.prepare(2 * SIZE):
        store.append(make_batches(2, seed=store.end_index + 9, tail=store.tail))
        store.sync()
    return disk, store


def test_clients_are_refused_before_the_reserve_and_noops_are_not() -> None:
    _, store = full_store()
    assert 3 * SIZE <= store.free_bytes() < 5 * SIZE
    assert not store.prepare(3 * SIZE)
    while store.has_room_after(store.tail):
        store.append(make_batches(1, seed=1, tail=store.tail, max_body=20))
    # Purging makes room again.
    store.sync()
    store.purge_to(store.borders()[-1])
    assert store.has_room_after(store.tail) and store.prepare(SIZE)


def test_the_reserve_has_room_for_another_image_as_large_as_the_newest() -> None:
    """A full disk can only be purged below a new image."""
    size = 5 * SIZE
    disk = SimDisk(capacity=60_000)
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk, disk_reserve_bytes=3 * SIZE)
    writer = store.images.writer(ImageMark(5, 1, 500), bytes(100))
    writer.write(bytes(size))
    writer.finish()
    while store.prepare(2 * SIZE):
        store.append(make_batches(2, seed=store.end_index + 9, tail=store.tail))
        store.sync()
    assert store.free_bytes() >= 3 * SIZE + size + 100
    writer = store.images.writer(ImageMark(9, 1, 900), bytes(100))
    writer.write(bytes(size))
    assert writer.finish() == store.images.newest


def test_what_a_full_disk_cannot_prepare_is_not_left_half_made() -> None:
    for operation in ("open", "allocate", "fdatasync", "sync_directory"):
        disk, store = new_sim_store()
        store.append(make_batches(3))
        files = disk.files()
        disk.fail(operation, errno.ENOSPC)
        assert not store.prepare(3 * SIZE)
        assert disk.files() == files
        assert store.prepare(3 * SIZE), "and later there is room again"


def test_preparing_on_a_failing_disk_stops_the_store() -> None:
    for operation in ("open", "allocate", "fdatasync", "sync_directory"):
        disk, store = new_sim_store()
        disk.fail(operation, errno.EIO)
        with pytest.raises(StorageError):
            store.prepare(3 * SIZE)
        with pytest.raises(StorageError, match="failed and must be reopened"):
            store.append(make_batches(2))
        assert disk.exists(ROOT / "fsync-failed")


def test_a_disk_that_others_have_filled_still_takes_what_must_go_on() -> None:
    disk, store = full_store()
    batches_end = store.end_index
    disk.capacity = sum(len(disk.content(path)) for path in disk.files())
    store.save_hard_state(HardState(50, "n2", 1))
    assert not disk.exists(ROOT / "reserve"), "it was given up for that"
    store.save_checkpoint(batches_end, None)
    store.truncate_after(store.borders()[-1].index)
    store.save_hard_state(HardState(51, None, 1))
    store.purge_to(store.borders()[2])
    disk.crash(CrashKind.POWER, Random(0))
    again = DiskLogStore.open(ROOT, disk=disk, disk_reserve_bytes=3 * SIZE)
    assert again.hard_state == HardState(51, None, 1) and again.begin_index > 0
    assert read_all(again)
    again.reset_to(Base(900, 60, 30 * SIZE, 5))
    assert again.prepare(SIZE) and disk.exists(ROOT / "reserve"), "and there is one again"


@pytest.mark.parametrize("restarts", [False, True])
def test_the_reserve_grows_with_the_configurations_that_term_and_vote_include(restarts: bool) -> None:
    disk, store = new_sim_store()
    members = first_members({f"n{i}": f"host-{i}.example.com:{20911 + i}" for i in range(9)})
    known = tuple(MembershipAt(index, 1, members) for index in range(-1, 40))
    state = HardState(50, "n2", 1, memberships=known)
    store.save_hard_state(state)
    assert len(disk.content(ROOT / "currterm")) > 2 * len(disk.content(ROOT / "reserve"))
    if restarts:
        disk.crash(CrashKind.PROCESS, Random(0))
        store = DiskLogStore.open(ROOT, disk=disk)
    assert store.prepare(SIZE)
    disk.capacity = sum(len(disk.content(path)) for path in disk.files())
    later = replace(state, term=51, memberships=(*known, MembershipAt(50, 51, members)))
    store.save_hard_state(later)
    disk.crash(CrashKind.POWER, Random(0))
    assert DiskLogStore.open(ROOT, disk=disk).hard_state == later


def test_a_full_disk_can_be_opened() -> None:
    disk, store = full_store()
    whole = read_all(store)
    disk.crash(CrashKind.PROCESS, Random(0))
    disk.capacity = 0
    assert read_all(DiskLogStore.open(ROOT, disk=disk)) == whole


def test_the_store_in_memory_keeps_a_reserve_too() -> None:
    store = MemoryLogStore(IDENTITY, capacity=10 * SIZE, disk_reserve_bytes=3 * SIZE)
    while store.prepare(SIZE):
        store.append(make_batches(1, seed=store.end_index, tail=store.tail))
    assert not store.has_room_after(store.tail)
    assert 3 * SIZE <= store.free_bytes() < 4 * SIZE


def test_files_are_prepared_by_another_thread_while_this_one_appends_and_truncates(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    store = DiskLogStore.open(tmp_path / "n0")
    done = threading.Event()
    problems: list[BaseException] = []

    def preparer() -> None:
        try:
            while not done.is_set():
                store.prepare(3 * SIZE)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=preparer)
    thread.start()
    for number in range(120):
        store.append(make_batches(3, seed=number, tail=store.tail, term=max(1, store.tail.term)))
        store.sync()
        if number % 10 == 9:
            store.truncate_after(store.borders()[-1].index)
        if number == 60:
            store.purge_to(store.borders()[3])
        if number == 80:
            store.reset_to(Base(2000, 90, 90 * SIZE, 3))
    done.set()
    thread.join()
    whole = read_all(store)
    store.close()
    assert problems == []
    again = DiskLogStore.open(tmp_path / "n0")
    assert read_all(again) == whole and again.repairs == ()
    again.close()


def test_rule_11_a_directory_that_was_removed_and_made_again_is_not_written_to(tmp_path: Path) -> None:
    for how in ("removed", "moved"):
        root = tmp_path / how
        init_directory(root, IDENTITY)
        store = DiskLogStore.open(root)
        if how == "removed":
            shutil.rmtree(root)
        else:
            root.rename(tmp_path / "elsewhere")
        init_directory(root, IDENTITY)
        for write in (
            lambda s=store: s.save_hard_state(HardState(5, "n1", 1)),
            lambda s=store: s.save_checkpoint(-1, None),
        ):
            with pytest.raises(StorageError) as error:
                write()
            assert error.value.code is Code.DISK_ERROR
        fresh = DiskLogStore.open(root)
        assert fresh.hard_state == HardState()
        fresh.close()
        store.close()


def test_rule_11_a_group_commit_into_a_directory_that_was_made_again_is_an_error(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    store = DiskLogStore.open(tmp_path / "n0")
    store.append(make_batches(1))
    shutil.rmtree(tmp_path / "n0")
    init_directory(tmp_path / "n0", IDENTITY)
    with pytest.raises(StorageError, match="while in use"):
        store.sync()
    store.close()


def test_rule_9_after_a_failed_fsync_the_cache_is_dropped_before_anything_of_the_log_is_read(
    tmp_path: Path,
) -> None:
    class SpyDisk(OsDisk):
        def __init__(self) -> None:
            super().__init__()
            self.dropped: set[int] = set()
            self.paths: dict[int, Path] = {}

        def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
            handle = super().open(path, create=create, write=write)
            self.paths[handle] = path
            return handle

        def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
            self.dropped.add(handle)
            super().drop_cache(handle, offset, size)

        def pread(self, handle: int, size: int, offset: int) -> bytes:
            assert self.paths[handle].parent.name not in ("data", "index") or handle in self.dropped
            return super().pread(handle, size, offset)

    root = tmp_path / "n0"
    init_directory(root, IDENTITY)
    store = DiskLogStore.open(root)
    batches = make_batches(20)
    store.append(batches)
    store.close()
    (root / "fsync-failed").touch()
    disk = SpyDisk()
    store = DiskLogStore.open(root, disk=disk)
    assert len(disk.dropped) == len(list((root / "data").iterdir())) + len(list((root / "index").iterdir()))
    assert not (root / "fsync-failed").exists() and read_all(store) == join(batches)
    store.close()


def test_what_leaves_the_page_cache_is_durable_and_read_from_the_disk_again(tmp_path: Path) -> None:
    class SpyDisk(OsDisk):
        def __init__(self) -> None:
            super().__init__()
            self.dropped: list[tuple[str, int, int]] = []
            self.names: dict[int, str] = {}

        def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
            handle = super().open(path, create=create, write=write)
            self.names[handle] = path.name
            return handle

        def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
            self.dropped.append((self.names[handle], offset, size))
            super().drop_cache(handle, offset, size)

    file_size, page = 64 << 10, 4096
    init_directory(tmp_path / "n0", replace(IDENTITY, data_file_size=file_size))
    disk = SpyDisk()
    store = DiskLogStore.open(tmp_path / "n0", disk=disk)
    batches = make_batches(40, max_body=6000, size=file_size)
    store.append(batches[:30])
    store.sync()
    store.append(batches[30:])
    durable = batches[29].end_pos
    assert durable > 2 * file_size and durable % page
    store.drop_cached(100, store.tail.pos)
    files = [file_name(start) for start in range(0, durable, file_size)]
    sizes = [file_size] * (len(files) - 1) + [durable % file_size // page * page]
    assert disk.dropped == [(name, 0, size) for name, size in zip(files, sizes, strict=True)]
    assert read_all(store) == join(batches)
    store.close()


def test_a_closed_store_prepares_nothing() -> None:
    disk, store = new_sim_store()
    store.close()
    files = disk.files()
    assert not store.prepare(SIZE) and disk.files() == files
