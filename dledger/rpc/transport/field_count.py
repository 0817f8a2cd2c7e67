"""How many fields a request has, found out before it is parsed.

Parsing costs by the field, 0.6 us each with the interpreter locked, so a thread would not help: 1 MiB of
empty entries of an acknowledgement hold up the event loop for a quarter of a second. The count ends at a
limit.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

#: Messages below this size are parsed without a look: 10 ms at most.
SMALL_BYTES: Final = 64 << 10
#: Fields of one request, those of messages in it included: 16 for each of 1,024 handles.
MAX_FIELDS: Final = 1 << 14

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)

#: By field number: the fields of the message in it.
_Table: TypeAlias = "dict[int, Any]"


def has_too_many_fields(message_type: type[Message], data: bytes, most: int = MAX_FIELDS) -> bool:
    """False also for bytes that are no message: the parser says so."""
    if len(data) < SMALL_BYTES:
        return False
    left, at, end = most, 0, len(data)
    table = _table_of(message_type.DESCRIPTOR)
    ends: list[tuple[int, _Table]] = []  # where messages around this one end, and their fields
    try:
        while True:
            while at >= end:
                if not ends:
                    return False
                end, table = ends.pop()
            if not left:
                return True
            left -= 1
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, at, tag & 0x7F)
            kind = tag & 7
            if kind == _BYTES:
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = _varint(data, at, size & 0x7F)
                inner = table.get(tag >> 3)
                if inner is None or not size:
                    at += size
                else:
                    ends.append((end, table))
                    end, table = min(end, at + size), inner
            elif kind == _VARINT:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            elif kind not in (_GROUP, _END_GROUP):  # what is in a group counts as if it was beside it
                return False
    except IndexError:
        return False


def _varint(data: bytes, at: int, value: int) -> tuple[int, int]:
    """The rest of one whose first seven bits are known, and where it ends. IndexError."""
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError("a number of more than 10 bytes")


@cache
def _table_of(descriptor: Descriptor) -> _Table:
    table: _Table = {}
    _fill(descriptor, table, {descriptor.full_name: table})
    return table


def _fill(descriptor: Descriptor, table: _Table, known: dict[str, _Table]) -> None:
    """Types may contain themselves."""
    for field in descriptor.fields:
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        inner = field.message_type
        assert inner is not None
        if inner.full_name not in known:
            known[inner.full_name] = {}
            _fill(inner, known[inner.full_name], known)
        table[field.number] = known[inner.full_name]
