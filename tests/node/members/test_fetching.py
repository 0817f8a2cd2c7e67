"""What a member gives to one that repairs its log: whole batches, durable, whatever else it has lost."""

from __future__ import annotations

import pytest

from dledger.core.values import EMPTY_TAIL
from dledger.errors import ReadFailed
from dledger.node.members.fetching import read_for_repair
from dledger.store.api import EntryDamaged
from dledger.store.format.batch import encode_batch
from dledger.store.identity import Identity
from dledger.testing.memory_store import MemoryLogStore

FILE = 4096


def log_of_pairs(count: int, *, durable: int) -> MemoryLogStore:
    """So many batches of two entries, the first `durable` of which are."""
    store, tail = MemoryLogStore(Identity("c", "g", "n0", data_file_size=FILE)), EMPTY_TAIL
    for number in range(count):
        batch = encode_batch(tail, 1, [b"%d" % number, b"x"], data_file_size=FILE)
        store.append([batch])
        if number + 1 == durable:
            store.sync()
        tail = batch.tail
    return store


def given(store: MemoryLogStore, first: int, last: int) -> tuple[int, int]:
    frames = read_for_repair(store, first, last, 1 << 20)
    return frames.first_index, frames.last_index


def test_rule_10_what_is_given_ends_with_what_is_durable() -> None:
    store = log_of_pairs(4, durable=3)
    assert given(store, 0, 7) == (0, 5)
    assert given(store, 4, 7) == (4, 5)
    with pytest.raises(ReadFailed, match="not durable"):
        given(store, 6, 7)


def test_rule_10_what_is_given_begins_where_a_batch_begins() -> None:
    store = log_of_pairs(3, durable=3)
    for index in (1, 3):
        with pytest.raises(ReadFailed, match="not the first of a batch"):
            given(store, index, 5)


def test_rule_10_what_lies_behind_known_damage_is_given() -> None:
    store = log_of_pairs(4, durable=4)
    store.corrupt(2)
    with pytest.raises(EntryDamaged):
        given(store, 4, 7)
    damage = store.note_damage(2)
    assert damage is not None and damage.last_index == 3
    assert given(store, 4, 7) == (4, 7)
    assert given(store, 0, 1) == (0, 1)
