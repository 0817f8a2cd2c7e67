"""The disk that checks the order of operations: each wrong order is noticed when it happens."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from dledger.infra.files.disk import CrashKind
from dledger.store import state_files
from dledger.store.disk_store import DiskLogStore
from dledger.store.files import FileSequence
from dledger.store.format.layout import INDEX_RECORD_SIZE, index_file_size
from dledger.testing.virtual.sim_disk import SimDisk
from dledger.testing.virtual.violation import Violation
from tests.store.helpers import ROOT, make_batches, new_sim_store

Misdeed = Callable[[SimDisk, DiskLogStore, pytest.MonkeyPatch], None]


def record_before_its_entry(disk: SimDisk, store: DiskLogStore, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store._data, "sync", lambda: None)
    store.sync()


def checkpoint_before_the_index(disk: SimDisk, store: DiskLogStore, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store._index, "sync", lambda: None)
    store.sync()
    store.save_checkpoint(store.end_index, None)


def sessions_before_their_entries(disk: SimDisk, store: DiskLogStore, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "sync", lambda: None)
    store.save_checkpoint(store.end_index, (store.end_index, b"table"))


def vote_that_is_not_durable(disk: SimDisk, store: DiskLogStore, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "fdatasync", lambda handle: None)
    state_files.write_hard_state(disk, store._paths.hard_state, store.hard_state)


def entries_cut_before_their_records(disk: SimDisk, store: DiskLogStore, patch: pytest.MonkeyPatch) -> None:
    store.sync()
    store.save_checkpoint(store.end_index, None)
    patch.setattr(store._index, "cut", lambda pos: None)
    store.truncate_after(-1)


def files_purged_before_the_base(disk: SimDisk, store: DiskLogStore, patch: pytest.MonkeyPatch) -> None:
    store.sync()
    store._data.remove_below(2048)


def reset_before_it_is_noted(disk: SimDisk, store: DiskLogStore, patch: pytest.MonkeyPatch) -> None:
    store.sync()
    store._index.remove_all()
    store._data.remove_all()


@pytest.mark.parametrize(
    "misdeed",
    [
        record_before_its_entry,
        checkpoint_before_the_index,
        sessions_before_their_entries,
        vote_that_is_not_durable,
        entries_cut_before_their_records,
        files_purged_before_the_base,
        reset_before_it_is_noted,
    ],
)
def test_a_wrong_order_is_noticed(misdeed: Misdeed, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, store = new_sim_store()
    store.append(make_batches(20))
    with pytest.raises(Violation, match="write order"):
        misdeed(disk, store, monkeypatch)


def test_files_of_a_log_that_was_cut_properly_may_go() -> None:
    _, store = new_sim_store()
    batches = make_batches(20)
    store.append(batches)
    store.sync()
    store.save_checkpoint(store.end_index, None)
    store.truncate_after(batches[3].last_index)
    borders = store.borders()
    store.append(make_batches(20, tail=store.tail))
    store.sync()
    assert isinstance(store._data, FileSequence) and len(store.borders()) > len(borders)
    store.purge_to(store.borders()[-1])
    store.reset_to(store.base._replace(index=900, pos=1024 * 50))


def test_record_that_was_written_anew_is_durable_before_the_next_life_counts_on_it() -> None:
    disk, store = new_sim_store()
    batches = make_batches(20)
    store.append(batches)
    store.sync()
    store.save_checkpoint(store.end_index, None)
    record = batches[3].last_index * INDEX_RECORD_SIZE
    offset = record % index_file_size(store.data_file_size)
    is_wrong = disk.flip_durable(store._index.path_of(record - offset), offset + 5, 1)
    assert is_wrong is not None and is_wrong()
    assert store.note_damage(batches[3].first_index) is None, "its entry is good: the record is made anew"
    disk.crash(CrashKind.PROCESS, Random(1))
    again = DiskLogStore.open(ROOT, disk=disk)
    again.save_checkpoint(again.end_index, None)
    assert not is_wrong()
