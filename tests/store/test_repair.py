"""Repair in pieces (rule 10): beside appends, bounded, and void when the log changes meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from dledger.core.values import EMPTY_TAIL, ENTRY_HEADER_SIZE
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import Buffer, OsDisk
from dledger.store.api import Damage, Frames
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import BLANK_SIZE, Batch, encode_batch
from dledger.store.format.layout import file_name
from dledger.store.identity import Identity, init_directory
from dledger.testing.stores import OrderedDisk
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.store.helpers import IDENTITY, ROOT, SIZE, corrupt, join, make_batches, new_sim_store, read_all

BATCHES = make_batches(60, seed=11)


class CountingDisk(OsDisk):
    def __init__(self) -> None:
        self.written = 0

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        done = super().pwritev(handle, buffers, offset)
        self.written += done
        return done


def damaged(first: int, last: int) -> tuple[SimDisk, DiskLogStore, Damage]:
    """A log of BATCHES[:50] in which first..last cannot be read."""
    disk = OrderedDisk(ROOT, SIZE)
    init_directory(ROOT, IDENTITY, disk=disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    store.append(BATCHES[:50])
    store.sync()
    corrupt(disk, BATCHES[first], BATCHES[last])
    damage = store.note_damage(BATCHES[first].first_index)
    assert damage is not None and damage.first_index == BATCHES[first].first_index
    return disk, store, damage


def frames(batch: Batch) -> Frames:
    return Frames(batch.first_index, batch.last_index, bytes(batch.data))


def lost(damage: Damage) -> list[Batch]:
    return [b for b in BATCHES if damage.first_index <= b.last_index <= damage.last_index]


def temporaries(disk: SimDisk) -> list[Path]:
    return [path for path in disk.files() if path.name.endswith(".tmp")]


@pytest.mark.parametrize(("first", "last"), [(3, 3), (3, 25), (0, 10), (44, 49), (49, 49)])
def test_rule_10_a_range_over_many_files_is_repaired_in_pieces_beside_appends(first: int, last: int) -> None:
    disk, store, damage = damaged(first, last)
    more = iter(BATCHES[50:])
    work = store.begin_repair(damage)
    asked = []
    while not work.is_fed:
        batch = next(batch for batch in BATCHES if batch.first_index == work.next_index)
        asked.append(batch)
        work.feed(frames(batch))
        if batch.first_index % 4 == 0:
            store.append([next(more)])
    assert asked == BATCHES[first : last + 1], "what is good behind the last lost header is here"
    assert store.damages == (damage,)
    while work.copy(100):
        store.append(list(more)[:1])
    store.sync()
    while work.index_some(64):
        pass
    assert store.damages == (damage,), "nothing has changed so far"
    work.finish()
    work.abandon()
    assert store.damages == () and not temporaries(disk)
    whole = join([b for b in BATCHES if b.last_index <= store.end_index])
    assert read_all(store) == whole
    for kind in CrashKind:
        twin = disk.copy()
        twin.crash(kind, Random(1))
        again = DiskLogStore.open(ROOT, disk=twin)
        assert read_all(again) == whole and not again.damages and not again.hard_state.rejoining


def test_rule_10_a_repair_up_to_the_end_of_a_file_writes_the_blank_behind_it_too() -> None:
    """The damage took it along: without it, every start would have to find out that the file ends there."""
    disk, store = new_sim_store()
    store.append(BATCHES[:50])
    store.sync()
    last = next(b for b, c in pairwise(BATCHES[5:50]) if c.pos != b.end_pos)
    file = ROOT / "data" / file_name(last.pos - last.pos % SIZE)
    content = disk.content(file)
    for offset in range(last.end_pos % SIZE - 1, SIZE):
        disk.flip(file, offset, 0x5A)
    damage = store.note_damage(last.first_index)
    assert damage is not None and damage.last_index == last.last_index
    store.repair(Frames(damage.first_index, damage.last_index, join(lost(damage))))
    blank = slice(last.end_pos % SIZE, last.end_pos % SIZE + BLANK_SIZE)
    assert disk.content(file)[: blank.stop] == content[: blank.stop] and content[blank].strip(b"\0")
    store.close()
    assert DiskLogStore.open(ROOT, disk=disk).repairs == ()


def test_rule_10_a_crash_in_the_middle_leaves_a_damage_that_is_known_and_no_rest() -> None:
    disk, store, damage = damaged(3, 25)
    work = store.begin_repair(damage)
    pieces = lost(damage)
    for number, batch in enumerate(pieces):
        work.feed(frames(batch))
        if number == len(pieces) // 2:
            half = disk.copy()
    while work.copy(100):
        pass
    while work.index_some(64):
        pass
    for twin in (half, disk):
        assert temporaries(twin)
        twin.crash(CrashKind.PROCESS, Random(1))
        again = DiskLogStore.open(ROOT, disk=twin)
        assert again.damages == (damage,)
        assert not [path for path in temporaries(twin) if path.parent != ROOT]
        again.repair(Frames(damage.first_index, damage.last_index, join(pieces)))
        assert read_all(again) == join(BATCHES[:50]) and not temporaries(twin)


def test_rule_10_a_repair_is_void_when_the_log_is_cut_or_purged_meanwhile() -> None:
    for change in ("truncate", "purge", "reset", "repair"):
        disk, store, damage = damaged(20, 25)
        work = store.begin_repair(damage)
        for batch in lost(damage):
            work.feed(frames(batch))
        while work.copy(100):
            pass
        if change == "truncate":
            store.truncate_after(BATCHES[40].last_index)
        elif change == "purge":
            store.purge_to(next(base for base in store.borders() if base.index >= damage.last_index))
        elif change == "reset":
            store.reset_to(store.base._replace(index=900, pos=SIZE * 50))
        else:
            store.repair(Frames(damage.first_index, damage.last_index, join(lost(damage))))
            work = store.begin_repair(damage) if store.damages else work
        before = [disk.content(path) for path in disk.files() if path.parent.name == "data"]
        with pytest.raises(StorageError) as caught:
            work.finish()
        assert caught.value.code is Code.DATA_DAMAGED, change
        work.abandon()
        store.append([])
        assert not temporaries(disk), change
        assert len([p for p in disk.files() if p.parent.name == "data"]) <= len(before)


def test_rule_10_entries_that_do_not_fit_at_the_far_end_are_found_out_before_anything_changes() -> None:
    disk, store, damage = damaged(48, 49)
    *first, second = lost(damage)
    other = encode_batch(first[-1].tail, second.term, [b"x"] * second.count, data_file_size=SIZE)
    data = {path: disk.content(path) for path in disk.files() if path.parent.name in ("data", "index")}
    work = store.begin_repair(damage)
    for batch in first:
        work.feed(frames(batch))
    with pytest.raises(StorageError, match="do not match"):
        work.feed(frames(other))
    work.abandon()
    assert store.damages == (damage,)
    assert {
        path: disk.content(path) for path in disk.files() if path.parent.name in ("data", "index")
    } == data


def test_rule_10_good_batches_behind_a_lost_header_are_taken_from_the_own_disk() -> None:
    """The member that gives the lost one has another batch behind it: an uncommitted one, perhaps."""
    _, store, damage = damaged(20, 20)
    first, second = lost(damage)
    other = encode_batch(first.tail, second.term + 1, [b"x"] * second.count, data_file_size=SIZE)
    work = store.begin_repair(damage)
    work.feed(Frames(first.first_index, other.last_index, join([first, other])))
    assert work.is_fed
    while work.copy(100):
        pass
    work.finish()
    assert store.damages == () and read_all(store) == join(BATCHES[:50])


def test_rule_10_good_batches_that_a_member_sends_along_are_passed_over() -> None:
    """Two lost batches and a good one between them; the member sends all in one piece."""
    disk, store = new_sim_store()
    store.append(BATCHES[:50])
    store.sync()
    for number in (20, 22):
        corrupt(disk, BATCHES[number], BATCHES[number])
    damage = store.note_damage(BATCHES[20].first_index)
    assert damage is not None and damage.last_index > BATCHES[22].first_index
    store.repair(Frames(damage.first_index, damage.last_index, join(lost(damage))))
    assert store.damages == () and read_all(store) == join(BATCHES[:50])


def test_rule_10_an_own_batch_that_does_not_end_as_it_must_is_not_taken() -> None:
    """It follows what came before: a lost write has left what an earlier leader had written there."""
    disk, store, damage = damaged(20, 21)
    *before, last = lost(damage)
    sizes = [last.size - ENTRY_HEADER_SIZE * last.count - last.count + 1, *[1] * (last.count - 1)]
    other = encode_batch(before[-1].tail, last.term, [b"x" * size for size in sizes], data_file_size=SIZE)
    assert (other.size, other.pos, other.last_index) == (last.size, last.pos, last.last_index)
    file = ROOT / "data" / file_name(last.pos - last.pos % SIZE)
    for offset, byte in enumerate(bytes(other.data), last.pos % SIZE):
        disk.flip(file, offset, disk.content(file)[offset] ^ byte)
    work = store.begin_repair(damage)
    for batch in (*before, last):
        assert not work.is_fed
        work.feed(frames(batch))
    while work.copy(100):
        pass
    work.finish()
    assert store.damages == () and read_all(store) == join(BATCHES[:50])


def test_rule_9_a_repair_without_room_changes_nothing() -> None:
    disk, store, damage = damaged(20, 21)
    disk.capacity = disk._used()
    work = store.begin_repair(damage)
    with pytest.raises(StorageError) as caught:
        work.feed(frames(lost(damage)[0]))
    assert caught.value.code is Code.DISK_FULL
    work.abandon()
    assert not temporaries(disk)
    disk.capacity = 1 << 30
    store.repair(Frames(damage.first_index, damage.last_index, join(lost(damage))))
    assert read_all(store) == join(BATCHES[:50])


def test_rule_9_the_writing_thread_has_little_to_do_for_a_repair_of_a_large_file(tmp_path: Path) -> None:
    size = 16 << 20
    init_directory(tmp_path / "n", Identity("cluster", "group", "n", data_file_size=size))
    disk = CountingDisk()
    store = DiskLogStore.open(tmp_path / "n", disk=disk, disk_reserve_bytes=0)
    tail, batches = EMPTY_TAIL, []
    for number in range(100):
        batches.append(encode_batch(tail, 1, [b"%d" % number * 40_000], data_file_size=size))
        tail = batches[-1].tail
    store.append(batches)
    store.sync()
    with store._data.path_of(0).open("r+b") as file:
        file.seek(batches[50].pos + 100)
        file.write(b"bad")
    damage = store.note_damage(batches[50].first_index)
    assert damage is not None
    work = store.begin_repair(damage)
    work.feed(frames(batches[50]))
    pieces = 0
    while work.copy(1 << 20):
        pieces += 1
    assert pieces > 5
    before = disk.written
    while work.index_some(1 << 20):
        pass
    work.finish()
    assert disk.written - before < 2 << 20, "what is left of a file that grows"
    assert read_all(store, max_bytes=1 << 20) == join(batches)
    store.close()


@pytest.mark.parametrize(("first_lost", "in_pieces"), [(3, False), (3, True), (5, False)])
def test_rule_10_an_own_batch_of_another_history_does_not_keep_a_range_from_being_repaired(
    first_lost: int, in_pieces: bool
) -> None:
    """A lost write has left what an earlier leader had written there. It follows what came before, and ends
    before the damage does, so that only the next entries of the member show what it is."""
    disk, store, damage = damaged(first_lost, first_lost + 2)
    _, member = new_sim_store()
    member.append(BATCHES[:50])
    member.sync()
    first, own, *_ = lost(damage)
    other = encode_batch(first.tail, own.term, [b"other"], data_file_size=SIZE)
    assert other.pos == own.pos and other.size <= own.size and other.last_index < damage.last_index
    file = ROOT / "data" / file_name(own.pos - own.pos % SIZE)
    for offset, byte in enumerate(bytes(other.data), own.pos % SIZE):
        disk.flip(file, offset, disk.content(file)[offset] ^ byte)
    work = store.begin_repair(damage)
    for _ in range(20):
        if not work.is_fed:
            max_bytes = 1 if in_pieces else 1 << 20
            work.feed(member.read(work.next_index, damage.last_index, max_bytes, whole_batches=True))
    assert work.is_fed
    while work.copy(100):
        pass
    work.finish()
    assert store.damages == () and read_all(store) == join(BATCHES[:50]) and not temporaries(disk)


def with_good_successor() -> tuple[SimDisk, DiskLogStore, Batch]:
    """A log in which one batch has a damaged body, and the one after it, in the same file."""
    disk, store = new_sim_store()
    store.append(BATCHES)
    store.sync()
    number = next(n for n in range(5, 40) if len({one.pos // SIZE for one in BATCHES[n : n + 3]}) == 1)
    disk.flip(*place(BATCHES[number], BATCHES[number].size - 1))
    assert store.note_damage(BATCHES[number].first_index) is not None
    return disk, store, BATCHES[number + 1]


def place(batch: Batch, offset: int = 0) -> tuple[Path, int]:
    return ROOT / "data" / file_name(batch.pos - batch.pos % SIZE), batch.pos % SIZE + offset


def repair_all(store: DiskLogStore) -> None:
    for damage in store.damages:
        store.repair(Frames(damage.first_index, damage.last_index, join(lost(damage))))


def test_rule_10_a_repair_writes_nothing_over_a_batch_behind_it_whose_header_is_damaged() -> None:
    """It may be repaired from another member, or read by a tool: the blank of a border belongs elsewhere."""
    disk, store, after = with_good_successor()
    file, offset = place(after, 1)
    disk.flip(file, offset)
    before = disk.content(file)[offset - 1 : offset - 1 + after.size]
    repair_all(store)
    assert disk.content(file)[offset - 1 : offset - 1 + after.size] == before


def test_rule_10_a_repair_keeps_a_good_batch_behind_it_that_cannot_be_read_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, store, after = with_good_successor()
    file, offset = place(after)
    pread = SimDisk.pread

    def failing(self: SimDisk, handle: int, size: int, at: int) -> bytes:
        if (size, at) == (ENTRY_HEADER_SIZE, offset):
            raise OSError(errno.EIO, "for a moment")
        return pread(self, handle, size, at)

    (damage,) = store.damages
    work = store.begin_repair(damage)
    monkeypatch.setattr(SimDisk, "pread", failing)
    work.feed(Frames(damage.first_index, damage.last_index, join(lost(damage))))
    monkeypatch.setattr(SimDisk, "pread", pread)
    while work.copy(1 << 20):
        pass
    work.finish()
    assert disk.content(file)[offset : offset + after.size] == bytes(after.data)
    assert store.damages == () and read_all(store) == join(BATCHES)
