"""What every log store does: the same tests for the one in memory and the one on disk, simulated and real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dledger.core.values import EMPTY_TAIL, NO_BASE, HardState, TermRun
from dledger.errors import Code, ReadFailed, StorageError
from dledger.infra.files.disk import Disk
from dledger.store.api import LogStore
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, encode_batch, parse_batches
from dledger.store.identity import init_directory
from dledger.testing.memory_store import MemoryLogStore
from dledger.testing.stores import OrderedDisk
from dledger.testing.virtual.sim_disk import CrashKind
from tests.store.helpers import IDENTITY, SIZE, join, make_batches, read_all

Reopen = Callable[[LogStore], LogStore]


@pytest.fixture(params=["memory", "sim", "os"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LogStore, Reopen]:
    """A fresh store, and how to close it and open it again."""
    if request.param == "memory":

        def restart(store: LogStore) -> LogStore:
            assert isinstance(store, MemoryLogStore)
            store.close()
            return store.crash(CrashKind.POWER, Random(0))

        return MemoryLogStore(IDENTITY), restart
    disk: Disk | None = OrderedDisk(Path("/n0"), SIZE) if request.param == "sim" else None
    root = tmp_path / "n0"
    if request.param == "sim":
        root = Path("/n0")
    init_directory(root, IDENTITY, disk=disk)

    def reopen(store: LogStore) -> LogStore:
        store.close()
        return DiskLogStore.open(root, disk=disk)

    return DiskLogStore.open(root, disk=disk), reopen


@pytest.fixture
def store(opened: tuple[LogStore, Reopen]) -> LogStore:
    return opened[0]


def filled(store: LogStore, count: int = 20, seed: int = 7) -> list[Batch]:
    batches = make_batches(count, seed=seed, tail=store.tail)
    store.append(batches)
    store.sync()
    return batches


def test_a_fresh_store_is_empty(store: LogStore) -> None:
    assert (store.base, store.tail, store.begin_index) == (NO_BASE, EMPTY_TAIL, 0)
    assert (store.end_index, store.durable_index, store.committed_checkpoint) == (-1, -1, -1)
    assert (store.hard_state, store.term_runs, store.generation) == (HardState(), [], 0)
    assert store.load_sessions() is None
    assert store.tail_at(-1) == EMPTY_TAIL
    assert list(store.iter_heads(0)) == []
    assert store.identity == IDENTITY and store.data_file_size == SIZE
    assert store.free_bytes() > 0
    assert store.sync() == -1
    with pytest.raises(ReadFailed, match="empty log"):
        store.read(0, 0, 100, whole_batches=False)


def test_written_is_not_durable_before_sync_but_readable(store: LogStore) -> None:
    batches = make_batches(6, seed=1)
    store.append(batches[:3])
    assert store.durable_index == -1 and store.end_index == batches[2].last_index
    assert store.sync() == batches[2].last_index == store.durable_index
    store.append(batches[3:])
    assert store.durable_index == batches[2].last_index
    assert read_all(store) == join(batches)
    assert store.tail == batches[-1].tail
    assert store.tail_at(batches[4].last_index) == batches[4].tail


def test_every_entry_is_found_by_its_index(store: LogStore) -> None:
    batches = filled(store)
    for batch in batches:
        pos = batch.pos
        for index in range(batch.first_index, batch.last_index + 1):
            entry = store.entry(index)
            assert (entry.index, entry.term, entry.pos) == (index, batch.term, pos)
            assert entry.channel == batch.last_index - index
            pos += entry.size
        assert entry.tail == batch.tail == store.tail_at(batch.last_index)


def test_a_read_returns_what_fits_and_at_least_one_entry(store: LogStore) -> None:
    filled(store)
    whole = read_all(store)
    for first in range(store.end_index + 1):
        start = len(join_entries(store, 0, first))
        for max_bytes in (0, 100, 333, 5000):
            frames = store.read(first, store.end_index, max_bytes, whole_batches=False)
            assert whole[start:].startswith(frames.data)
            assert len(frames.data) <= max_bytes or frames.last_index == first
            last = store.entry(frames.last_index)
            assert last.pos + last.size - store.entry(first).pos == len(frames.data)


def join_entries(store: LogStore, first: int, end: int) -> bytes:
    return b"".join(store.read(i, i, 0, whole_batches=False).data for i in range(first, end))


def test_a_read_of_whole_batches_returns_whole_batches(store: LogStore) -> None:
    batches = filled(store)
    for at, batch in enumerate(batches):
        for max_bytes in (0, 300, 900, 5000):
            frames = store.read(batch.first_index, store.end_index, max_bytes, whole_batches=True)
            tail = batches[at - 1].tail if at else EMPTY_TAIL
            parsed = parse_batches(frames.data, tail, data_file_size=SIZE)
            assert parsed[-1].last_index == frames.last_index
            assert len(parsed) == 1 or len(frames.data) <= max_bytes
        frames = store.read(batch.first_index, batch.first_index, 5000, whole_batches=True)
        assert frames.last_index == batch.last_index


def test_a_read_ends_at_last_index(store: LogStore) -> None:
    filled(store)
    assert store.read(3, 5, 10_000, whole_batches=False).last_index <= 5
    assert store.read(4, 4, 10_000, whole_batches=False).last_index == 4
    assert store.read(store.end_index, 1 << 60, 0, whole_batches=False).last_index == store.end_index


def test_reads_out_of_range_name_the_range(store: LogStore) -> None:
    filled(store)
    with pytest.raises(ReadFailed, match=rf"0\.\.{store.end_index}") as error:
        store.read(store.end_index + 1, store.end_index + 1, 100, whole_batches=False)
    assert error.value.code is Code.INDEX_OUT_OF_RANGE
    with pytest.raises(ReadFailed) as error:
        store.entry(-1)
    assert error.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN


def test_truncation_ends_the_log_at_a_batch(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = filled(store)
    store.save_checkpoint(batches[5].last_index, None)
    store.truncate_after(batches[12].last_index)
    assert store.tail == batches[12].tail and store.durable_index == batches[12].last_index
    assert store.generation == 1
    assert store.committed_checkpoint == batches[5].last_index
    store.truncate_after(batches[12].last_index)
    assert store.generation == 1, "nothing was truncated"
    assert read_all(store) == join(batches[:13])
    store = reopen(store)
    assert store.tail == batches[12].tail
    assert store.term_runs == runs_of(batches[:13])
    more = filled(store, seed=8)
    assert read_all(reopen(store)) == join(batches[:13] + more)


def test_truncation_of_written_and_unsynced_batches(store: LogStore) -> None:
    batches = make_batches(10, seed=2)
    store.append(batches[:4])
    store.sync()
    store.append(batches[4:])
    store.truncate_after(batches[6].last_index)
    assert store.durable_index == batches[3].last_index
    assert store.sync() == batches[6].last_index
    assert read_all(store) == join(batches[:7])
    store.truncate_after(-1)
    assert store.tail == EMPTY_TAIL and store.term_runs == []
    assert read_all_after(store) == join(batches[:2])


def read_all_after(store: LogStore) -> bytes:
    store.append(make_batches(10, seed=2)[:2])
    return read_all(store)


def test_rule_8_only_ends_of_batches_are_truncation_points(store: LogStore) -> None:
    batch = encode_batch(EMPTY_TAIL, 1, [b"a", b"b"], data_file_size=SIZE)
    store.append([batch])
    with pytest.raises(AssertionError, match="does not end a batch"):
        store.truncate_after(0)


def test_an_append_that_does_not_follow_the_tail_is_a_bug(store: LogStore) -> None:
    batches = filled(store)
    with pytest.raises(AssertionError):
        store.append([batches[3]])


def runs_of(batches: list[Batch]) -> list[TermRun]:
    runs: list[TermRun] = []
    for batch in batches:
        if not runs or runs[-1].term != batch.term:
            runs.append(TermRun(batch.term, batch.first_index))
    return runs


def test_term_runs_cover_the_whole_log(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = filled(store, 30)
    assert len(store.term_runs) > 3 and store.term_runs == runs_of(batches)
    store = reopen(store)
    batches += filled(store, 10, seed=9)
    assert store.term_runs == runs_of(batches) == reopen(store).term_runs


def test_heads_are_the_batches_that_begin_with_an_internal_entry(store: LogStore) -> None:
    batches = make_batches(20, seed=4)
    store.append(batches[:15])
    store.sync()
    store.append(batches[15:])
    for from_index in (0, 1, batches[7].first_index, batches[16].last_index, store.end_index + 1):
        expected = [
            (b.first_index, b.last_index, b.term, b.pos, b.head)
            for b in batches
            if b.head is not None and b.first_index >= from_index
        ]
        assert list(store.iter_heads(from_index)) == expected


def test_heads_carry_the_body_of_the_first_entry(store: LogStore) -> None:
    store.append([encode_batch(EMPTY_TAIL, 1, [b"x"], data_file_size=SIZE, head=b"SO...")])
    assert [head.head for head in store.iter_heads(0)] == [b"SO..."]


def test_rule_2_term_vote_and_incarnation_survive(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    for state in (HardState(3, "n1", 1), HardState(3, "n1", 2), HardState(4, None, 2)):
        store.save_hard_state(state)
        assert store.hard_state == state
        store = reopen(store)
        assert store.hard_state == state
    with pytest.raises(AssertionError):
        store.save_hard_state(HardState(3, None, 2))


def test_rule_8_the_checkpoint_never_holds_more_than_is_durable(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = make_batches(6, seed=5)
    store.append(batches[:3])
    store.sync()
    store.append(batches[3:])
    store.save_checkpoint(batches[5].last_index, (batches[1].last_index, b"table"))
    assert store.committed_checkpoint == batches[2].last_index
    assert store.load_sessions() == (batches[1].last_index, b"table")
    store = reopen(store)
    assert store.committed_checkpoint == batches[2].last_index
    assert store.load_sessions() == (batches[1].last_index, b"table")
    store.truncate_after(batches[0].last_index)
    assert store.committed_checkpoint == batches[0].last_index
    assert store.load_sessions() is None, "a table above the end of the log is of no use"


def test_a_closed_store_opens_as_it_was(opened: tuple[LogStore, Reopen]) -> None:
    store, reopen = opened
    batches = filled(store, 25)
    store = reopen(store)
    assert read_all(store) == join(batches) and store.tail == batches[-1].tail
    store.close()
    store.close()


def test_a_power_loss_of_the_store_in_memory_keeps_a_prefix_of_batches() -> None:
    batches = make_batches(10, seed=6)
    ends = set()
    for seed in range(40):
        store = MemoryLogStore(IDENTITY)
        store.append(batches[:4])
        store.sync()
        store.append(batches[4:])
        after = store.crash(CrashKind.POWER, Random(seed))
        ends.add(after.end_index)
        assert join(batches).startswith(read_all(after)) and after.durable_index == after.end_index
    assert ends == {batch.last_index for batch in batches[3:]}
    assert store.crash(CrashKind.PROCESS, Random(0)).end_index == batches[-1].last_index


def test_rule_9_a_full_store_in_memory_refuses_and_changes_nothing() -> None:
    store = MemoryLogStore(IDENTITY, capacity=2000)
    with pytest.raises(StorageError) as error:
        store.append(make_batches(20))
    assert error.value.code is Code.DISK_FULL and store.end_index == -1
