"""Java's `String.hashCode`, on which the tag filter of ConsumeQueues and the slots of IndexFiles depend.

    h = s[0] * 31^(n-1) + s[1] * 31^(n-2) + ... + s[n-1]   modulo 2^32, read as a signed number

where s are UTF-16 code units, of which a character beyond U+FFFF has two (java.lang.String).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import mul

_BITS = 0xFFFFFFFF
_SIGN = 0x80000000
#: Code units per summation. Longer texts are split into pieces of this size.
_PIECE = 256
#: The factors of a piece: 31^255, ..., 31, 1. With them, the hash of most texts is a single sum of products.
_FACTORS = tuple(pow(31, _PIECE - 1 - i, 1 << 32) for i in range(_PIECE))
_FACTOR_OF_PIECE = pow(31, _PIECE, 1 << 32)


def java_hash(text: str) -> int:
    """Return the result of Java's `text.hashCode()`, a signed 32-bit number. It is 0 for the empty text."""
    if text.isascii():
        units: Sequence[int] = text.encode()
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(raw) // 2}H", raw)
    count = len(units)
    total: int
    if count <= _PIECE:
        total = sum(map(mul, units, _FACTORS[_PIECE - count :]))
    else:
        first = count % _PIECE
        total = sum(map(mul, units[:first], _FACTORS[_PIECE - first :]))
        for start in range(first, count, _PIECE):
            piece = sum(map(mul, units[start : start + _PIECE], _FACTORS))
            total = (total * _FACTOR_OF_PIECE + piece) & _BITS
    total &= _BITS
    return total - (1 << 32) if total & _SIGN else total


def tag_code(tag: str | None) -> int:
    """Return the tag code of a ConsumeQueue unit, which is the hash of the tag, or 0 if there is no tag.

    Different tags may have the same code ("Aa" and "BB"), so filters must also compare the tags.
    """
    return java_hash(tag) if tag else 0
