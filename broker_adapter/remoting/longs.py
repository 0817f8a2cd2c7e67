"""Numbers in the fields of a header: texts of Java's longs."""

from __future__ import annotations

from typing import Final

#: All that a long may be.
LONGS: Final = range(-(1 << 63), 1 << 63)
_MAX_DIGITS = 19


def long_of(text: str) -> int | None:
    """None: it is none."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        return None
    number = int(text)
    return number if number in LONGS else None
