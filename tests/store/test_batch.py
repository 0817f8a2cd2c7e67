"""Bytes of batches: golden bytes, an oracle, and that no flipped bit passes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core.values import EMPTY_TAIL, Tail
from dledger.errors import Code, InvalidRequest
from dledger.store.format.batch import (
    MAGIC_INTERNAL,
    MAGIC_NORMAL,
    BatchFault,
    DamagedBatch,
    decode_entries,
    encode_batch,
    encode_blank,
    parse_batches,
    place,
    verify_entries,
    verify_run,
)
from dledger.store.format.layout import index_records, unpack_record
from tests.store.helpers import SIZE, dumb_batch, join, make_batches

BODIES = st.lists(st.binary(max_size=60), max_size=4)
HEADS = st.none() | st.binary(max_size=20)


def test_the_bytes_of_one_entry_are_dledgers_with_checksums() -> None:
    batch = encode_batch(Tail(6, 3, 1000, 0x01020304), 5, [b"hello"], data_file_size=1 << 20)
    assert bytes(batch.data).hex() == (
        "00000001"  # magic NORMAL
        "00000035"  # size 48 + 5
        "0000000000000007"  # index
        "0000000000000005"  # term
        "00000000000003e8"  # pos
        "00000000"  # channel: the last of its batch
        "e0c1d4bd"  # chain_crc
        "3610a686"  # body_crc
        "00000005"  # body size
        "68656c6c6f"
    )


def test_the_bytes_of_an_index_record_are_dledgers() -> None:
    batch = encode_batch(Tail(6, 3, 1000, 1), 5, [b"hello"], data_file_size=1 << 20)
    records = index_records(batch.data)
    assert records.hex() == ("0000000100000000000003e80000003500000000000000070000000000000005")
    assert unpack_record(records) == (MAGIC_NORMAL, 1000, 53, 7, 5)


def test_the_chain_is_seeded_with_zero_and_zero_is_stored_as_one() -> None:
    first = encode_batch(EMPTY_TAIL, 0, [b""], data_file_size=SIZE)
    data, tail = dumb_batch(EMPTY_TAIL, 0, [b""], SIZE, None)
    assert (first.data, first.tail) == (data, tail)
    assert first.chain_crc != 0


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(BODIES, HEADS, st.integers(0, 2)), min_size=1, max_size=8))
def test_encoding_and_parsing_agree_with_the_oracle(
    specs: list[tuple[list[bytes], bytes | None, int]],
) -> None:
    tail, dumb_tail, term = EMPTY_TAIL, EMPTY_TAIL, 0
    batches, dumb = [], b""
    for bodies, head, rise in specs:
        if not bodies and head is None:
            continue
        term += rise
        batch = encode_batch(tail, term, bodies, data_file_size=SIZE, head=head)
        data, dumb_tail = dumb_batch(dumb_tail, term, bodies, SIZE, head)
        tail = batch.tail
        dumb += data
        batches.append(batch)
        assert batch.tail == dumb_tail
        assert batch.head == head
        assert batch.pos // SIZE == (batch.end_pos - 1) // SIZE
        assert batch.end_pos % SIZE <= SIZE - 8
    data = join(batches)
    assert data == dumb
    parsed = parse_batches(memoryview(data), EMPTY_TAIL, data_file_size=SIZE)
    assert [(p.tail, p.first_index, p.pos, bytes(p.data), p.head) for p in parsed] == [
        (b.tail, b.first_index, b.pos, bytes(b.data), b.head) for b in batches
    ]
    entries = decode_entries(data)
    assert entries == verify_entries(data, 0)
    assert [e.index for e in entries] == list(range(len(entries)))
    expected = [x for bodies, head, _ in specs for x in ([] if head is None else [head]) + bodies]
    assert [e.body for e in entries] == expected


def test_a_flipped_bit_anywhere_is_found() -> None:
    batches = make_batches(4, seed=3, max_body=20)
    data = join(batches)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 1 << (at % 8)
        with pytest.raises(DamagedBatch) as error:
            parse_batches(bytes(bad), EMPTY_TAIL, data_file_size=SIZE)
        hit = next(e for e in reversed(decode_entries(data)) if e.pos <= at)
        assert error.value.code is Code.DATA_DAMAGED
        # A changed first header can mislead about where in its batch the fault lies, never beyond the batch.
        batch = next(b for b in batches if b.first_index <= hit.index <= b.last_index)
        assert batch.first_index <= error.value.index <= batch.last_index
        with pytest.raises(DamagedBatch):
            verify_entries(bytes(bad), 0)


@pytest.mark.parametrize("end", [1, 47, 48, 60])
def test_an_incomplete_batch_is_told_from_a_bad_one(end: int) -> None:
    batch = encode_batch(EMPTY_TAIL, 1, [b"x" * 20, b"y" * 20], data_file_size=SIZE)
    with pytest.raises(DamagedBatch) as error:
        parse_batches(bytes(batch.data[:end]), EMPTY_TAIL, data_file_size=SIZE)
    assert error.value.fault is (BatchFault.EMPTY if end == 1 else BatchFault.INCOMPLETE)


def test_a_batch_that_lacks_its_last_entries_is_refused() -> None:
    batch = encode_batch(EMPTY_TAIL, 1, [b"x" * 20, b"y" * 20], data_file_size=SIZE)
    with pytest.raises(DamagedBatch, match="cut"):
        parse_batches(bytes(batch.data[:68]), EMPTY_TAIL, data_file_size=SIZE)


def test_a_batch_must_follow_the_tail_in_index_term_position_and_chain() -> None:
    first = encode_batch(EMPTY_TAIL, 2, [b"a"], data_file_size=SIZE)
    tail = first.tail
    for other in (
        tail._replace(index=tail.index + 1),
        tail._replace(term=1),
        tail._replace(pos=tail.pos + 4),
        tail._replace(chain_crc=tail.chain_crc ^ 1),
    ):
        bad = encode_batch(other, 2 if other.term == 2 else 1, [b"b"], data_file_size=SIZE)
        with pytest.raises(DamagedBatch):
            parse_batches(bad.data, tail, data_file_size=SIZE)


def test_a_batch_that_leaves_out_room_in_a_file_is_refused() -> None:
    """Placement is part of the format: equal logs are equal byte by byte, positions included."""
    tail = Tail(3, 1, 100, 5)
    skipping = encode_batch(tail._replace(pos=SIZE), 1, [b"a"], data_file_size=SIZE)
    with pytest.raises(DamagedBatch, match="would have fit"):
        parse_batches(skipping.data, tail, data_file_size=SIZE)


def test_a_batch_over_a_file_border_is_refused() -> None:
    over = encode_batch(Tail(3, 1, SIZE - 60, 5), 1, [b"a" * 8], data_file_size=SIZE * 2)
    with pytest.raises(DamagedBatch):
        parse_batches(over.data, Tail(3, 1, SIZE - 60, 5), data_file_size=SIZE)


def test_an_internal_entry_only_begins_a_batch() -> None:
    batch = encode_batch(EMPTY_TAIL, 1, [b"a", b"b"], data_file_size=SIZE)
    data = bytearray(batch.data)
    assert decode_entries(bytes(data))[1].magic == MAGIC_NORMAL
    data[49 + 3] = MAGIC_INTERNAL
    with pytest.raises(DamagedBatch, match="magic 2"):
        parse_batches(bytes(data), EMPTY_TAIL, data_file_size=SIZE)


def test_a_batch_larger_than_a_data_file_is_refused() -> None:
    encode_batch(EMPTY_TAIL, 1, [b"x" * (SIZE - 8 - 48)], data_file_size=SIZE)
    with pytest.raises(InvalidRequest) as error:
        encode_batch(EMPTY_TAIL, 1, [b"x" * (SIZE - 8 - 47)], data_file_size=SIZE)
    assert error.value.code is Code.BATCH_TOO_LARGE


@given(st.integers(0, 10_000), st.integers(48, SIZE - 8))
def test_placement_keeps_batches_in_one_file_with_room_for_a_blank(end_pos: int, size: int) -> None:
    pos = place(end_pos, size, SIZE)
    assert pos == end_pos or (pos % SIZE == 0 and pos - end_pos <= SIZE)
    assert pos % SIZE + size <= SIZE - 8


def test_a_blank_is_eight_bytes_that_name_the_rest() -> None:
    assert encode_blank(300).hex() == "ffffffff0000012c"


def originals(bodies: list[bytes]) -> tuple[bytes, Tail]:
    """Entries as original DLedger writes them: both checksums 0."""
    data, tail = b"", EMPTY_TAIL
    for body in bodies:
        entry = bytearray(encode_batch(tail, 1, [body], data_file_size=SIZE).data)
        entry[36:44] = bytes(8)
        data += entry
        tail = Tail(tail.index + 1, 1, tail.pos + len(entry), 0)
    return data, tail


def test_entries_of_original_dledger_are_accepted_as_a_prefix_only() -> None:
    data, tail = originals([b"one", b"two"])
    parsed = parse_batches(data, EMPTY_TAIL, data_file_size=SIZE)
    assert [p.tail for p in parsed][-1] == tail
    ours = encode_batch(tail, 1, [b"three"], data_file_size=SIZE)
    assert len(parse_batches(data + bytes(ours.data), EMPTY_TAIL, data_file_size=SIZE)) == 3
    assert verify_run(data + bytes(ours.data), 0, 0, 0, 9).last_index == 2
    late = bytearray(encode_batch(ours.tail, 1, [b"four"], data_file_size=SIZE).data)
    late[36:44] = bytes(8)
    with pytest.raises(DamagedBatch):
        parse_batches(data + bytes(ours.data) + bytes(late), EMPTY_TAIL, data_file_size=SIZE)
