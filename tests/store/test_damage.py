"""Damage of a running store (rule 10): noted, refused to readers, repaired from a peer, scrubbed."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from dledger.core.values import EMPTY_TAIL, Base, Tail
from dledger.errors import Code, DLedgerError, StorageError
from dledger.store import repair
from dledger.store.api import Damage, EntryDamaged, Frames, LogStore
from dledger.store.damage import KnownDamage, clip
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.format.layout import INDEX_RECORD_SIZE, file_name
from dledger.store.identity import init_directory
from dledger.testing.memory_store import MemoryLogStore
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.store.helpers import IDENTITY, ROOT, SIZE, join, make_batches, new_sim_store, read_all
from tests.store.test_contract import Reopen, opened, store

__all__ = ["opened", "store"]


def filled(store: LogStore, count: int = 20, seed: int = 7) -> list[Batch]:
    batches = make_batches(count, seed=seed, tail=store.tail)
    store.append(batches)
    store.sync()
    return batches


def frames_of(batches: list[Batch]) -> Frames:
    return Frames(batches[0].first_index, batches[-1].last_index, join(batches))


def corrupt(store: LogStore, batch: Batch, at: int = 50) -> None:
    """Make a batch unreadable, whatever the store keeps it in."""
    if isinstance(store, MemoryLogStore):
        store.corrupt(batch.first_index)
        return
    assert isinstance(store, DiskLogStore)
    path = store._data.path_of(batch.pos)
    if isinstance(store._disk, SimDisk):
        store._disk.flip(path, batch.pos % SIZE + at)
        return
    with path.open("r+b") as file:
        file.seek(batch.pos % SIZE + at)
        (byte,) = file.read(1)
        file.seek(batch.pos % SIZE + at)
        file.write(bytes([byte ^ 1]))


def first_damaged(store: LogStore) -> int:
    with pytest.raises(EntryDamaged) as error:
        read_all(store)
    assert error.value.code is Code.DATA_DAMAGED
    return error.value.index


def test_looking_for_damage_makes_what_was_only_written_durable_first() -> None:
    """Damage is searched by index records, and an entry that is found to be good gets its own again."""
    disk, store = new_sim_store()
    filled(store)
    fresh = make_batches(2, seed=8, tail=store.tail)
    store.append(fresh)
    assert store.note_damage(fresh[1].first_index) is None
    assert store.durable_index == fresh[1].last_index
    disk.crash(CrashKind.POWER, Random(1))
    assert DiskLogStore.open(ROOT, disk=disk).tail == fresh[1].tail


def test_a_damage_is_noted_kept_and_repaired(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = filled(store)
    bad = [batches[4], batches[11]]
    for batch in bad:
        corrupt(store, batch)
        damage = store.note_damage(first_damaged(store) if batch is bad[0] else batch.first_index)
        assert damage is not None
        assert (damage.first_index, damage.last_index) == (batch.first_index, batch.last_index)
        assert store.note_damage(batch.last_index) == damage, "it is known"
    for _ in range(2):
        assert [d.first_index for d in store.damages] == [batch.first_index for batch in bad]
        assert store.tail == batches[-1].tail
        for batch in bad:
            for index in range(batch.first_index, batch.last_index + 1):
                with pytest.raises(EntryDamaged, match="damaged"):
                    store.entry(index)
            with pytest.raises(EntryDamaged):
                store.read(batch.first_index, batch.last_index, 100, whole_batches=True)
            assert store.tail_at(batch.last_index) == batch.tail, "its end is certain"
        before = store.read(0, store.end_index, 100_000, whole_batches=True)
        assert before.last_index < bad[0].first_index
        behind = store.read(batches[12].first_index, store.end_index, 1000, whole_batches=True)
        assert join(batches[12:]).startswith(behind.data)
        store = reopen(store)
    store.repair(frames_of(batches[4:7]))
    assert [d.first_index for d in store.damages] == [bad[1].first_index]
    store = reopen(store)
    store.repair(frames_of(batches[11:12]))
    for _ in range(2):
        assert store.damages == () and read_all(store) == join(batches)
        store = reopen(store)
    more = filled(store, seed=9)
    assert read_all(reopen(store)) == join(batches + more)


def test_what_is_not_damaged_is_not_noted(store: LogStore) -> None:
    assert store.note_damage(0) is None
    batches = filled(store)
    for batch in batches:
        assert store.note_damage(batch.first_index) is None
    assert store.damages == ()


def test_a_repair_that_does_not_fit_changes_nothing(store: LogStore) -> None:
    batches = filled(store)
    bad = batches[6]
    corrupt(store, bad)
    with pytest.raises(StorageError, match="no damage starts"):
        store.repair(frames_of([bad]))
    assert store.note_damage(bad.first_index) is not None
    tail = batches[5].tail
    other = encode_batch(tail, bad.term, [b"x"] * bad.count, data_file_size=SIZE)
    flipped = bytearray(bad.data)
    flipped[-1] ^= 1
    for data in (bytes(other.data), bytes(flipped), bytes(bad.data)[:-1], b""):
        with pytest.raises(StorageError) as error:
            store.repair(Frames(bad.first_index, bad.last_index, data))
        assert error.value.code is Code.DATA_DAMAGED
        assert len(store.damages) == 1
        store.sync()
    with pytest.raises(StorageError, match="no damage starts"):
        store.repair(frames_of(batches[5:8]))
    store.repair(frames_of([bad]))
    assert read_all(store) == join(batches)


def test_scrubbing_finds_what_nobody_reads(store: LogStore) -> None:
    batches = filled(store)
    bad = [batches[3], batches[15]]
    for batch in bad:
        corrupt(store, batch)
    found, index, steps = [], 0, 0
    while True:
        step = store.scrub(index, 500)
        steps += 1
        index = step.next_index
        if step.damage is not None:
            found.append(step.damage.first_index)
            assert store.note_damage(step.damage.first_index) is not None
        if index == 0:
            break
        assert step.bytes_read > 0 and steps < 50
    assert found == [batch.first_index for batch in bad] and steps > 5
    store.repair(frames_of([bad[0]]))
    store.repair(frames_of([bad[1]]))
    index = 0
    for _ in range(steps * 2):
        step = store.scrub(index, 500)
        assert step.damage is None
        index = step.next_index


def test_a_scrub_that_a_purge_overtakes_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = new_sim_store()
    filled(store)
    base = store.borders()[0]

    def drop_cache(*_: object) -> None:
        store.purge_to(base)

    monkeypatch.setattr(repair, "_drop_cache", drop_cache)
    step = store.scrub(0, 300)
    assert step.bytes_read > 0 and step.next_index > base.index + 1


def test_purge_truncation_and_reset_take_damages_along(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = filled(store, 30)
    bad = [batches[1], batches[15], batches[28]]
    for batch in bad:
        corrupt(store, batch)
        assert store.note_damage(batch.first_index)
    store.truncate_after(batches[27].last_index)
    assert [d.first_index for d in store.damages] == [b.first_index for b in bad[:2]]
    store.purge_to(next(base for base in store.borders() if base.index >= bad[0].last_index))
    assert [d.first_index for d in store.damages] == [bad[1].first_index]
    store = reopen(store)
    assert [d.first_index for d in store.damages] == [bad[1].first_index]
    store.truncate_after(bad[1].last_index)
    store.repair(frames_of([bad[1]]))
    assert store.damages == () and read_all(store).endswith(bytes(bad[1].data))
    store.reset_to(store.base._replace(index=900, pos=SIZE * 50))
    assert store.damages == () and reopen(store).damages == ()


def test_a_damaged_end_of_a_running_store_is_repaired_in_place(store: LogStore) -> None:
    batches = filled(store)
    corrupt(store, batches[-1], at=38)  # the chain_crc
    more = make_batches(2, tail=batches[-1].tail, seed=3, term=9)
    damage = store.note_damage(batches[-1].first_index)
    assert damage is not None and store.tail_at(batches[-1].last_index) == batches[-1].tail
    store.append(more)
    store.sync()
    assert read_from(store, more[0].first_index) == join(more)
    store.repair(frames_of(batches[-1:]))
    assert read_all(store) == join(batches + more)


def read_from(store: LogStore, index: int) -> bytes:
    return store.read(index, store.end_index, 10_000, whole_batches=True).data


def test_a_header_that_is_lost_does_not_hide_where_its_batch_ends() -> None:
    """The last header of a batch of one entry: the next one's chain proves what it was."""
    disk, store = new_sim_store()
    tail, batches = EMPTY_TAIL, []
    for number in range(6):
        batches.append(encode_batch(tail, 1 + number // 3, [b"%d" % number * 40], data_file_size=SIZE))
        tail = batches[-1].tail
    store.append(batches)
    store.sync()
    disk.unlink(ROOT / "checkpoint") if disk.exists(ROOT / "checkpoint") else None
    disk.crash(CrashKind.PROCESS, Random(0))
    for indexed in (True, False):
        for offset in range(48):
            twin = disk.copy()
            if not indexed:
                for path in [p for p in twin.files() if p.parent.name == "index"]:
                    twin.set_content(path, bytes(len(twin.content(path))))
            twin.flip(ROOT / "data" / file_name(0), batches[2].pos + offset, 0x10)
            store = DiskLogStore.open(ROOT, disk=twin)
            assert [(d.first_index, d.last_index) for d in store.damages] == [(2, 2)], (indexed, offset)
            store.repair(frames_of(batches[2:3]))
            assert read_all(store) == join(batches)
            assert [tuple(run) for run in store.term_runs] == [(1, 0), (2, 3)]


def test_a_broken_list_of_damages_is_found_again() -> None:
    disk, store = new_sim_store()
    batches = filled(store)
    corrupt(store, batches[4])
    assert store.note_damage(batches[4].first_index)
    store.close()
    disk.flip(ROOT / "damage", 8)
    store = DiskLogStore.open(ROOT, disk=disk)
    assert store.note_damage(first_damaged(store)) is not None
    assert [d.first_index for d in store.damages] == [batches[4].first_index]


def test_a_lost_index_record_is_written_again() -> None:
    disk, store = new_sim_store()
    batches = filled(store)
    whole = {path: disk.content(path) for path in disk.files() if path.parent.name == "index"}
    for path, content in whole.items():
        for offset in range(0, len(content), 5):
            if int(path.name) + offset >= (store.end_index + 1) * 32:
                continue
            disk.flip(path, offset, 0x21)
            index = 0
            while True:
                step = store.scrub(index, 300)
                if step.damage is not None:
                    assert store.note_damage(step.damage.first_index) is None
                index = step.next_index
                if index == 0:
                    break
            assert disk.content(path) == content, f"{path} {offset}"
            assert store.damages == () and read_all(store) == join(batches)


@pytest.mark.parametrize("bit", range(8))
def test_a_head_whose_index_record_is_damaged_is_not_left_out(bit: int) -> None:
    """A session would miss the batch, and store a retry of it twice."""
    disk, store = new_sim_store()
    tail = EMPTY_TAIL
    for number in range(3):
        batch = encode_batch(tail, 1, [b"%d" % number], data_file_size=SIZE, head=b"head %d" % number)
        store.append([batch])
        tail = batch.tail
    store.sync()
    heads = list(store.iter_heads(0))
    assert [head.first_index for head in heads] == [0, 2, 4]
    [path] = [path for path in disk.files() if path.parent.name == "index" and path.name == file_name(0)]
    disk.flip(path, 2 * 32 + 3, 1 << bit)
    with pytest.raises(EntryDamaged) as caught:
        list(store.iter_heads(0))
    assert caught.value.index == 2 and store.note_damage(2) is None
    assert list(store.iter_heads(0)) == heads


def test_readers_go_on_while_files_are_replaced(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    store = DiskLogStore.open(tmp_path / "n0")
    batches = filled(store, 40)
    whole = join(batches)
    done = threading.Event()
    problems: list[object] = []
    seen = 0

    def reader() -> None:
        nonlocal seen
        rng = Random(1)
        while not done.is_set():
            batch = rng.choice(batches)
            try:
                data = store.read(batch.first_index, store.end_index, 900, whole_batches=True).data
                if data not in whole:
                    problems.append(batch)
                seen += 1
            except EntryDamaged:
                continue
            except (DLedgerError, AssertionError) as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for batch in batches[1:38]:
        corrupt(store, batch)
        assert store.note_damage(batch.first_index)
        store.repair(frames_of([batch]))
    done.set()
    for thread in threads:
        thread.join()
    assert problems == [] and seen > 0 and read_all(store) == whole
    store.close()


def test_a_record_that_a_former_life_put_right_is_durable_before_a_checkpoint_counts_on_it() -> None:
    disk, store = new_sim_store()
    batches = filled(store)
    store.save_checkpoint(batches[-1].last_index, None)
    index = batches[3].first_index
    at = index * INDEX_RECORD_SIZE
    path = store._index.path_of(at)
    disk.flip(path, at % store._index.file_size)
    store.note_damage(index)  # writes the record again, and the process dies before it is synced
    disk.crash(CrashKind.PROCESS, Random(1))
    reopened = DiskLogStore.open(ROOT, disk=disk)
    reopened.append(make_batches(1, seed=9, tail=reopened.tail))
    reopened.sync()
    reopened.save_checkpoint(reopened.end_index, None)
    assert disk.is_durable(path, at % reopened._index.file_size, INDEX_RECORD_SIZE)


def test_rule_10_a_damage_is_clipped_to_the_log_that_is_left() -> None:
    base, ends = Base(1, 1, 100, 1), [Tail(index, 1, 100 * index, index) for index in range(9)]
    known = KnownDamage(Damage(3, 5, "file", 7, "torn"), ends[2], ends[5])
    assert clip([known], base, ends[2]) == ()
    for last in (3, 4, 5, 6):
        (clipped,) = clip([known], base, ends[last])
        assert (clipped.damage.first_index, clipped.damage.last_index) == (3, min(last, 5))
        assert (clipped.before, clipped.after) == (ends[2], ends[min(last, 5)])
