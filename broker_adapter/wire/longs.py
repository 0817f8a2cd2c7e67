"""Java longs as text, in header fields and table keys."""

from __future__ import annotations

from typing import Final

#: The range of a long.
LONGS: Final = range(-(1 << 63), 1 << 63)
_MAX_DIGITS = 19


def long_of(text: str) -> int | None:
    """Parse a long. Return None if the text is not one."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        return None
    number = int(text)
    return number if number in LONGS else None
