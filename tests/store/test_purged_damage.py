"""Damage at the begin of the log: a PURGE to the border before it, through it, or behind it (rule 10)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dledger.core.values import Base
from dledger.errors import Code, StorageError
from dledger.store.api import Frames
from dledger.store.damage import read_damages, write_damages
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch
from dledger.store.format.layout import NodePaths, file_name
from dledger.store.space import default_reserve
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.store.helpers import ROOT, SIZE, join, make_batches, new_sim_store, read_all

BATCHES = make_batches(60, seed=11)
PATHS = NodePaths(ROOT)
BORDER = 3  # number of the border that the tests purge to


def number_after(base: Base) -> int:
    """The place of the first batch after a border."""
    return next(number for number, batch in enumerate(BATCHES) if batch.first_index == base.index + 1)


def damaged(first: int, last: int) -> tuple[SimDisk, DiskLogStore, Base]:
    """A log in which BATCHES[first..last], counted from a border in the middle of it, are damaged."""
    disk, store = new_sim_store()
    store.append(BATCHES)
    store.sync()
    base = store.borders()[BORDER]
    at = number_after(base)
    for batch in BATCHES[at + first : at + last + 1]:
        disk.flip(PATHS.data / file_name(batch.pos - batch.pos % SIZE), batch.end_pos % SIZE - 1)
    damage = store.note_damage(BATCHES[at + first].first_index)
    assert damage is not None and damage.first_index == BATCHES[at + first].first_index
    assert damage.last_index == BATCHES[at + last].last_index
    return disk, store, base


def kept(store: DiskLogStore) -> list[Batch]:
    return [batch for batch in BATCHES if batch.first_index >= store.begin_index]


def repair_all(store: DiskLogStore) -> None:
    for damage in store.damages:
        lost = [b for b in BATCHES if damage.first_index <= b.last_index <= damage.last_index]
        store.repair(Frames(damage.first_index, damage.last_index, join(lost)))


def must_be_whole(disk: SimDisk, store: DiskLogStore, base: Base) -> None:
    """The log after `base` can be read, and nothing before it is there."""
    assert store.base == base and store.damages == ()
    assert read_all(store) == join(kept(store))
    files = [path.name for path in disk.files() if path.parent == PATHS.data]
    assert min(files) == file_name(base.pos), f"a purged file is back: {files}"


#: Where the damage is, counted in batches from the border.
RANGES = {"behind the border": (0, 1), "across the border": (-2, 1), "before the border": (-3, -1)}


@pytest.mark.parametrize("where", RANGES)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_rule_10_damage_at_the_new_begin_is_repaired_after_a_purge(where: str, is_restarted: bool) -> None:
    disk, store, base = damaged(*RANGES[where])
    store.purge_to(base)
    if is_restarted:
        store.close()
        store = DiskLogStore.open(ROOT, disk=disk)
    assert all(damage.first_index == base.index + 1 for damage in store.damages)
    assert bool(store.damages) == (where != "before the border")
    repair_all(store)
    must_be_whole(disk, store, base)
    store.close()
    must_be_whole(disk, DiskLogStore.open(ROOT, disk=disk), base)


@pytest.mark.parametrize("where", RANGES)
def test_rule_10_records_of_damage_from_before_a_purge_are_clipped_by_the_next_start(where: str) -> None:
    """Version 0.1.0 kept records that name entries before the begin, and their position in a purged file."""
    disk, store, base = damaged(*RANGES[where])
    stale = read_damages(disk, PATHS.damage)
    store.purge_to(base)
    store.close()
    write_damages(disk, PATHS.damage, stale)
    store = DiskLogStore.open(ROOT, disk=disk)
    assert all(base.index < damage.first_index <= damage.last_index for damage in store.damages)
    assert tuple(known.damage for known in read_damages(disk, PATHS.damage)) == store.damages
    repair_all(store)
    must_be_whole(disk, store, base)


@pytest.mark.parametrize("moment", ["before it starts", "half fed", "fed", "copied"])
@pytest.mark.parametrize("where", RANGES)
def test_rule_10_a_repair_notices_that_the_log_was_purged_up_to_its_range(where: str, moment: str) -> None:
    """The repair ends without an effect, and the process goes on. The next one succeeds."""
    disk, store, base = damaged(*RANGES[where])
    damage = store.damages[0]
    work = store.begin_repair(damage)
    lost = [b for b in BATCHES if damage.first_index <= b.last_index <= damage.last_index]
    pieces = [Frames(b.first_index, b.last_index, bytes(b.data)) for b in lost]
    fed_before = {"before it starts": 0, "half fed": 1}.get(moment, len(pieces))
    for piece in pieces[:fed_before]:
        work.feed(piece)
    while moment == "copied" and work.copy(100):
        pass
    store.purge_to(base)
    with pytest.raises(StorageError) as caught:
        for piece in pieces[fed_before:]:
            work.feed(piece)
        while work.copy(100):
            pass
        work.finish()
    work.abandon()
    assert caught.value.code is Code.DATA_DAMAGED
    assert not [path for path in disk.files() if path.suffix == ".tmp"]
    repair_all(store)
    must_be_whole(disk, store, base)


def purge_with_a_crash(where: str, operation: int, point: CrashPoint) -> tuple[SimDisk, Base] | None:
    """The disk after a crash at an operation of a purge; None: the purge has fewer."""
    disk, store, base = damaged(*RANGES[where])
    disk.schedule_crash(len(disk.operations) + operation, point)
    try:
        store.purge_to(base)
    except SimulatedCrash:
        return disk, base
    return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", CrashKind)
@pytest.mark.parametrize("where", RANGES)
def test_rule_10_a_crash_inside_a_purge_leaves_no_damage_outside_of_the_log(
    where: str, kind: CrashKind
) -> None:
    """Every such damage can be repaired, and none of it is of entries that were purged."""
    operation, purged = 1, 0
    while (crashed := purge_with_a_crash(where, operation, CrashPoint.BEFORE)) is not None:
        for seed in range(1 if kind is CrashKind.PROCESS else 6):
            disk, base = crashed[0].copy(), crashed[1]
            disk.crash(kind, Random(seed), reorder=seed % 2 == 1)
            store = DiskLogStore.open(ROOT, disk=disk)
            at = f"{crashed[0].operations[-1]}, operation {operation}, seed {seed}"
            assert all(
                store.begin_index <= d.first_index <= d.last_index < store.end_index for d in store.damages
            ), at
            known = {i for d in store.damages for i in range(d.first_index, d.last_index + 1)}
            first, last = (BATCHES[number_after(base) + n] for n in RANGES[where])
            lost = range(max(first.first_index, store.begin_index), last.last_index + 1)
            assert known == set(lost), f"{at}: damage is forgotten, or invented"
            purged += store.base == base
            repair_all(store)
            must_be_whole(disk, store, store.base) if store.base == base else None
            assert read_all(store) == join(kept(store)), at
        operation += 1
    assert operation > 8 and purged, "the purge was never carried out, or hardly does anything"


def test_rule_9_a_purge_without_room_for_the_list_of_damages_is_carried_out() -> None:
    """The begin is durable by then: the store must not say that nothing has changed."""
    disk, store, base = damaged(*RANGES["across the border"])
    listed = disk.content(PATHS.damage)
    disk.lose(PATHS.reserve)
    original, writes = disk.open, []

    def open_(path: Path, **options: bool) -> int:
        if path.name.startswith(PATHS.damage.name) and options.get("create"):
            writes.append(path)
            raise OSError(28, "No space left on device")
        return original(path, **options)

    disk.open = open_  # type: ignore[method-assign]
    store.purge_to(base)
    assert writes and disk.content(PATHS.damage) == listed
    assert store.base == base and store.damages[0].first_index == base.index + 1
    disk.open = original  # type: ignore[method-assign]
    store.close()
    store = DiskLogStore.open(ROOT, disk=disk, disk_reserve_bytes=default_reserve(SIZE))
    repair_all(store)
    must_be_whole(disk, store, base)
