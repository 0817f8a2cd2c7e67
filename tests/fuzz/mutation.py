"""Changes valid inputs, reproducibly: the same `Random` makes the same input.

An own mutator of a hundred lines, not a library. Hypothesis, which the property tests here use, makes values
from a grammar and shrinks them; it neither starts from bytes that are there, nor puts sums right after a
change, and it lives in the process under test, which an endless loop or the memory limit ends. Atheris
(libFuzzer) goes by coverage, but it is a native module for Linux on x86-64 and few versions of Python, it
wants to own the process, and it ends at the first find. Doing without coverage is made up for in part: an
input with a new outcome (`watched.outcome_of`: the lines that refused it) is changed further.
"""

from __future__ import annotations

import struct
from random import Random

#: Ends of ranges, and what lies next to them.
NUMBERS = (
    *(0, 1, -1, 2, 7, 127, 128, 255, 256, 4096, 32_767, 32_768, 65_535, 1 << 16),
    *(
        (1 << 31) - 1,
        1 << 31,
        -(1 << 31),
        (1 << 32) - 1,
        1 << 32,
        1 << 40,
        1 << 62,
        (1 << 63) - 1,
        -(1 << 63),
    ),
)
_FORMS = (">b", ">h", ">i", ">q", "<i", "<q")
#: What means something in one of the texts that are read here: JSON, TOML, EDN, SQL92, tags, hosts, dates.
WORDS = (
    *("[", "]", "{", "}", "(", ")", "#{", '"', "'", "''", ":", ";", ",", "=", "||", "*", "/", ".", "-", "+"),
    *("\\", "\n", "\r", "\t", " ", "\0", "\x01", "\x02", "\x7f", "\u00b2", "\u0663", "\u2028", "\U0001f600"),
    *("null", "nil", "true", "false", "NaN", "Infinity", "-Infinity", "1e999", "1e-999", "-0", "0x", "inf"),
    *("9" * 5000, "1" * 400, "0" * 64, "[" * 2000, "{" * 200, "(" * 200, '{"a":' * 500, "a." * 300),
    *(
        " AND ",
        " OR ",
        " NOT ",
        " BETWEEN ",
        " IN (",
        " IS NULL",
        " CONTAINS ",
        "#_",
        "#inst ",
        "\\u0000",
        "\\ud800",
    ),
    *("1970-01-01T00:00:00Z", "9999-12-31", "0001-01-01", "[[a]]", "a = 1", "\ud7ff"),
)
_MOST_BYTES = 1 << 18


def mutated(data: bytes, rng: Random, *, text: bool, others: tuple[bytes, ...] = ()) -> bytes:
    """`data` with one change or some. `text`: changed by words, and mostly still UTF-8. `others`: further
    inputs of the same kind, pieces of which may be put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 8))):
        if text and rng.random() < 0.7:
            _change_words(changed, rng)
        elif others and rng.random() < 0.1:
            _splice(changed, rng, rng.choice(others))
        else:
            _change_bytes(changed, rng)
    return bytes(changed[:_MOST_BYTES])


def _change_bytes(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(data):
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        case 2 | 3:
            form = rng.choice(_FORMS)
            size = struct.calcsize(form)
            at -= at % rng.choice((1, size))
            raw = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(
                size, "big" if form[0] == ">" else "little"
            )
            data[at : at + size] = raw
        case 4:  # a number that is nearly what it was
            size = rng.choice((1, 2, 4, 8))
            number = int.from_bytes(data[at : at + size]) + rng.choice((-8, -1, 1, 8))
            data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size)
        case 5:
            del data[at : at + rng.choice((1, 1, 4, 9, 48))]
        case 6:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 9)))
        case 7:
            del data[at:]
        case _:  # a piece once more, or often
            size = rng.choice((1, 4, 16, 48))
            piece = bytes(data[at : at + size])
            data[at:at] = piece * rng.choice((1, 1, 2, 50))


def _change_words(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data) + 1)
    end = at + rng.choice((0, 0, 1, 5))
    if rng.random() < 0.2:
        data[at:end] = str(rng.choice(NUMBERS)).encode()
    else:
        data[at:end] = rng.choice(WORDS).encode("utf-8", "surrogatepass")


def _splice(data: bytearray, rng: Random, other: bytes) -> None:
    at, begin = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    size = rng.choice((4, 48, 200))
    data[at : at + rng.choice((0, size))] = other[begin : begin + size]
