"""Zeros ahead of appends: what is stored stays what it is, whatever happens meanwhile."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dledger.core.values import Base
from dledger.errors import Code, StorageError
from dledger.store.batch import Batch, encode_batch
from dledger.store.disk import PAGE, OsDisk
from dledger.store.disk_store import DiskLogStore
from dledger.store.files import FILL_PIECE
from dledger.store.identity import Identity, init_directory
from dledger.store.layout import file_name
from dledger.testing.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.store.helpers import ROOT, join, make_batches, read_all

SIZE = 16 * PAGE
IDENTITY = Identity("cluster", "group", "n0", data_file_size=SIZE)
FIRST = ROOT / "data" / file_name(0)


def new_store(disk: SimDisk) -> DiskLogStore:
    init_directory(ROOT, IDENTITY, disk=disk)
    return DiskLogStore.open(ROOT, disk=disk)


def batches(count: int, seed: int, store: DiskLogStore) -> list[Batch]:
    return make_batches(count, seed=seed, tail=store.tail, max_body=3000, size=SIZE)


def filled(disk: SimDisk, action: Callable[[], object]) -> list[str]:
    before = len(disk.operations)
    action()
    return disk.operations[before:]


def test_zeros_are_written_from_the_page_after_the_tail_on_as_far_as_space_is_reserved() -> None:
    disk = SimDisk()
    store = new_store(disk)
    assert store.fill_ahead(8 * SIZE, 8 * SIZE) == 0, "nothing is reserved"
    store.append(batches(3, 1, store))
    assert store.prepare(SIZE)
    end = store.reserved_end.pos + 8
    page = store.tail.pos - store.tail.pos % PAGE + PAGE
    assert store.fill_ahead(3 * PAGE, SIZE) == 3 * PAGE
    assert store.fill_ahead(3 * PAGE, SIZE) == 0
    assert store.fill_ahead(8 * SIZE, 8 * SIZE) == end - page - 3 * PAGE, "all that is reserved, and no more"
    assert store.fill_ahead(8 * SIZE, 8 * SIZE) == 0


def test_no_more_is_written_at_once_than_was_asked_for_but_for_one_piece(tmp_path: Path) -> None:
    init_directory(tmp_path, Identity("cluster", "group", "n0", data_file_size=1 << 20))
    store = DiskLogStore.open(tmp_path)
    store.append([encode_batch(store.tail, 1, [b"x"], data_file_size=1 << 20)])
    assert store.fill_ahead(1 << 20, FILL_PIECE + 1) == 2 * FILL_PIECE
    store.close()


def test_what_was_appended_stays_also_if_the_tail_that_is_known_is_an_old_one() -> None:
    disk = SimDisk()
    store = new_store(disk)
    written = batches(4, 2, store)
    store.append(written)
    assert store._data.fill_piece(0, SIZE) > 0
    store.sync()
    assert read_all(store) == join(written)


def test_a_file_of_filled_space_is_appended_to_and_found_again() -> None:
    disk = SimDisk()
    store = new_store(disk)
    written: list[Batch] = []
    for seed in range(60):
        more = batches(1, seed, store)
        store.append(more)
        written += more
        store.prepare(SIZE)
        store.fill_ahead(4 * PAGE, 4 * PAGE)
    store.sync()
    assert store.tail.pos > 2 * SIZE
    disk.crash(CrashKind.POWER, Random(1))
    store = DiskLogStore.open(ROOT, disk=disk)
    assert read_all(store) == join(written) and not store.repairs and not store.damages


def test_what_is_cut_off_is_filled_again_and_appended_to() -> None:
    disk = SimDisk()
    store = new_store(disk)
    written = batches(9, 3, store)
    store.append(written)
    store.fill_ahead(SIZE, SIZE)
    store.truncate_after(written[3].last_index)
    assert store.fill_ahead(4 * PAGE, SIZE) > 2 * PAGE, "what was filled was cut off, too"
    more = batches(5, 4, store)
    store.append(more)
    store.sync()
    assert read_all(store) == join(written[:4] + more)
    disk.crash(CrashKind.POWER, Random(2))
    assert read_all(DiskLogStore.open(ROOT, disk=disk)) == join(written[:4] + more)


def test_a_log_that_begins_anew_is_filled_from_its_begin() -> None:
    disk = SimDisk()
    store = new_store(disk)
    store.append(batches(9, 5, store))
    store.fill_ahead(SIZE, SIZE)
    store.reset_to(Base(100, 3, SIZE, 7))
    assert store.fill_ahead(SIZE, SIZE) == 0, "no file is there yet"
    store.append(batches(1, 6, store))
    assert store.fill_ahead(4 * PAGE, SIZE) > 2 * PAGE


def random_work(disk: SimDisk, seed: int, synced: list[list[Batch]]) -> None:
    """Appends, cuts and fills; `synced[0]` is what must be there whatever happens."""
    rng = Random(seed)
    store = new_store(disk)
    written: list[Batch] = []
    for step in range(40):
        match rng.randrange(8):
            case 0 if len(written) > 2:
                written = written[: rng.randrange(1, len(written))]
                synced[0] = synced[0][: len(written)]
                store.truncate_after(written[-1].last_index)
            case 1 | 2:
                store.prepare(SIZE)
                store.fill_ahead(rng.randrange(2 * SIZE), rng.randrange(1, SIZE))
            case 3 | 4:
                store.sync()
                synced[0] = list(written)
            case _:
                more = batches(rng.randrange(1, 4), 100 * seed + step, store)
                written += more
                store.append(more)


@pytest.mark.parametrize("seed", range(6))
def test_rule_1_no_power_loss_between_fills_and_appends_loses_what_was_synced(seed: int) -> None:
    dry = SimDisk()
    random_work(dry, seed, [[]])
    assert any("pwritev" in operation for operation in dry.operations)
    fresh = SimDisk()
    new_store(fresh)
    for number in range(len(fresh.operations) + 1, len(dry.operations), 7):
        for point in (CrashPoint.BEFORE, CrashPoint.DURING, CrashPoint.AFTER):
            disk, synced = SimDisk(), [list[Batch]()]
            disk.schedule_crash(number, point)
            with pytest.raises(SimulatedCrash):
                random_work(disk, seed, synced)
            disk.crash(CrashKind.POWER, Random(number), reorder=True)
            store = DiskLogStore.open(ROOT, disk=disk)
            assert read_all(store).startswith(join(synced[0])), (number, point)
            assert not store.damages


def test_rule_9_a_disk_that_fails_under_zeros_stops_the_store() -> None:
    disk = SimDisk()
    store = new_store(disk)
    store.append(batches(1, 7, store))
    disk.fail("pwritev")
    with pytest.raises(StorageError) as error:
        store.fill_ahead(SIZE, SIZE)
    assert error.value.code is Code.DISK_ERROR and disk.exists(ROOT / "fsync-failed")
    with pytest.raises(StorageError, match="failed before"):
        store.append([])


def test_rule_9_a_disk_without_room_for_zeros_stops_nothing() -> None:
    disk = SimDisk()
    store = new_store(disk)
    written = batches(2, 8, store)
    store.append(written[:1])
    disk.fail("pwritev", errno.ENOSPC)
    assert store.fill_ahead(SIZE, SIZE) == 0
    store.append(written[1:])
    store.sync()
    assert read_all(store) == join(written)


def test_zeros_beside_appends_and_cuts_of_another_thread_meet_nothing(tmp_path: Path) -> None:
    size = 256 << 10
    init_directory(tmp_path, Identity("cluster", "group", "n0", data_file_size=size))
    store = DiskLogStore.open(tmp_path, disk=OsDisk())
    done, failed, bytes_filled = threading.Event(), list[BaseException](), [0]

    def fill() -> None:
        try:
            while not done.is_set():
                store.prepare(2 * size)
                bytes_filled[0] += store.fill_ahead(size, size)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=fill)
    thread.start()
    rng, written = Random(9), list[Batch]()
    try:
        while bytes_filled[0] < 8 * size or len(written) < 400:
            for batch in make_batches(5, seed=len(written), tail=store.tail, max_body=4000, size=size):
                store.append([batch])
                written.append(batch)
            if rng.random() < 0.2:
                store.sync()
            if rng.random() < 0.1:
                del written[rng.randrange(len(written) // 2, len(written) - 1) :]
                store.truncate_after(written[-1].last_index)
    finally:
        done.set()
        thread.join()
    assert not failed
    store.sync()
    assert read_all(store, max_bytes=1 << 20) == join(written)
    store.close()
    assert read_all(DiskLogStore.open(tmp_path), max_bytes=1 << 20) == join(written)
