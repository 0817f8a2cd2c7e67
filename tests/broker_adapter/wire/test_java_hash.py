"""Java's String.hashCode."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_adapter.wire.java_hash import java_hash, tag_code


def hash_by_definition(text: str) -> int:
    """One unit after the other, as the definition says."""
    raw = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(raw), 2):
        value = (31 * value + int.from_bytes(raw[at : at + 2], "big")) % (1 << 32)
    (signed,) = struct.unpack(">i", value.to_bytes(4, "big"))
    assert isinstance(signed, int)
    return signed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("TagA", 84 * 31**3 + 97 * 31**2 + 103 * 31 + 65),
        ("TagA", 2598919),
        ("hello", 99162322),
        ("*", 42),
        ("polygenelubricants", -(2**31)),
        ("é", 0xE9),
        ("中", 0x4E2D),
        ("中文", 0x4E2D * 31 + 0x6587),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
        ("\ud83d", 0xD83D),
    ],
)
def test_hashes_are_those_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_hash_beyond_31_bits_is_negative() -> None:
    exact = 122 * (31**6 - 1) // 30  # of "zzzzzz", without a limit
    assert exact == 3_609_181_632
    assert java_hash("zzzzzz") == 3_609_181_632 - 2**32 == -685_785_664


@given(st.text(st.characters(exclude_categories=[]), max_size=40))
@example("x" * 255)
@example("x" * 256)
@example("x" * 257)
@example("中" * 1025)
def test_every_text_hashes_as_defined(text: str) -> None:
    assert java_hash(text) == hash_by_definition(text)


@pytest.mark.parametrize("length", [255, 256, 257, 511, 512, 513, 5000])
def test_long_texts_hash_as_defined(length: int) -> None:
    text = "".join(chr(33 + i % 90) for i in range(length))
    assert java_hash(text) == hash_by_definition(text)


def test_the_code_of_a_tag_is_its_hash_and_0_without_one() -> None:
    assert tag_code("TagA") == 2598919
    assert tag_code(None) == tag_code("") == 0


def test_different_tags_may_share_a_code() -> None:
    assert tag_code("Aa") == tag_code("BB") == 2112
