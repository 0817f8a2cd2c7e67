"""Offline inspection: right about good, torn and damaged logs, and without any change."""

from __future__ import annotations

from pathlib import Path
from random import Random

from dledger.core.values import HardState
from dledger.infra.files.disk import Disk
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import decode_entries
from dledger.store.format.layout import file_name
from dledger.store.identity import init_directory
from dledger.store.offline.inspect import (
    DirectoryReport,
    OfflineLog,
    StoredEntry,
    inspect_directory,
    list_entries,
)
from dledger.store.scan import LogEndState
from dledger.testing.virtual.sim_disk import CrashKind
from tests.store.helpers import IDENTITY, ROOT, make_batches, new_sim_store


def test_a_running_servers_directory_is_reported_and_not_changed() -> None:
    disk, store = new_sim_store()
    batches = make_batches(12, seed=1)
    store.save_hard_state(HardState(4, "n2", 1))
    store.append(batches[:10])
    store.sync()
    store.append(batches[10:])
    operations = len(disk.operations)
    report = inspect_directory(ROOT, disk=disk)
    assert len(disk.operations) == operations
    assert report.identity == IDENTITY and report.hard_state == HardState(4, "n2", 1)
    assert (report.begin_index, report.end_index) == (0, batches[-1].last_index)
    assert report.entry_count == batches[-1].last_index + 1 and report.batch_count == 12
    assert report.unindexed_count == sum(batch.count for batch in batches[10:])
    assert report.verdict is LogEndState.CLEAN and report.problems == []
    assert [f.start for f in report.data_files] == sorted({b.pos - b.pos % 1024 for b in batches})
    entries = list(list_entries(ROOT, disk=disk))
    assert [e.index for e in entries] == list(range(report.entry_count))
    assert all(e.body_crc_ok and e.chain_crc_ok for e in entries)
    assert [e.index for e in list_entries(ROOT, 5, 9, disk=disk)] == [5, 6, 7, 8, 9]
    store.append(make_batches(1, tail=store.tail))


def test_a_directory_with_problems_is_damaged_though_its_log_ends_well() -> None:
    disk, store = new_sim_store()
    store.append(make_batches(3, seed=2))
    store.close()
    disk.flip(ROOT / "identity", 20)
    report = inspect_directory(ROOT, disk=disk)
    assert report.problems and report.verdict is LogEndState.DAMAGED
    assert "the directory has problems" in report.verdict_reason


def test_damage_is_named_and_entries_beyond_it_are_listed() -> None:
    disk, store = new_sim_store()
    batches = make_batches(8, seed=2)
    store.append(batches)
    store.close()
    bad = batches[3]
    disk.flip(ROOT / "data" / file_name(bad.pos - bad.pos % 1024), bad.pos % 1024 + 50)
    report = inspect_directory(ROOT, disk=disk)
    assert report.verdict is LogEndState.DAMAGED and report.end_index == batches[-1].last_index
    (damage,) = report.damages
    assert (damage.first_index, damage.last_index) == (bad.first_index, bad.last_index)
    assert f"entry {bad.first_index}," in report.verdict_reason
    entries = list(list_entries(ROOT, disk=disk))
    assert len(entries) == batches[-1].last_index + 1
    assert [e.index for e in entries if not e.body_crc_ok] == [bad.first_index]


def test_a_torn_end_is_told_from_damage() -> None:
    disk, store = new_sim_store()
    batches = make_batches(3, seed=2, max_body=60)
    store.append(batches[:2])
    store.sync()
    store.append(batches[2:])
    disk.crash(CrashKind.PROCESS, Random(0))
    disk.flip(ROOT / "data" / file_name(0), batches[2].end_pos - 1)
    report = inspect_directory(ROOT, disk=disk)
    assert report.verdict is LogEndState.TORN and report.end_index == batches[1].last_index


def read_all(disk: Disk) -> tuple[list[StoredEntry], DirectoryReport]:
    with OfflineLog(ROOT, disk=disk) as log:
        return list(log.entries()), log.report


def test_entries_are_read_as_they_were_stored() -> None:
    disk, store = new_sim_store()
    batches = make_batches(12, seed=1)
    store.append(batches)
    store.sync()
    store.save_checkpoint(batches[4].last_index, None)
    operations = len(disk.operations)
    entries, report = read_all(disk)
    assert len(disk.operations) == operations
    assert [entry.index for entry in entries] == list(range(batches[-1].last_index + 1))
    ends = {entry.index: (entry.term, entry.chain_crc) for entry in entries}
    assert [ends[b.last_index] for b in batches] == [(b.term, b.chain_crc) for b in batches]
    assert b"".join(entry.body for entry in entries) == b"".join(
        bytes(e.body) for batch in batches for e in decode_entries(batch.data)
    )
    assert {entry.index for entry in entries if entry.internal} == {
        batch.first_index for batch in batches if batch.head is not None
    }
    assert report.verdict is LogEndState.CLEAN and report.end_index == batches[-1].last_index
    assert report.checkpoint is not None and report.checkpoint.committed_index == batches[4].last_index


def test_damaged_batches_are_passed_over_and_named() -> None:
    disk, store = new_sim_store()
    batches = make_batches(8, seed=2)
    store.append(batches)
    store.close()
    bad = batches[3]
    disk.flip(ROOT / "data" / file_name(bad.pos - bad.pos % 1024), bad.pos % 1024 + 50)
    entries, report = read_all(disk)
    missing = set(range(batches[-1].last_index + 1)) - {entry.index for entry in entries}
    assert missing == set(range(bad.first_index, bad.last_index + 1))
    assert [(d.first_index, d.last_index) for d in report.damages] == [(bad.first_index, bad.last_index)]
    assert report.verdict is LogEndState.DAMAGED


def test_a_torn_end_is_left_out() -> None:
    disk, store = new_sim_store()
    batches = make_batches(3, seed=2, max_body=60)
    store.append(batches[:2])
    store.sync()
    store.append(batches[2:])
    disk.crash(CrashKind.PROCESS, Random(0))
    disk.flip(ROOT / "data" / file_name(0), batches[2].end_pos - 1)
    entries, report = read_all(disk)
    assert entries[-1].index == batches[1].last_index and report.verdict is LogEndState.TORN


def test_nothing_is_an_answer_too(tmp_path: Path) -> None:
    with OfflineLog(tmp_path / "absent") as log:
        assert list(log.entries()) == [] and log.report.problems
    report = inspect_directory(tmp_path / "absent")
    assert report.identity is None and report.entry_count == 0 and report.problems


def test_a_damaged_vote_is_named(tmp_path: Path) -> None:
    init_directory(tmp_path / "n0", IDENTITY)
    DiskLogStore.open(tmp_path / "n0").close()
    (tmp_path / "n0" / "currterm").write_bytes(b"currTerm=7\nvoteLeader=\nincarnation=1\ncrc=00000000\n")
    report = inspect_directory(tmp_path / "n0")
    assert report.hard_state is None and any("currterm" in problem for problem in report.problems)


def test_base_prepared_files_damages_and_a_rejoining_node_are_shown() -> None:
    disk, store = new_sim_store()
    batches = make_batches(20, seed=2)
    store.append(batches)
    store.sync()
    base = store.borders()[1]
    store.purge_to(base)
    store.prepare(3 * 1024)
    store.save_hard_state(HardState(4, None, 1, rejoining=True, floor_term=3, floor_index=9))
    bad = next(b for b in batches if b.first_index > base.index)
    disk.flip(ROOT / "data" / file_name(bad.pos), 50)
    assert store.note_damage(bad.first_index) is not None
    report = inspect_directory(ROOT, disk=disk)
    assert report.base == base and report.begin_index == base.index + 1
    assert report.end_index == batches[-1].last_index and not report.resetting
    assert report.hard_state is not None and report.hard_state.rejoining
    assert [d.first_index for d in report.damages] == [bad.first_index]
    assert report.noted_damages == list(store.damages)
    assert len(report.prepared_files) >= 2
    assert report.problems == []
    disk.unlink(ROOT / "base")
    disk.unlink(ROOT / "checkpoint")
    report = inspect_directory(ROOT, disk=disk)
    assert report.base is None and any("the start of the log is lost" in p for p in report.problems)
