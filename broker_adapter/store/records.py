"""Reads of a record what dispatching needs: every message of the log passes here once, on every node."""

from __future__ import annotations

import struct

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.format.message import Version, decode
from broker_adapter.format.sys_flag import HOST_BITS
from broker_adapter.store.routes import Route, Routes
from dledger import AppliedEntry

#: Of a record of V1 with IPv4 hosts: size, magic, queue id, queue offset, physical offset, sys_flag, store
#: timestamp, size of the body.
_FIXED = struct.Struct(">II4xi4xqqi16xq20xi")
_unpack = _FIXED.unpack_from
_BODY_AT = _FIXED.size
_V1 = int(Version.V1)
#: Which bodies are too large was asked when the message was stored.
_ANY_BODY = 1 << 30

#: Route, queue id, queue offset, size of the record, sys_flag, store timestamp (ms).
Placed = tuple[Route, int, int, int, int, int]


def place(entry: AppliedEntry, physical_offset: int, routes: Routes) -> Placed:
    """Where the record that is an entry's body, and lies at this offset, belongs.

    StoredDataDamaged if it is none, or not the one that a broker stored there; its crc is the log's business.
    """
    body = entry.body
    if len(body) < _BODY_AT:
        raise StoredDataDamaged(Status.RECORD_TRUNCATED, f"{len(body)} bytes are no record")
    size, magic, queue_id, queue_offset, said_offset, sys_flag, stamp, body_size = _unpack(body)
    if magic == _V1 and size == len(body) and body_size >= 0 and not sys_flag & HOST_BITS:
        tail = body[_BODY_AT + body_size :]
        route = routes.get(tail) or routes.of_tail(tail)
    else:
        message = decode(body, max_body_bytes=_ANY_BODY, verify_body=False)
        route = routes.of_message(message)
        stamp = message.store_timestamp  # after hosts of other sizes
    if said_offset != physical_offset or queue_id < 0 or queue_offset < 0:
        raise StoredDataDamaged(
            Status.RECORD_FIELD,
            f"queue {queue_id}, offset {queue_offset}, physical offset {said_offset} at {physical_offset}",
        )
    return route, queue_id, queue_offset, size, sys_flag, stamp


def body_of(entry: AppliedEntry) -> bytes:
    """The body of the message in an entry that has a place."""
    return decode(entry.body, max_body_bytes=_ANY_BODY, verify_body=False).body
