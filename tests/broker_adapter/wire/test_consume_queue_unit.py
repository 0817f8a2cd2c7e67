"""ConsumeQueue units: bytes worked out by hand, round trips, positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.wire.consume_queue_unit import (
    FILLER,
    UNIT_SIZE,
    UNITS_PER_FILE,
    ConsumeQueueUnit,
    decode_unit,
    decode_units,
    encode_unit,
    encode_units,
    locate,
    position_of,
    queue_offset_at,
)
from broker_adapter.wire.java_hash import tag_code

I8 = st.integers(-(2**63), 2**63 - 1)
UNITS = st.builds(ConsumeQueueUnit, I8, st.integers(-(2**31), 2**31 - 1), I8)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ((0x1030, 104, tag_code("TagA")), "0000000000001030 00000068 000000000027A807"),  # 2598919
        # A negative hash keeps its sign over all 8 bytes.
        ((0x1030, 104, tag_code("zzzzzz")), "0000000000001030 00000068 FFFFFFFFD71FBDC0"),
        ((2**63 - 1, 1, 1_700_000_000_000), "7FFFFFFFFFFFFFFF 00000001 0000018BCFE56800"),
        (tuple(FILLER), "0000000000000000 7FFFFFFF 0000000000000000"),
    ],
)
def test_a_unit_has_exactly_these_bytes(unit: tuple[int, int, int], expected: str) -> None:
    assert encode_unit(ConsumeQueueUnit(*unit)) == bytes.fromhex(expected)
    assert decode_unit(bytes.fromhex(expected)) == unit


@given(st.lists(UNITS, max_size=8))
def test_units_survive_encoding(units: list[ConsumeQueueUnit]) -> None:
    data = encode_units(units)
    assert data == b"".join(map(encode_unit, units)) == encode_units(tuple(unit) for unit in units)
    assert decode_units(data) == decode_units(memoryview(data)) == units
    assert [decode_unit(data, at) for at in range(0, len(data), UNIT_SIZE)] == units


@given(st.binary(max_size=60))
def test_whole_units_are_read_as_they_are_and_nothing_else_is(data: bytes) -> None:
    if len(data) % UNIT_SIZE == 0:
        assert encode_units(decode_units(data)) == data
    else:
        with pytest.raises(StoredDataDamaged) as caught:
            decode_units(data)
        assert caught.value.status is Status.UNIT_DAMAGED


def test_a_unit_that_is_not_all_there_is_damage() -> None:
    data = encode_unit(FILLER)
    for length in range(UNIT_SIZE):
        with pytest.raises(StoredDataDamaged):
            decode_unit(data[:length])
    for at in (-20, -1, 1, 20, 21):
        with pytest.raises(StoredDataDamaged) as caught:
            decode_unit(data, at)
        assert caught.value.status is Status.UNIT_DAMAGED


@pytest.mark.parametrize("unit", [(2**63, 1, 0), (0, 2**31, 0), (0, 1, 2**63), (0, 1, -(2**63) - 1)])
def test_a_field_that_does_not_fit_is_refused(unit: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        encode_unit(ConsumeQueueUnit(*unit))
    with pytest.raises(ValueError):
        encode_units([FILLER, unit])


def test_only_what_can_point_to_a_message_is_one() -> None:
    assert ConsumeQueueUnit(0, 92, -1).is_message()
    assert not decode_unit(bytes(UNIT_SIZE)).is_message()  # never written
    assert not FILLER.is_message()
    assert not ConsumeQueueUnit(-1, 92, 0).is_message()
    assert not ConsumeQueueUnit(0, -1, 0).is_message()


def test_queue_offsets_and_positions_are_20_apart() -> None:
    assert [position_of(offset) for offset in (0, 1, 300_000)] == [0, 20, 6_000_000]
    assert [queue_offset_at(position) for position in (0, 20, 6_000_000)] == [0, 1, 300_000]
    with pytest.raises(ValueError):
        position_of(-1)
    for position in (-20, 1, 19, 21):
        with pytest.raises(ValueError):
            queue_offset_at(position)


def test_a_file_ends_after_300000_units() -> None:
    assert locate(0) == (0, 0)
    assert locate(UNITS_PER_FILE - 1) == (0, 5_999_980)
    assert locate(UNITS_PER_FILE) == (6_000_000, 0)
    assert locate(7, units_per_file=3) == (120, 20)
    for offset, units in ((-1, 3), (0, 0)):
        with pytest.raises(ValueError):
            locate(offset, units)


@given(st.integers(0, 2**58), st.integers(1, 10**6))
def test_the_place_in_a_file_leads_back_to_the_offset(offset: int, units_per_file: int) -> None:
    start, within = locate(offset, units_per_file)
    assert queue_offset_at(start + within) == offset
    assert start % (units_per_file * UNIT_SIZE) == 0 and 0 <= within < units_per_file * UNIT_SIZE
