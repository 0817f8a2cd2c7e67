"""What opening a log makes of cut, torn, flipped and missing bytes (docs/guarantees.md rule 10)."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from dledger.core.values import EMPTY_TAIL, ENTRY_HEADER_SIZE
from dledger.errors import Code, StorageError
from dledger.store.api import Frames
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.format.layout import file_name, index_file_size
from dledger.testing.virtual.sim_disk import SECTOR, CrashKind, SimDisk
from tests.conftest import SIXTHS
from tests.store.helpers import ROOT, SIZE, join, make_batches, new_sim_store, read_all

DATA, INDEX = ROOT / "data", ROOT / "index"
INDEX_SIZE = index_file_size(SIZE)


def written_log(count: int = 8, *, seed: int = 3, checkpoint: bool = True) -> tuple[SimDisk, list[Batch]]:
    """A log of several files, synced, its process killed; with the last checkpoint as rolling left it."""
    disk, store = new_sim_store()
    batches = make_batches(count, seed=seed)
    for batch in batches:
        store.append([batch])
        store.sync()
    if not checkpoint and disk.exists(ROOT / "checkpoint"):
        disk.lose(ROOT / "checkpoint")
    disk.crash(CrashKind.PROCESS, Random(0))
    return disk, batches


def forget_index(disk: SimDisk, from_index: int) -> None:
    """Take away index records, as a power loss may: they are not synced with their entries."""
    for number, path in enumerate(p for p in disk.files() if p.parent == INDEX):
        content = bytearray(disk.content(path))
        begin = max(from_index * 32 - number * INDEX_SIZE, 0)
        content[begin:] = bytes(len(content[begin:]))
        disk.set_content(path, bytes(content))


@pytest.mark.slow
def test_rule_10_a_log_cut_at_any_byte_keeps_the_whole_batches_before_the_cut() -> None:
    disk, batches = written_log(checkpoint=False)
    forget_index(disk, 0)
    end = batches[-1].end_pos
    for cut in range(end):
        twin = disk.copy()
        for path in [p for p in twin.files() if p.parent == DATA]:
            start = int(path.name)
            if start >= cut and start:
                twin.unlink(path)
            elif start + SIZE > cut:
                content = twin.content(path)
                twin.set_content(path, content[: cut - start] + bytes(SIZE - max(cut - start, 0)))
        store = DiskLogStore.open(ROOT, disk=twin)
        kept = [batch for batch in batches if batch.end_pos <= cut]
        assert read_all(store) == join(kept), f"cut at {cut}"


def test_rule_10_a_cut_below_an_index_record_is_damage() -> None:
    disk, batches = written_log(checkpoint=False)
    last = batches[-1]
    path = DATA / file_name(last.pos - last.pos % SIZE)
    for cut in range(last.pos, last.end_pos - 1):
        twin = disk.copy()
        content = twin.content(path)
        offset = cut - int(path.name)
        if not content[offset : last.end_pos - int(path.name)].strip(b"\0"):
            continue
        twin.set_content(path, content[:offset] + bytes(SIZE - offset))
        store = DiskLogStore.open(ROOT, disk=twin)
        check_lost_end(store, batches[:-1], last)


def check_lost_end(store: DiskLogStore, kept: list[Batch], last: Batch) -> None:
    """The log was cut, loudly, and the node knows for ever how far it went."""
    assert read_all(store) == join(kept) and store.damages == ()
    state = store.hard_state
    assert state.rejoining and (state.floor_term, state.floor_index) == (last.term, last.last_index)
    assert any("END OF THE LOG IS DAMAGED" in repair for repair in store.repairs)
    store.close()
    again = DiskLogStore.open(ROOT, disk=store._disk)
    assert (
        again.hard_state == state
        and again.end_index == (kept[-1].last_index if kept else -1)
        and again.repairs == ()
    )


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "no checkpoint"])
@pytest.mark.parametrize("first", SIXTHS)
def test_rule_10_no_flipped_byte_loses_an_acknowledged_entry_in_silence(first: int, checkpoint: bool) -> None:
    disk, batches = written_log(6, checkpoint=checkpoint)
    outcomes = {"intact": 0, "refused": 0, "repaired": 0, "end lost": 0}
    for path in disk.files():
        if path.name in ("lock", "DO-NOT-OPEN-WITH-ORIGINAL-DLEDGER.txt"):
            continue
        for offset in range(first, len(disk.content(path)), len(SIXTHS)):
            twin = disk.copy()
            twin.flip(path, offset, 1 << (offset % 8))
            where = f"{path} {offset}"
            try:
                store = DiskLogStore.open(ROOT, disk=twin)
            except StorageError as error:
                assert path.name in ("currterm", "identity"), where
                assert error.code in (Code.STATE_DAMAGED, Code.FOREIGN_DIRECTORY), where
                outcomes["refused"] += 1
                continue
            outcomes[heal(store, batches, where)] += 1
    assert all(outcomes.values()), outcomes


def heal(store: DiskLogStore, batches: list[Batch], where: str) -> str:
    """Do what a node does with an intact peer beside it. Says what it took."""
    outcome = "intact"
    if store.end_index < batches[-1].last_index:
        state = store.hard_state
        floor = (batches[-1].term, batches[-1].last_index)
        assert state.rejoining and (state.floor_term, state.floor_index) == floor, where
        store.append([batch for batch in batches if batch.first_index > store.end_index])
        store.sync()
        outcome = "end lost"
    index = 0
    for _ in range(20):  # more than there are batches: the scrub comes to an end
        step = store.scrub(index, 300)
        if step.damage is not None:
            store.note_damage(step.damage.first_index)
        index = step.next_index
        if index == 0:
            break
    assert index == 0, where
    for damage in store.damages:
        with pytest.raises(StorageError, match="damaged"):
            store.read(damage.first_index, damage.last_index, 100, whole_batches=False)
        peers = [b for b in batches if damage.first_index <= b.first_index <= damage.last_index]
        assert len(peers) <= 2, where
        store.repair(Frames(damage.first_index, damage.last_index, join(peers)))
        outcome = "repaired"
    assert store.damages == () and read_all(store) == join(batches), where
    assert store.tail == batches[-1].tail == store.tail_at(batches[-1].last_index), where
    store.close()
    again = DiskLogStore.open(ROOT, disk=store._disk)
    assert read_all(again) == join(batches) and again.repairs == (), where
    return outcome


def test_rule_10_a_flip_in_what_was_never_indexed_is_cut_only_at_the_end() -> None:
    disk, store = new_sim_store()
    batches = make_batches(3, seed=9, max_body=40)
    store.append(batches[:1])
    store.sync()
    store.append(batches[1:])
    disk.crash(CrashKind.PROCESS, Random(0))
    twin = disk.copy()
    twin.flip(DATA / file_name(0), batches[2].end_pos - 1)
    assert read_all(DiskLogStore.open(ROOT, disk=twin)) == join(batches[:2])
    disk.flip(DATA / file_name(0), batches[1].pos + 50)
    store = DiskLogStore.open(ROOT, disk=disk)
    (damage,) = store.damages
    assert "a valid entry follows" in damage.reason
    assert (damage.first_index, damage.last_index) == (batches[1].first_index, batches[1].last_index)
    assert store.end_index == batches[2].last_index and not store.hard_state.rejoining


def test_rule_10_a_lost_sector_among_unsynced_writes_is_torn_and_not_damaged() -> None:
    disk, store = new_sim_store()
    first = encode_batch(EMPTY_TAIL, 1, [b"a" * 100], data_file_size=SIZE)
    lost = encode_batch(first.tail, 1, [b"b" * 340], data_file_size=SIZE)
    kept = encode_batch(lost.tail, 1, [b"c" * 100], data_file_size=SIZE)
    assert lost.pos < 512 <= kept.pos
    store.append([first])
    store.sync()
    store.append([lost, kept])
    disk.crash(CrashKind.PROCESS, Random(0))
    content = disk.content(DATA / file_name(0))
    zeroed = content[: lost.pos] + bytes(512 - lost.pos) + content[512:]
    disk.set_content(DATA / file_name(0), zeroed)
    store = DiskLogStore.open(ROOT, disk=disk)
    assert read_all(store) == bytes(first.data)
    assert any("torn" in repair for repair in store.repairs)
    # Nothing of the batch that was kept may come to life again behind an equal one.
    store.append([lost])
    store.sync()
    disk.crash(CrashKind.PROCESS, Random(0))
    assert read_all(DiskLogStore.open(ROOT, disk=disk)) == join([first, lost])


def test_a_truncated_entry_never_comes_back() -> None:
    disk, store = new_sim_store()
    batches = make_batches(12, seed=5)
    store.append(batches)
    store.sync()
    store.truncate_after(batches[3].last_index)
    store.append([batches[4]])
    store.sync()
    for path in [p for p in disk.files() if p.parent == INDEX]:
        disk.lose(path)
    disk.lose(ROOT / "checkpoint")
    disk.crash(CrashKind.PROCESS, Random(0))
    assert read_all(DiskLogStore.open(ROOT, disk=disk)) == join(batches[:5])


@pytest.mark.parametrize("name", ["index", "checkpoint", "both"])
def test_index_and_checkpoint_are_rebuilt_from_the_log(name: str) -> None:
    disk, batches = written_log(20)
    if name in ("index", "both"):
        for path in [p for p in disk.files() if p.parent == INDEX]:
            disk.lose(path)
    if name in ("checkpoint", "both"):
        disk.set_content(ROOT / "checkpoint", b"endIndex=5\nnonsense=1\n")
    store = DiskLogStore.open(ROOT, disk=disk)
    assert read_all(store) == join(batches)
    assert store.repairs
    assert [run.term for run in store.term_runs] == sorted({batch.term for batch in batches})
    store.close()
    assert DiskLogStore.open(ROOT, disk=disk).repairs == ()


def test_recovery_starts_at_the_checkpoint() -> None:
    """Damage below the checkpoint does not stop the start, and is found by the read that meets it."""
    disk, batches = written_log(20)
    disk.flip(DATA / file_name(0), batches[0].pos + 50)
    store = DiskLogStore.open(ROOT, disk=disk)
    assert store.tail == batches[-1].tail
    with pytest.raises(StorageError, match=r"entry 0, file /node/data/0+, offset 0: ") as error:
        store.read(0, 0, 100, whole_batches=False)
    assert error.value.code is Code.DATA_DAMAGED
    assert store.read(batches[1].first_index, 5, 100, whole_batches=False).data


def test_a_missing_blank_is_written_again() -> None:
    disk, batches = written_log(checkpoint=False)
    rolled = next(b for a, b in pairwise(batches) if a.end_pos != b.pos)
    before = batches[batches.index(rolled) - 1]
    disk.flip(DATA / file_name(0), before.end_pos + 7, 0x10)
    store = DiskLogStore.open(ROOT, disk=disk)
    assert read_all(store) == join(batches)
    assert disk.content(DATA / file_name(0))[before.end_pos :][:4] == b"\xff\xff\xff\xff"
    assert any("blank" in repair for repair in store.repairs)


@pytest.mark.parametrize("last", [True, False], ids=["last", "not last"])
def test_only_the_last_file_may_be_short(last: bool) -> None:
    disk, batches = written_log(12, checkpoint=False)
    files = [p for p in disk.files() if p.parent == DATA]
    path = files[-1] if last else files[0]
    used = batches[-1].end_pos - int(path.name) if last else SIZE - 20
    disk.set_content(path, disk.content(path)[:used])
    if last:
        store = DiskLogStore.open(ROOT, disk=disk)
        assert read_all(store) == join(batches)
        assert len(disk.content(path)) == SIZE
    else:
        # Only the blank's zeros were cut off: the scan finds that nothing is missing.
        store = DiskLogStore.open(ROOT, disk=disk)
        assert read_all(store) == join(batches) and store.damages == ()
        assert any("1004 bytes" in repair for repair in store.repairs)


def test_a_missing_data_file_is_damage() -> None:
    disk, batches = written_log(20)
    files = [p for p in disk.files() if p.parent == DATA]
    for path in files[:-1]:
        twin = disk.copy()
        twin.unlink(path)
        store = DiskLogStore.open(ROOT, disk=twin)
        (damage,) = store.damages
        lost = [b for b in batches if b.pos - b.pos % SIZE == int(path.name)]
        assert damage.first_index == lost[0].first_index and damage.last_index >= lost[-1].last_index
        assert any("MISSING" in repair for repair in store.repairs)
        assert store.tail == batches[-1].tail and not store.hard_state.rejoining
        peers = [b for b in batches if damage.first_index <= b.first_index <= damage.last_index]
        store.repair(Frames(damage.first_index, damage.last_index, join(peers)))
        assert read_all(store) == join(batches)
        for data_file in files:
            assert twin.content(data_file) == disk.content(data_file)
    twin = disk.copy()
    twin.unlink(files[-1])
    kept = [batch for batch in batches if batch.pos < int(files[-1].name)]
    check_lost_end(DiskLogStore.open(ROOT, disk=twin), kept, batches[-1])


def test_a_log_that_ends_below_its_checkpoint_is_damaged() -> None:
    disk, batches = written_log(6)
    store = DiskLogStore.open(ROOT, disk=disk)
    store.close()
    forget_index(disk, 0)
    content = disk.content(DATA / file_name(0))
    disk.set_content(DATA / file_name(0), bytes(len(content)))
    for path in [p for p in disk.files() if p.parent == DATA][1:]:
        disk.lose(path)
    store = DiskLogStore.open(ROOT, disk=disk)
    assert any(f"checkpoint covers index {batches[-1].last_index}" in repair for repair in store.repairs)
    check_lost_end(store, [], batches[-1])


def test_rule_1_what_the_page_cache_held_is_durable_after_opening() -> None:
    disk, store = new_sim_store()
    batches = make_batches(10, seed=8)
    store.append(batches)
    disk.crash(CrashKind.PROCESS, Random(0))
    store = DiskLogStore.open(ROOT, disk=disk)
    assert store.durable_index == batches[-1].last_index
    disk.crash(CrashKind.POWER, Random(1))
    assert read_all(DiskLogStore.open(ROOT, disk=disk)) == join(batches)


def test_index_records_as_an_original_leader_writes_them_are_corrected() -> None:
    disk, store = new_sim_store()
    store.append([encode_batch(EMPTY_TAIL, 1, [b"x"], data_file_size=SIZE, head=b"")])
    store.sync()
    disk.crash(CrashKind.PROCESS, Random(0))
    disk.flip(INDEX / file_name(0), 3, 3)  # INTERNAL becomes NORMAL
    store = DiskLogStore.open(ROOT, disk=disk)
    assert [head.first_index for head in store.iter_heads(0)] == [0]


def test_a_foreign_file_among_the_data_is_refused() -> None:
    disk, _ = written_log(3)
    disk.set_content(DATA / "notes.txt", b"hello")
    with pytest.raises(StorageError) as error:
        DiskLogStore.open(ROOT, disk=disk)
    assert error.value.code is Code.FOREIGN_DIRECTORY


@pytest.mark.parametrize("seed", range(20))
def test_a_session_table_never_outlives_the_entries_that_it_was_made_of(seed: int) -> None:
    """With ASYNC_FLUSH a commit may come before the fdatasync, and so may a checkpoint."""
    disk, store = new_sim_store()
    batches = make_batches(6, seed=2)
    store.append(batches[:3])
    store.sync()
    store.append(batches[3:])
    store.save_checkpoint(batches[-1].last_index, (batches[-1].last_index, b"table"))
    disk.crash(CrashKind.POWER, Random(seed))
    store = DiskLogStore.open(ROOT, disk=disk)
    stored = store.load_sessions()
    assert stored == (batches[-1].last_index, b"table") and read_all(store) == join(batches)


@pytest.mark.parametrize("in_first_sector", range(1, 8))
def test_an_entry_whose_first_zeros_are_in_a_lost_sector_is_no_proof_that_it_was_durable(
    in_first_sector: int,
) -> None:
    """A power loss took the sector with the batch before it, and kept the next one. The magic starts with
    three zeros: of an entry that starts so close to the border nothing is missing."""
    disk, store = new_sim_store()
    first = encode_batch(store.tail, 1, [bytes(52)], data_file_size=SIZE)
    room = SECTOR - in_first_sector - first.end_pos - ENTRY_HEADER_SIZE
    lost = encode_batch(first.tail, 1, [b"x" * room], data_file_size=SIZE)
    kept = encode_batch(lost.tail, 1, [b"y" * 100], data_file_size=SIZE)
    assert kept.pos == SECTOR - in_first_sector
    store.append([first])
    store.sync()
    store.close()
    path = ROOT / "data" / file_name(0)
    content = bytearray(disk.content(path))
    content[SECTOR : kept.end_pos] = bytes(kept.data)[in_first_sector:]
    disk.set_content(path, bytes(content))
    store = DiskLogStore.open(ROOT, disk=disk)
    assert store.tail == first.tail and not store.hard_state.rejoining and not store.damages
    assert read_all(store) == join([first])
