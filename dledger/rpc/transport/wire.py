"""Pieces of protobuf's wire format, for the few messages whose bytes are put together by hand."""

from __future__ import annotations

VARINT, BYTES = 0, 2  # kinds of fields
_NO_KIND = 7  # there is none of this number


def varint(value: int) -> bytes:
    """A number that is not negative."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def tag(message: type, field: str) -> bytes:
    """What goes before the length of a field of bytes or of a message."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]
    return varint(number << 3 | BYTES)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends). What is cut or endless reads as a field that nobody knows."""
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return _NO_KIND, len(data)
