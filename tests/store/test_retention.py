"""Where the log begins: purging at a border and starting anew after a base, for every store."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from dledger.core.values import NO_BASE, Base, HardState, Tail, TermRun
from dledger.errors import Code, ReadFailed, StorageError
from dledger.store.api import LogStore
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch
from dledger.store.format.layout import file_name
from dledger.store.state_files import read_hard_state
from dledger.testing.virtual.sim_disk import SimDisk
from tests.store.helpers import ROOT, SIZE, join, make_batches, new_sim_store, read_all
from tests.store.test_contract import Reopen, opened, store

__all__ = ["opened", "store"]


def filled(store: LogStore, count: int = 30, seed: int = 7, term: int = 1) -> list[Batch]:
    batches = make_batches(count, seed=seed, tail=store.tail, term=term)
    store.append(batches)
    store.sync()
    return batches


def borders_of(batches: list[Batch]) -> list[Base]:
    return [
        Base(a.last_index, a.term, b.pos, a.chain_crc)
        for a, b in pairwise(batches)
        if a.pos // SIZE != b.pos // SIZE
    ]


def after(batches: list[Batch], base: Base) -> list[Batch]:
    return [batch for batch in batches if batch.first_index > base.index]


def runs_of(batches: list[Batch]) -> list[TermRun]:
    runs: list[TermRun] = []
    for batch in batches:
        if not runs or runs[-1].term != batch.term:
            runs.append(TermRun(batch.term, batch.first_index))
    return runs


def test_borders_are_the_ends_before_each_file(store: LogStore) -> None:
    assert store.borders() == []
    batches = filled(store)
    assert store.borders() == borders_of(batches) and len(store.borders()) > 4
    store.prepare(5 * SIZE)
    assert store.borders() == borders_of(batches), "a file without an entry is no border"


def test_a_purge_moves_the_begin_and_nothing_else(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = filled(store)
    for base in borders_of(batches)[1::2]:
        store.purge_to(base)
        kept = after(batches, base)
        for _ in range(2):
            assert (store.base, store.begin_index) == (base, base.index + 1)
            assert store.tail == batches[-1].tail and store.generation == 0
            assert read_all(store) == join(kept) and store.term_runs == runs_of(kept)
            assert store.borders() == borders_of(kept)
            assert store.tail_at(base.index) == Tail(base.index, base.term, base.pos, base.chain_crc)
            assert store.committed_checkpoint >= base.index
            with pytest.raises(ReadFailed, match=rf"{base.index} is below .* {base.index + 1}\.\.") as error:
                store.read(base.index, base.index, 100, whole_batches=False)
            assert error.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN
            store = reopen(store)
    store.purge_to(borders_of(batches)[0])
    store.purge_to(NO_BASE)
    assert store.base == base, "what is gone already is not purged again"
    more = filled(store, seed=9)
    assert read_all(reopen(store)) == join(kept + more)


def test_only_a_border_can_be_purged_to(store: LogStore) -> None:
    batches = filled(store)
    border = borders_of(batches)[2]
    for wrong in (
        border._replace(pos=border.pos + SIZE),
        border._replace(chain_crc=border.chain_crc ^ 1),
        border._replace(index=border.index - 1),
        Base(batches[-1].last_index, batches[-1].term, batches[-1].end_pos, batches[-1].chain_crc),
    ):
        with pytest.raises(AssertionError):
            store.purge_to(wrong)
    assert read_all(store) == join(batches)


def test_truncation_down_to_the_base(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = filled(store)
    base = store.borders()[2]
    store.purge_to(base)
    store.truncate_after(base.index)
    assert store.end_index == base.index and store.term_runs == []
    store = reopen(store)
    assert (store.base, store.end_index, store.durable_index) == (base, base.index, base.index)
    again = after(batches, base)
    store.append(again)
    store.sync()
    assert read_all(reopen(store)) == join(again)


@pytest.mark.parametrize("pos", [0, 3 * SIZE, 40 * SIZE])
def test_a_reset_begins_anew_after_the_base(opened: tuple[LogStore, Reopen], pos: int) -> None:
    store, reopen = opened
    filled(store)
    store.save_hard_state(HardState(8, "n1", 3))
    store.save_checkpoint(store.end_index, (store.end_index, b"table"))
    base = Base(500, 4, pos, 77)
    store.reset_to(base)
    for _ in range(2):
        assert (store.base, store.begin_index, store.end_index) == (base, 501, 500)
        assert store.tail == Tail(500, 4, pos, 77) and store.durable_index == 500
        assert store.term_runs == [] and store.borders() == [] and store.committed_checkpoint == 500
        assert store.hard_state == HardState(8, "n1", 3) and store.load_sessions() is None
        with pytest.raises(ReadFailed):
            store.entry(500)
        store = reopen(store)
    batches = filled(store, term=5)
    assert batches[0].first_index == 501 and batches[0].pos == pos
    store = reopen(store)
    assert read_all(store) == join(batches) and store.base == base
    store.purge_to(store.borders()[1])
    assert read_all(reopen(store)) == join(after(batches, store.base))


def test_a_reset_starts_a_generation(store: LogStore) -> None:
    filled(store)
    store.reset_to(Base(500, 4, 3 * SIZE, 77))
    assert store.generation == 1
    with pytest.raises(AssertionError):
        store.reset_to(Base(500, 4, 3 * SIZE + 1, 77))


def purged_log() -> tuple[SimDisk, list[Batch], Base]:
    disk, store = new_sim_store()
    batches = filled(store)
    base = store.borders()[3]
    store.purge_to(base)
    store.close()
    return disk, after(batches, base), base


def test_the_begin_survives_the_loss_of_one_of_its_two_copies() -> None:
    disk, kept, base = purged_log()
    for name in ("checkpoint", "base"):
        for how in ("gone", "flipped"):
            twin = disk.copy()
            if how == "gone":
                twin.unlink(ROOT / name)
            else:
                twin.flip(ROOT / name, 5)
            store = DiskLogStore.open(ROOT, disk=twin)
            assert store.base == base and read_all(store) == join(kept)
            assert store.damages == () and not store.hard_state.rejoining


def test_without_both_copies_of_its_begin_a_log_is_refused() -> None:
    disk, _, _ = purged_log()
    disk.unlink(ROOT / "checkpoint")
    disk.flip(ROOT / "base", 3)
    with pytest.raises(StorageError, match="the start of the log is lost") as error:
        DiskLogStore.open(ROOT, disk=disk)
    assert error.value.code is Code.DATA_DAMAGED


def test_a_purge_removes_files_of_data_and_index() -> None:
    disk, _, base = purged_log()
    starts = {p.parent.name: [] for p in disk.files() if p.parent != ROOT}  # type: dict[str, list[int]]
    for path in disk.files():
        if path.parent != ROOT:
            starts[path.parent.name].append(int(path.name))
    assert min(starts["data"]) == base.pos
    assert min(starts["index"]) == (base.index + 1) * 32 // 256 * 256


def test_a_purge_of_many_files_tells_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a leader's disk that removes for seconds is not taken for one that is stuck."""
    disk, store = new_sim_store()
    filled(store)
    told: list[int] = []
    unlinked = 0
    unlink = disk.unlink

    def counting(path: Path) -> None:
        nonlocal unlinked
        unlink(path)
        unlinked += 1

    monkeypatch.setattr(disk, "unlink", counting)
    store.on_synced = lambda: told.append(unlinked)
    store.purge_to(store.borders()[-1])
    assert unlinked > 3 and set(range(1, unlinked + 1)) <= set(told)
    store.close()


def test_a_read_that_a_purge_overtakes_names_the_new_begin() -> None:
    disk, store = new_sim_store()
    batches = filled(store)
    base = store.borders()[3]
    real_pread = disk.pread
    calls = 0

    def pread(handle: int, size: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:
            disk.pread = real_pread  # type: ignore[method-assign]
            store.purge_to(base)
        return real_pread(handle, size, offset)

    disk.pread = pread  # type: ignore[method-assign]
    with pytest.raises(ReadFailed, match=f"{base.index + 1}") as error:
        store.read(batches[1].first_index, batches[9].last_index, 10_000, whole_batches=True)
    assert error.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN
    assert not disk.exists(ROOT / "data" / file_name(0))
    assert read_all(store) == join(after(batches, base))


def test_rule_11_what_a_rejoining_node_must_know_survives(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    state = HardState(
        *(7, "n2", 4, True, 9, 6, 123),
        directories=(('a:"1", = %2C', 5), ("n1", (1 << 32) + 4), ("ü", 6)),
    )
    store.save_hard_state(state)
    store = reopen(store)
    assert store.hard_state == state
    store.save_hard_state(HardState(10, None, 5))
    assert reopen(store).hard_state == HardState(10, None, 5)


def test_a_currterm_without_the_later_keys_is_read() -> None:
    disk, store = new_sim_store()
    store.save_hard_state(HardState(7, "n2", 4))
    content = disk.content(ROOT / "currterm")
    assert b"rejoining" not in content
    assert read_hard_state(disk, ROOT / "currterm") == HardState(7, "n2", 4)


def purge_after_reads(store: DiskLogStore, base: Base, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before read `nth` of a data file from now on, counted from 0, the log is purged up to `base`."""
    read, reads = store._data.read, 0

    def purging(pos: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == nth + 1:
            store.purge_to(base)
        return read(pos, size)

    monkeypatch.setattr(store._data, "read", purging)


@pytest.mark.parametrize("nth", range(4))
def test_the_end_that_a_purge_leaves_is_found_while_it_is_looked_up(
    nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an entry before the purge, and the base after it."""
    _, store = new_sim_store()
    base = borders_of(filled(store))[3]
    purge_after_reads(store, base, nth, monkeypatch)
    for _ in range(4):
        tail = store.tail_at(base.index)  # its position is before the padding of the file, or behind it
        assert (tail.index, tail.term, tail.chain_crc) == (base.index, base.term, base.chain_crc)
    assert store.base == base


@pytest.mark.parametrize("nth", range(12))
def test_a_purge_in_the_middle_of_a_look_up_is_no_damage(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk thread purges while others read: after any of their reads of a file."""
    _, store = new_sim_store()
    batches = filled(store)
    base = borders_of(batches)[3]
    purge_after_reads(store, base, nth, monkeypatch)
    assert {*store.borders()} <= {*borders_of(batches)}
    with pytest.raises(ReadFailed):
        while True:  # the purge comes in the middle of one of these
            store.tail_at(base.index - 1)
    assert store.base == base
