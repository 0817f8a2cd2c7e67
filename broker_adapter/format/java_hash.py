"""Java's `String.hashCode`, on which the tag filter of ConsumeQueues and the slots of IndexFiles depend.

    h = s[0] * 31^(n-1) + s[1] * 31^(n-2) + ... + s[n-1]   modulo 2^32, read as a signed number

where s are UTF-16 code units: a character beyond U+FFFF counts as two (Java Language Specification;
java.lang.String).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import mul

_BITS = 0xFFFFFFFF
_SIGN = 0x80000000
#: Units that are summed at once; longer texts go by pieces of this size.
_PIECE = 256
#: 31^255, ..., 31, 1: the factors of a piece, so that the sum is one call for most texts.
_FACTORS = tuple(pow(31, _PIECE - 1 - i, 1 << 32) for i in range(_PIECE))
_FACTOR_OF_PIECE = pow(31, _PIECE, 1 << 32)


def java_hash(text: str) -> int:
    """`text.hashCode()` in Java: a signed number of 32 bits, 0 for the empty text."""
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
    """What a ConsumeQueue unit says of a message's tag: its hash; 0 for a message without one.

    Different tags may have the same code ("Aa" and "BB"), so whoever filters by it looks at the tag again.
    """
    return java_hash(tag) if tag else 0
