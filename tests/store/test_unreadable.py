"""Sectors that cannot be read any more are damage: found, repaired from a peer, never silent (rule 10)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from dledger.core.values import HardState
from dledger.errors import Code, StorageError
from dledger.infra.files import disk as disk_module
from dledger.infra.files.disk import Buffer, OsDisk
from dledger.store import files as files_module
from dledger.store.api import EntryDamaged, Frames
from dledger.store.disk_store import DiskLogStore
from dledger.store.files import FileSequence
from dledger.store.format.batch import Batch
from dledger.store.identity import init_directory
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.store.helpers import IDENTITY, ROOT, join, make_batches, read_all
from tests.store.rotten_disk import RottenDisk

PAGE = 128  # so that a small log has many
BATCHES = make_batches(40, seed=21)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "PAGE", PAGE)
    monkeypatch.setattr(files_module, "PAGE", PAGE)


def filled() -> tuple[RottenDisk, DiskLogStore]:
    disk = RottenDisk()
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    store.save_hard_state(HardState(term=BATCHES[-1].term, incarnation=1))
    store.append(BATCHES[:25])
    store.sync()
    store.purge_to(store.borders()[1])
    store.save_checkpoint(20, (15, b"sessions"))
    store.append(BATCHES[25:])
    store.sync()
    store.prepare(1024)
    return disk, store


def pages() -> Iterator[tuple[Path, int]]:
    """Every page of every file of such a node that was ever written."""
    disk, store = filled()
    ends = {"data": store.tail.pos, "index": (store.end_index + 1) * 32}
    for path in sorted(disk.files()):
        for offset in range(0, len(disk.content(path)), PAGE):
            if path.parent == ROOT or int(path.name) + offset < ends[path.parent.name]:
                yield path, offset


def rightful(begin_index: int) -> list[Batch]:
    return [batch for batch in BATCHES if batch.first_index >= begin_index]


def repair_all(store: DiskLogStore) -> None:
    """As a node does: scrub, and what is found is repaired by a peer's entries, until nothing is found."""
    index = store.begin_index
    clean = False
    for _ in range(500):
        for damage in store.damages:
            clean = False
            batches = [b for b in BATCHES if damage.first_index <= b.last_index <= damage.last_index]
            store.repair(Frames(damage.first_index, damage.last_index, join(batches)))
        step = store.scrub(index, 300)
        if step.damage is not None:
            clean = False
            store.note_damage(step.damage.first_index)
        index = step.next_index
        if index == store.begin_index:
            if clean:
                return
            clean = True
    raise AssertionError("there is no end of damage")


def check(store: DiskLogStore, where: str) -> None:
    repair_all(store)
    state = store.hard_state
    if state.rejoining:
        assert (state.floor_term, state.floor_index) >= (BATCHES[-1].term, BATCHES[-1].last_index), where
        left = [b for b in BATCHES if b.last_index > store.end_index]
        store.append(left)  # as the leader sends it
        store.sync()
    assert read_all(store) == join(rightful(store.begin_index)), where
    for batch in rightful(store.begin_index):
        assert store.tail_at(batch.last_index) == batch.tail, where
    store.append(make_batches(3, seed=5, tail=store.tail, term=90))
    store.sync()


@pytest.mark.slow
def test_rule_10_any_page_that_cannot_be_read_while_the_node_runs_is_repaired() -> None:
    for path, offset in pages():
        where = f"{path} {offset}"
        disk, store = filled()
        disk.rot(path, offset)
        check(store, where)
        store.close()
        disk.crash(CrashKind.POWER, Random(1))
        try:
            store = DiskLogStore.open(ROOT, disk=disk)
        except StorageError as error:
            assert error.code is Code.STATE_DAMAGED and path.parent == ROOT, where
        else:
            assert not store.damages and not store.hard_state.rejoining, where


@pytest.mark.slow
def test_rule_10_any_page_that_cannot_be_read_by_a_start_is_repaired_or_the_node_rejoins() -> None:
    rejoined = 0
    for kind in (CrashKind.PROCESS, CrashKind.POWER):
        for path, offset in pages():
            where = f"{path} {offset} {kind.value}"
            disk, _ = filled()
            disk.crash(kind, Random(1))
            disk.rot(path, offset)
            try:
                store = DiskLogStore.open(ROOT, disk=disk)
            except StorageError as error:
                assert error.code is Code.STATE_DAMAGED, where
                assert path.name in ("currterm", "identity"), where
                continue
            rejoined += store.hard_state.rejoining
            check(store, where)
    assert rejoined > 2, "the end of the log was among them"


def test_rule_10_an_unreadable_end_is_not_taken_for_a_torn_write() -> None:
    """Index records may be lost with the power: then only the data could say that a batch was durable."""
    disk, store = filled()
    last = BATCHES[-1]
    data = store._data.path_of(last.pos)
    disk.crash(CrashKind.PROCESS, Random(1))
    for path in [p for p in disk.files() if p.parent.name == "index"]:
        records = bytearray(disk.content(path))
        at = max(0, last.first_index * 32 - int(path.name))
        records[at:] = bytes(len(records[at:]))
        disk.set_content(path, bytes(records))
    disk.rot(data, last.pos % store.data_file_size)
    again = DiskLogStore.open(ROOT, disk=disk)
    assert again.end_index < last.last_index
    assert again.hard_state.rejoining, "what it forgets it may have acknowledged"


def test_rule_10_a_read_that_fails_once_is_repeated() -> None:
    disk, store = filled()
    disk.fail("pread")
    assert read_all(store) == join(rightful(store.begin_index))


def test_rule_10_every_way_to_read_says_damaged_and_not_that_the_disk_failed() -> None:
    disk, store = filled()
    bad = BATCHES[20]
    disk.rot(store._data.path_of(bad.pos), bad.pos % store.data_file_size)
    for read in (
        lambda: store.entry(bad.first_index),
        lambda: store.tail_at(bad.first_index),
        lambda: store.read(bad.first_index, bad.last_index, 1000, whole_batches=True),
        lambda: read_all(store),
    ):
        with pytest.raises(EntryDamaged) as caught:
            read()
        assert caught.value.code is Code.DATA_DAMAGED
    assert store.scrub(bad.first_index, 100).damage is not None
    store.append(make_batches(1, tail=store.tail, term=90))
    store.sync()


class CachingDisk(OsDisk):
    """Reads come from a cache, once a page is in it; `flip` changes what is on the disk below."""

    def __init__(self) -> None:
        self.pages: dict[tuple[int, int], bytes] = {}
        self.dropped = 0

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        parts = []
        for begin in range(offset - offset % PAGE, offset + size, PAGE):
            key = (os.fstat(handle).st_ino, begin)
            if key not in self.pages:
                self.pages[key] = super().pread(handle, PAGE, begin)
            parts.append(self.pages[key])
        skip = offset % PAGE
        return b"".join(parts)[skip : skip + size]

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        done = super().pwritev(handle, buffers, offset)
        for begin in range(offset - offset % PAGE, offset + done, PAGE):
            self.pages.pop((os.fstat(handle).st_ino, begin), None)
        return done

    def drop_cache(self, handle: int, offset: int = 0, size: int = 0) -> None:
        assert offset % PAGE == 0 and size % PAGE == 0, "pages that are partly in the range would stay"
        for begin in range(offset, offset + size, PAGE):
            self.dropped += self.pages.pop((os.fstat(handle).st_ino, begin), None) is not None


@pytest.mark.parametrize("folder", ["data", "index"])
def test_rule_10_the_scrub_sees_the_disk_and_not_the_page_cache(tmp_path: Path, folder: str) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    disk = CachingDisk()
    store = DiskLogStore.open(tmp_path / "n0", disk=disk)
    store.append(BATCHES)
    store.sync()
    assert read_all(store) == join(BATCHES), "all of it is in the cache now"
    with sorted((tmp_path / "n0" / folder).iterdir())[0].open("r+b") as file:
        file.seek(41)
        (byte,) = file.read(1)
        file.seek(41)
        file.write(bytes([byte ^ 4]))
    assert read_all(store) == join(BATCHES), "a reader is none the wiser"
    step = store.scrub(0, 300)
    assert step.damage is not None and disk.dropped > 0
    store.close()


def test_the_scrub_leaves_pages_alone_that_are_being_written_to(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    disk = CachingDisk()
    store = DiskLogStore.open(tmp_path / "n0", disk=disk)
    store.append(BATCHES[:1])
    store.sync()
    store.append(BATCHES[1:])
    tail_page = BATCHES[0].end_pos - BATCHES[0].end_pos % PAGE
    read_all(store)
    before = {key for key in disk.pages if key[1] >= tail_page}
    store.scrub(0, 10_000)
    assert before <= set(disk.pages), "from the page of the durable end on nothing was dropped"
    store.close()


def test_a_reader_may_find_a_page_lost_while_files_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    disk.mkdir(ROOT)
    files = FileSequence(disk, ROOT, PAGE)
    for number in range(4):
        files.ensure(number * PAGE)
    lost, start_of = files._unreadable, files.start_of
    lost |= {0, 2 * PAGE}

    def while_somebody_reads(pos: int) -> int:
        lost.add(3 * PAGE)
        return start_of(pos)

    monkeypatch.setattr(files, "start_of", while_somebody_reads)
    files.remove_below(PAGE)
    assert [files.is_unreadable_after(pos) for pos in (0, 3 * PAGE, 4 * PAGE)] == [True, True, False]
    files.write(3 * PAGE, [b"anew"], size=4)
    assert sorted(files._unreadable) == [2 * PAGE]
