"""Elements of protobuf's wire format, for the few messages that this project encodes itself."""

from __future__ import annotations

VARINT, BYTES = 0, 2  # wire types
_NO_KIND = 7  # not a valid wire type


def varint(value: int) -> bytes:
    """Encode a non-negative integer."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def tag(message: type, field: str) -> bytes:
    """Return the bytes before the length of a bytes or message field."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]
    return varint(number << 3 | BYTES)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint. Returns (value, its end). Truncated or unterminated input is decoded as a field of an
    unknown type."""
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return _NO_KIND, len(data)
