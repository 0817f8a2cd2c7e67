"""Entries verified in columns: as strict as one by one, and of the same opinion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core.values import EMPTY_TAIL, Tail
from dledger.store.disk_store import DiskLogStore
from dledger.store.format import columns
from dledger.store.format.batch import (
    Batch,
    DamagedBatch,
    VerifiedRun,
    encode_batch,
    encode_blank,
    parse_batches,
    verify_run,
)
from dledger.store.format.columns import crc32_columns, lay_out
from dledger.store.format.layout import index_records
from dledger.store.identity import init_directory
from tests.store.helpers import IDENTITY, dumb_entry, join

SIZE = 1 << 16
NEVER = 1 << 30


def batches_of(sizes: list[list[int]], seed: int = 1) -> list[Batch]:
    """A batch for each list of sizes of bodies; every other one begins with an internal entry."""
    rng, tail, made = Random(seed), EMPTY_TAIL, []
    for number, bodies in enumerate(sizes):
        head = b"head" if number % 2 else None
        batch = encode_batch(tail, 1, [rng.randbytes(n) for n in bodies], data_file_size=SIZE, head=head)
        made.append(batch)
        tail = batch.tail
    return made


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Few entries are laid out, too."""
    monkeypatch.setattr(columns, "MIN_ENTRIES", 2)
    return monkeypatch


def test_the_sum_of_a_column_is_its_crc32() -> None:
    rows = [Random(row).randbytes(48) for row in range(20)] + [bytes(48), b"\xff" * 48]
    found = crc32_columns(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 48).T)
    assert found.tolist() == [crc32(row) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 9, 300])
def test_a_flipped_bit_anywhere_in_a_long_batch_is_found(always: pytest.MonkeyPatch, size: int) -> None:
    batches = batches_of([[size] * 4, [size] * 3, [1, size, 7]])
    data = join(batches)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 1 << (at % 8)
        with pytest.raises(DamagedBatch) as error:
            parse_batches(bytes(bad), EMPTY_TAIL, data_file_size=SIZE)
        hit = next(b for b in reversed(batches) if b.pos <= at)
        assert hit.first_index <= error.value.index <= hit.last_index
        with pytest.raises(DamagedBatch):
            run = verify_run(bytes(bad), 0, 0, 0, batches[-1].last_index)
            if run.size < len(data):  # cut is all that can be said of a size that grew
                raise DamagedBatch("cut", index=run.last_index, pos=run.size)


BODIES = st.lists(st.integers(0, 40) | st.just(17), min_size=1, max_size=12)


@settings(max_examples=120, deadline=None)
@given(
    sizes=st.lists(BODIES, min_size=1, max_size=5),
    flip=st.none() | st.integers(0, 10**6),
    cut=st.none() | st.integers(0, 10**6),
    last=st.integers(0, 70),
    whole=st.booleans(),
)
def test_columns_and_single_entries_are_of_one_opinion(
    sizes: list[list[int]], flip: int | None, cut: int | None, last: int, whole: bool
) -> None:
    data = bytearray(join(batches_of(sizes)))
    if flip is not None:
        data[flip % len(data)] ^= 1 << (flip % 8)
    run = bytes(data if cut is None else data[: cut % (len(data) + 1)])

    def outcomes(least: int) -> tuple[object, object, object]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "MIN_ENTRIES", least)
            return parsed(run), parsed(memoryview(run)), verified(run, last)

    singly = outcomes(NEVER)
    assert outcomes(2) == singly == outcomes(5)
    assert singly[0] == singly[1]
    if whole and isinstance(singly[2], VerifiedRun) and singly[2].whole_size:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "MIN_ENTRIES", 2)
            found = verify_run(run, 0, 0, 0, last, whole_batches=True)
        assert (found.whole_last_index, found.whole_size) == (
            singly[2].whole_last_index,
            singly[2].whole_size,
        )


ENTRY = st.tuples(
    st.sampled_from([1, 1, 1, 2]), st.sampled_from([1, 1, 1, 2]), st.sampled_from([0, 0, 1, 2, 3])
)


@settings(max_examples=300, deadline=None)
@given(entries=st.lists(ENTRY, min_size=2, max_size=9), size=st.integers(0, 3))
def test_columns_and_single_entries_agree_on_what_is_a_batch(
    entries: list[tuple[int, int, int]], size: int
) -> None:
    """Entries whose checksums are right, and whose magic, term and channel are anything."""
    data, chain = b"", 0
    for index, (magic, term, channel) in enumerate(entries):
        entry, chain = dumb_entry(magic, index, term, len(data), channel, bytes(size), chain)
        data += entry
    found = []
    for least in (NEVER, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "MIN_ENTRIES", least)
            found.append(parsed(data))
    assert found[0] == found[1]


@pytest.mark.parametrize("flaw", ["magic", "term", "channel"])
def test_what_is_no_batch_is_not_taken_for_one_side_by_side(always: pytest.MonkeyPatch, flaw: str) -> None:
    flaws = {"magic": (2, 1, 1), "term": (1, 2, 1), "channel": (1, 1, 3)}
    entries = [(1, 1, 0), (1, 1, 2), flaws[flaw], (1, 1, 0)]
    data, chain = b"", 0
    for index, (magic, term, channel) in enumerate(entries):
        entry, chain = dumb_entry(magic, index, term, len(data), channel, b"body", chain)
        data += entry
    with pytest.raises(DamagedBatch, match=f"{flaw} " if flaw != "magic" else "internal|magic") as error:
        parse_batches(data, EMPTY_TAIL, data_file_size=SIZE)
    assert error.value.index == 2


def test_batches_found_side_by_side_bring_their_index_records(always: pytest.MonkeyPatch) -> None:
    batches = batches_of([[5] * 4, [7] * 3, [0], [9, 9]])
    found = parse_batches(join(batches), EMPTY_TAIL, data_file_size=SIZE)
    always.setattr(columns, "MIN_ENTRIES", NEVER)
    assert [batch.records for batch in found] == [index_records(batch.data) for batch in batches]


def test_index_records_are_not_kept_longer_than_they_are_needed(
    always: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    init_directory(tmp_path / "n0", replace(IDENTITY, data_file_size=SIZE))
    store = DiskLogStore.open(tmp_path / "n0")
    found = parse_batches(join(batches_of([[5] * 4, [7] * 3])), EMPTY_TAIL, data_file_size=SIZE)
    assert all(batch.records for batch in found)
    store.append(found)
    store.sync()
    assert not any(batch.records for batch in found)
    assert [store.entry(index).index for index in range(8)] == list(range(8))
    store.close()


def test_batches_on_both_sides_of_a_file_border_are_found_side_by_side(always: pytest.MonkeyPatch) -> None:
    batches = batches_of([[9000] * 4, [5] * 4, [9000] * 4, [6] * 3])
    assert batches[1].end_pos < SIZE == batches[2].pos  # there was no room for the third
    found = parse_batches(join(batches), EMPTY_TAIL, data_file_size=SIZE)
    assert [batch.tail for batch in found] == [batch.tail for batch in batches]
    assert all(batch.records for batch in found)


def parsed(data: bytes | memoryview) -> object:
    try:
        found = parse_batches(data, EMPTY_TAIL, data_file_size=SIZE)
    except DamagedBatch as fault:
        return str(fault), fault.fault
    return [(batch.tail, batch.first_index, batch.pos, bytes(batch.data), batch.head) for batch in found]


def verified(data: bytes, last_index: int) -> VerifiedRun | str:
    try:
        return verify_run(data, 0, 0, 0, last_index)
    except DamagedBatch as fault:
        return str(fault)


@pytest.mark.parametrize("field", ["index", "term", "pos", "chain_crc"])
def test_a_long_batch_must_follow_the_tail(always: pytest.MonkeyPatch, field: str) -> None:
    tail = Tail(9, 3, 700, 5)
    other = tail._replace(**{field: getattr(tail, field) + 1})
    bad = encode_batch(other, max(3, other.term), [b"x"] * 4, data_file_size=SIZE)
    if field == "term":
        other = tail._replace(term=2)
        bad = encode_batch(other, 2, [b"x"] * 4, data_file_size=SIZE)
    with pytest.raises(DamagedBatch):
        parse_batches(bad.data, tail, data_file_size=SIZE)


@pytest.mark.parametrize(("term", "left"), [(1, 0), (2, 0), (1, 1)])
def test_entries_of_a_long_batch_are_of_one_term_and_count_down(
    always: pytest.MonkeyPatch, term: int, left: int
) -> None:
    """Checksums that are right do not make a batch of entries that are not of one."""
    first, chain = dumb_entry(1, 0, 1, 0, 1, b"a", 0)
    second, _ = dumb_entry(1, 1, term, 49, left, b"b", chain)
    if (term, left) == (1, 0):
        assert len(parse_batches(first + second, EMPTY_TAIL, data_file_size=SIZE)) == 1
        return
    with pytest.raises(DamagedBatch, match="term is 2" if term == 2 else "channel is 1"):
        parse_batches(first + second, EMPTY_TAIL, data_file_size=SIZE)


def test_what_follows_the_last_whole_batch_need_not_be_good(always: pytest.MonkeyPatch) -> None:
    """Of a range that is read for its whole batches, the batch that is cut is thrown away."""
    first, second = batches_of([[5] * 4, [6] * 4])
    data = bytearray(join([first, second]))
    data[-1] ^= 1
    part = bytes(data[:-10]) + b"\0" * 9
    run = verify_run(part, 0, 0, 0, second.last_index, whole_batches=True)
    assert (run.whole_last_index, run.whole_size) == (first.last_index, first.size)


def test_a_blank_ends_what_is_laid_out(always: pytest.MonkeyPatch) -> None:
    (batch,) = batches_of([[5] * 4])
    found = lay_out(bytes(batch.data) + encode_blank(100) + bytes(92), 0, 100)
    assert found is not None
    assert len(found) == 4
    assert found.offset(4) == batch.size


def test_too_few_entries_are_not_laid_out() -> None:
    (batch,) = batches_of([[5] * (columns.MIN_ENTRIES - 1)])
    assert lay_out(batch.data, 0, NEVER) is None
    (batch,) = batches_of([[5] * columns.MIN_ENTRIES])
    assert lay_out(batch.data, 0, NEVER) is not None


@given(st.lists(BODIES, min_size=1, max_size=5))
def test_index_records_are_the_same_in_columns(sizes: list[list[int]]) -> None:
    data = join(batches_of(sizes))
    records = []
    for least in (2, NEVER):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "MIN_ENTRIES", least)
            records.append(index_records(data))
    assert records[0] == records[1]
