"""Decoding entries as they are on disk: what is right comes out, what is not is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger import StorageError
from dledger.client.reader import decode
from tests.client.fake_cluster import Stored

ENTRIES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=60)), min_size=1, max_size=20)


def frames(first: int, entries: list[tuple[int, bytes]]) -> bytes:
    return b"".join(
        Stored(3, 1000 + i, magic, body).frame(first + i) for i, (magic, body) in enumerate(entries)
    )


@given(ENTRIES, st.integers(0, 1 << 40))
def test_users_entries_come_out_and_internal_ones_count(entries: list[tuple[int, bytes]], first: int) -> None:
    for expected in (first, -1):
        got, after = decode(frames(first, entries), expected)
        assert after == first + len(entries)
        wanted = [(first + i, body) for i, (magic, body) in enumerate(entries) if magic == 1]
        assert [(e.index, e.body) for e in got] == wanted
        assert all(e.term == 3 and e.pos == 1000 + e.index - first for e in got)


@given(ENTRIES, st.data())
def test_entries_before_the_wanted_one_are_left_out(
    entries: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    wanted = 10 + data.draw(st.integers(0, len(entries) - 1))
    got, after = decode(frames(10, entries), wanted)
    assert after == 10 + len(entries)
    assert all(e.index >= wanted for e in got)


@given(ENTRIES, st.data())
def test_a_cut_anywhere_but_between_entries_is_noticed(
    entries: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    whole = frames(0, entries)
    borders = {len(frames(0, entries[:i])) for i in range(len(entries) + 1)}
    cut = data.draw(st.integers(0, len(whole)).filter(lambda n: n not in borders))
    with pytest.raises(StorageError):
        decode(whole[:cut], 0)


def test_a_missing_entry_is_noticed() -> None:
    with pytest.raises(StorageError, match="missing"):
        decode(frames(0, [(1, b"a")]) + frames(2, [(1, b"c")]), 0)
    with pytest.raises(StorageError, match="missing"):
        decode(frames(5, [(1, b"a")]), 4)


def test_a_flipped_byte_in_a_body_is_noticed() -> None:
    corrupt = bytearray(frames(0, [(1, b"body"), (1, b"next")]))
    corrupt[50] ^= 1
    with pytest.raises(StorageError, match="body_crc"):
        decode(bytes(corrupt), 0)


def test_entries_of_the_original_have_no_checksums() -> None:
    entry = bytearray(frames(0, [(1, b"body")]))
    entry[36:44] = bytes(8)
    assert decode(bytes(entry), 0)[0][0].body == b"body"
