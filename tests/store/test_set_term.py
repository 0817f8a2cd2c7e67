"""An absurd term can be lowered while all nodes are stopped, never to that of a stored entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dledger.core.values import MAX_INCARNATION, MAX_TERM, HardState
from dledger.errors import Code, InvalidRequest, StorageError
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import encode_batch
from dledger.store.identity import Identity, init_directory
from dledger.store.offline.set_term import check_range, report_term, set_term

BOMB = 2**63 - 1


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A node with an entry of term 7, whose term was bombed."""
    path = tmp_path / "n1"
    init_directory(path, Identity("c", "g", "n1", 1 << 16), incarnation=3)
    store = DiskLogStore.open(path)
    store.save_hard_state(HardState(7, "n1", 3))
    store.append([encode_batch(store.tail, 7, [b"x"], data_file_size=1 << 16)])
    store.sync()
    store.save_hard_state(HardState(BOMB, "n2", 3))
    store.close()
    return path


def state_of(path: Path) -> HardState:
    store = DiskLogStore.open(path)
    try:
        return store.hard_state
    finally:
        store.close()


def test_the_report_names_the_least_term_and_changes_nothing(directory: Path) -> None:
    found = report_term(directory)
    assert (found.term, found.voted_for, found.last_term, found.least) == (BOMB, "n2", 7, 8)
    assert state_of(directory) == HardState(BOMB, "n2", 3)


def test_lowering_forgets_the_vote_and_nothing_else(directory: Path) -> None:
    set_term(directory, 9)
    assert state_of(directory) == HardState(9, None, 3)
    set_term(directory, 9)  # repeated: after a crash nobody knows how far it got
    assert state_of(directory) == HardState(9, None, 3)
    check_range(state_of(directory), directory)


def test_raising_is_adopting_a_later_term(directory: Path) -> None:
    """Of a node whose cluster is further ahead than it believes its peers."""
    set_term(directory, 9)
    set_term(directory, 2**40)
    assert state_of(directory) == HardState(2**40, None, 3)


@pytest.mark.parametrize("to", [1, 7, BOMB, MAX_TERM + 1])
def test_never_to_the_term_of_an_entry_nor_out_of_range(directory: Path, to: int) -> None:
    if to == BOMB:
        set_term(directory, 9)
    before = state_of(directory)
    with pytest.raises(InvalidRequest):
        set_term(directory, to)
    assert state_of(directory) == before


def test_a_barred_node_stays_barred_in_the_new_term(directory: Path) -> None:
    store = DiskLogStore.open(directory)
    store.save_hard_state(replace(store.hard_state, barred_term=BOMB - 1))
    store.close()
    set_term(directory, 9)
    state = state_of(directory)
    assert state.is_barred and not replace(state, term=10).is_barred


def test_the_floor_of_a_damaged_log_counts_as_its_end(directory: Path) -> None:
    store = DiskLogStore.open(directory)
    store.save_hard_state(replace(store.hard_state, rejoining=True, floor_term=12, floor_index=40))
    store.close()
    assert report_term(directory).least == 13
    with pytest.raises(InvalidRequest):
        set_term(directory, 12)


def test_not_while_the_node_runs(directory: Path) -> None:
    store = DiskLogStore.open(directory)
    with pytest.raises(StorageError) as caught:
        set_term(directory, 9)
    assert caught.value.code is Code.DIRECTORY_LOCKED
    store.close()


def test_a_start_out_of_range_names_the_way_back(tmp_path: Path) -> None:
    for state in (HardState(MAX_TERM + 1), HardState(3, barred_term=BOMB)):
        with pytest.raises(StorageError, match="set-term") as caught:
            check_range(state, tmp_path)
        assert caught.value.code is Code.TERM_REFUSED
    with pytest.raises(StorageError, match="--rejoin"):
        check_range(HardState(3, incarnation=MAX_INCARNATION), tmp_path)
    check_range(HardState(MAX_TERM, incarnation=MAX_INCARNATION - 1), tmp_path)
