"""The layout of IndexFiles: bytes worked out by hand, round trips, hashes, times, slots and chains."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.wire.index_layout import (
    HEADER_SIZE,
    ITEM_SIZE,
    IndexHeader,
    IndexItem,
    IndexShape,
    decode_header,
    decode_item,
    decode_items,
    decode_slot,
    encode_header,
    encode_item,
    encode_items,
    encode_slot,
    index_key,
    index_keys,
    key_hash,
    link,
    may_be_stored_within,
    seconds_since,
)

SHAPE = IndexShape()
I4, I8 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
U31, U63 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
HEADERS = st.builds(IndexHeader, I8, I8, U63, U63, st.integers(1, 2**31 - 1), st.integers(1, 20_000_000))
ITEMS = st.builds(IndexItem, I4, I8, I4, I4)

HEADER = bytes.fromhex(
    "0000018BCFE56800"  # begin 2023-11-14 22:13:20 UTC
    "0000018BCFE56BE8"  # end a second later
    "0000000000001030"
    "0000000000002040"
    "00000002"  # slots in use
    "00000004"  # next item: three are there
)
ITEM = bytes.fromhex("7FFFFFFF 0000000000001030 00000001 00000002")


def test_header_slot_and_item_have_exactly_these_bytes() -> None:
    header = IndexHeader(1_700_000_000_000, 1_700_000_001_000, 0x1030, 0x2040, 2, 4)
    assert encode_header(header) == HEADER and decode_header(HEADER, SHAPE) == header
    item = IndexItem(2**31 - 1, 0x1030, 1, 2)
    assert encode_item(item) == ITEM and decode_item(ITEM) == item
    assert encode_slot(0x01020304) == b"\1\2\3\4" and decode_slot(b"\1\2\3\4") == 0x01020304


@given(HEADERS)
def test_headers_survive_encoding(header: IndexHeader) -> None:
    assert decode_header(encode_header(header) + b"more", SHAPE) == header


@given(st.lists(ITEMS, max_size=6))
def test_items_survive_encoding(items: list[IndexItem]) -> None:
    data = encode_items(items)
    assert data == b"".join(map(encode_item, items)) == encode_items(tuple(item) for item in items)
    assert decode_items(data) == decode_items(memoryview(data)) == items
    assert [decode_item(data, at) for at in range(0, len(data), ITEM_SIZE)] == items


@given(I4)
def test_slots_survive_encoding(newest: int) -> None:
    assert decode_slot(b"junk" + encode_slot(newest), 4) == newest


def test_a_file_of_zeros_is_empty_and_so_is_one_with_only_a_begin() -> None:
    assert decode_header(bytes(HEADER_SIZE), SHAPE) == IndexHeader() == IndexHeader(next_item=1)
    begun = encode_header(IndexHeader(begin_timestamp=5, begin_offset=48, end_offset=48, next_item=0))
    assert decode_header(begun, SHAPE).next_item == 1
    assert encode_header(IndexHeader()) == bytes(39) + b"\1"


@pytest.mark.parametrize(
    "header",
    [
        IndexHeader(next_item=-1),
        IndexHeader(next_item=20_000_001),
        IndexHeader(slots_in_use=1, next_item=0),
        IndexHeader(slots_in_use=-1),
        IndexHeader(begin_offset=-1),
        IndexHeader(end_offset=-1),
    ],
)
def test_a_header_that_no_file_of_this_shape_has_is_damage(header: IndexHeader) -> None:
    with pytest.raises(StoredDataDamaged) as caught:
        decode_header(encode_header(header), SHAPE)
    assert caught.value.status is Status.INDEX_DAMAGED


def test_a_full_file_has_a_header() -> None:
    full = IndexHeader(slots_in_use=1, next_item=SHAPE.items)
    assert decode_header(encode_header(full), SHAPE) == full
    assert full.next_item - 1 == SHAPE.capacity


def test_missing_bytes_are_damage_wherever_they_are_missing() -> None:
    for length in range(HEADER_SIZE):
        with pytest.raises(StoredDataDamaged):
            decode_header(HEADER[:length], SHAPE)
    for length in range(1, ITEM_SIZE):
        with pytest.raises(StoredDataDamaged):
            decode_item(ITEM[:length])
        with pytest.raises(StoredDataDamaged):
            decode_items(ITEM + ITEM[:length])
    for at in (-4, -1, 1, 4):
        with pytest.raises(StoredDataDamaged) as caught:
            decode_slot(bytes(4), at)
        assert caught.value.status is Status.INDEX_DAMAGED
    with pytest.raises(StoredDataDamaged):
        decode_item(ITEM, -ITEM_SIZE)


def test_fields_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError):
        encode_header(IndexHeader(begin_timestamp=2**63))
    with pytest.raises(ValueError):
        encode_slot(2**31)
    with pytest.raises(ValueError):
        encode_item(IndexItem(2**31, 0, 0, 0))
    with pytest.raises(ValueError):
        encode_items([IndexItem(0, 0, 0, 0), IndexItem(0, 2**63, 0, 0)])


# -- where things are


def test_the_default_file_has_the_size_of_rocketmqs() -> None:
    assert SHAPE.file_size == 420_000_040
    assert SHAPE.slot_position(0) == 40 and SHAPE.slot_position(4_999_999) == 20_000_036
    assert SHAPE.item_position(1) == 20_000_060
    assert SHAPE.item_position(19_999_999) + ITEM_SIZE == SHAPE.file_size


def test_places_outside_the_file_are_refused() -> None:
    shape = IndexShape(slots=3, items=4)
    assert shape.file_size == 40 + 12 + 80 and shape.capacity == 3
    for slot in (-1, 3):
        with pytest.raises(ValueError):
            shape.slot_position(slot)
    for number in (-1, 0, 4):
        with pytest.raises(ValueError):
            shape.item_position(number)
    with pytest.raises(ValueError):
        shape.slot_of(-1)


@given(st.text(max_size=10), st.integers(1, 1000))
def test_every_key_has_a_slot_in_the_file(text: str, slots: int) -> None:
    shape = IndexShape(slots, 2)
    assert shape.slot_of(key_hash(text)) == key_hash(text) % slots
    shape.slot_position(shape.slot_of(key_hash(text)))


@given(st.lists(I4, min_size=1, max_size=20), I4)
def test_following_links_always_ends(previous: list[int], newest: int) -> None:
    """Whatever the items say, numbers only get smaller."""
    number = link(newest, len(previous))
    seen = []
    while number:
        seen.append(number)
        number = link(previous[number], number)
    assert seen == sorted(set(seen), reverse=True) and all(0 < n < len(previous) for n in seen)


@pytest.mark.parametrize(
    ("number", "below", "expected"),
    [(0, 5, 0), (1, 5, 1), (4, 5, 4), (5, 5, 0), (6, 5, 0), (-1, 5, 0), (1, 1, 0)],
)
def test_a_link_leads_to_a_stored_item_or_nowhere(number: int, below: int, expected: int) -> None:
    assert link(number, below) == expected


# -- keys and times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("T#k", 84 * 31**2 + 35 * 31 + 107),  # T is 84, # is 35, k is 107
        ("hello", 99_162_322),
        ("zzzzzz", 685_785_664),  # -685785664 without its sign
        ("polygenelubricants", 0),  # -2^31 has no absolute value in Java
    ],
)
def test_the_hash_of_a_key_is_never_negative(text: str, expected: int) -> None:
    assert key_hash(text) == expected


def test_a_message_is_found_by_its_unique_key_and_each_of_its_keys() -> None:
    assert index_key("T", "k") == "T#k"
    assert index_keys("T", "0A01", "k1 k2") == ["T#0A01", "T#k1", "T#k2"]
    assert index_keys("T", None, " k1  k1 ") == ["T#k1", "T#k1"]
    assert index_keys("T", "0A01", None) == ["T#0A01"]
    assert index_keys("T", "", "") == index_keys("T", None, None) == []


@pytest.mark.parametrize(
    ("begin", "stored", "expected"),
    [
        (0, 1_700_000_000_000, 0),  # the first item of a file
        (-1, 1_700_000_000_000, 0),
        (1_000, 1_000, 0),
        (1_000, 1_999, 0),
        (1_000, 2_000, 1),
        (1_000, 999, 0),  # before the begin
        (1_000, -1, 0),
        (1, 1 + 1000 * (2**31 - 1), 2**31 - 1),
        (1, 1 + 1000 * 2**31, 2**31 - 1),
    ],
)
def test_times_are_whole_seconds_from_the_begin(begin: int, stored: int, expected: int) -> None:
    assert seconds_since(begin, stored) == expected


@given(
    st.integers(1, 2**42),
    st.integers(0, 2**43),
    st.integers(0, 2**44),
    st.integers(0, 2**44),
)
@example(1_000, 1_500, 1_500, 1_500)  # within the first second
@example(1_000, 900, 0, 950)  # before the begin
@example(1_000, 2**42, 2**42, 2**44)  # beyond what seconds can tell
def test_no_message_inside_the_range_is_missed(begin: int, stored: int, earliest: int, latest: int) -> None:
    seconds = seconds_since(begin, stored)
    for low, high in ((earliest, latest), (stored, stored), (earliest, stored), (stored, latest)):
        if low <= stored <= high:
            assert may_be_stored_within(begin, seconds, low, high)


@pytest.mark.parametrize(
    ("earliest", "latest", "expected"),
    [
        (0, 2_999, False),
        (0, 3_000, True),
        (3_999, 9_999, True),
        (4_000, 9_999, False),
        (3_500, 3_500, True),
    ],
)
def test_items_more_than_a_second_outside_are_not_taken(earliest: int, latest: int, expected: bool) -> None:
    assert may_be_stored_within(1_000, 2, earliest, latest) is expected
