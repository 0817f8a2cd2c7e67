"""Entries out of the bytes they have on disk (docs/formats.md): the fast way of reading.

The layout is the store's; it is read here on its own, so that a client needs nothing of a store and checks
what a server sends independently of it.
"""

from __future__ import annotations

import struct

from zlib_ng.zlib_ng import crc32

from dledger.client.values import Entry
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, StorageError

#: magic, size, index, term, pos, channel, chain_crc, body_crc, body_size; big endian.
_unpack_header = struct.Struct(">iiqqqiIIi").unpack_from
MAGIC_NORMAL = 1


def decode(frames: bytes, expected_index: int) -> tuple[list[Entry], int]:
    """(the users' entries from `expected_index` on, the index after the last entry).

    Checks what would show as wrong data to a user: that indexes follow each other without a gap (-1: start
    anywhere), that no entry is cut, and each body's checksum. Raises StorageError (DATA_DAMAGED).
    """
    entries: list[Entry] = []
    at, end, next_index = 0, len(frames), expected_index
    while at < end:
        if end - at < ENTRY_HEADER_SIZE:
            raise _damaged(next_index, "cut in a header")
        magic, size, index, term, pos, channel, chain_crc, body_crc, body_size = _unpack_header(frames, at)
        after = at + size
        if size != body_size + ENTRY_HEADER_SIZE or after > end or body_size < 0:
            raise _damaged(next_index, f"size {size}, body {body_size}, {end - at} bytes left")
        if index != next_index:
            if index > next_index >= 0:
                raise _damaged(next_index, f"missing: the next entry sent is {index}")
            if next_index >= 0:  # a whole batch was sent, of which the first entries were not asked for
                at = after
                continue
        if magic == MAGIC_NORMAL:
            body = frames[at + ENTRY_HEADER_SIZE : after]
            # Entries of the original carry no checksums: all three fields are 0.
            if crc32(body) != body_crc and (body_crc or chain_crc or channel):
                raise _damaged(index, "body_crc does not match the body")
            entries.append(Entry(index, term, pos, body))
        next_index = index + 1
        at = after
    return entries, next_index


def _damaged(index: int, what: str) -> StorageError:
    return StorageError(f"entry {index} as sent by the server: {what}", code=Code.DATA_DAMAGED)
