"""Bodies of internal entries."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.store.format.internal import (
    Internal,
    NoOp,
    SessionBatch,
    SessionOpen,
    UnknownInternal,
    bodies_crc,
    decode_internal,
    encode_internal,
)

U8, U4 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


@given(st.one_of(st.just(NoOp()), st.just(SessionOpen()), st.builds(SessionBatch, U8, U8, U4, U4)))
def test_values_survive_encoding(value: Internal) -> None:
    assert decode_internal(encode_internal(value)) == value


def test_the_empty_body_is_the_no_op() -> None:
    assert encode_internal(NoOp()) == b"" and decode_internal(b"") == NoOp()


@given(st.binary(max_size=40))
def test_no_body_is_an_error_and_what_is_unknown_is_carried_along(body: bytes) -> None:
    value = decode_internal(body)
    assert encode_internal(value) == body


def test_a_known_tag_with_an_unknown_shape_is_unknown() -> None:
    assert decode_internal(b"SB\0") == UnknownInternal(b"SB\0")
    assert decode_internal(b"SOmething new") == UnknownInternal(b"SOmething new")


@pytest.mark.parametrize("fields", [(-1, 0, 0, 0), (0, 2**64, 0, 0), (0, 0, 2**32, 0), (0, 0, 0, -1)])
def test_values_out_of_range_cannot_be_made(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError):
        SessionBatch(*fields)


@given(st.lists(st.binary(max_size=5), max_size=4), st.lists(st.binary(max_size=5), max_size=4))
def test_bodies_crc_tells_divisions_of_the_same_bytes_apart(a: list[bytes], b: list[bytes]) -> None:
    crc_of_a, crc_of_b = (bodies_crc(bodies, [crc32(body) for body in bodies]) for bodies in (a, b))
    assert (crc_of_a == crc_of_b) == (a == b)
