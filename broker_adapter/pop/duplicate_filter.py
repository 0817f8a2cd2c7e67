"""The ids of the messages sent last, and the position of each: duplicates are recognised by them."""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

#: Part of the state's rules, as every node must forget alike.
MAX_IDS = 200_000
MAX_AGE_MS = 600_000

_ID = struct.Struct(">16siqq")


class Position(NamedTuple):
    """queue_id -1: deferred, under the number `queue_offset`."""

    queue_id: int
    queue_offset: int


class DuplicateFilter:
    """Kept packed, each as the image has it: an image is one join."""

    def __init__(self, image: bytes = b"") -> None:
        """ValueError if `image` is not what `save` gives."""
        if len(image) % _ID.size:
            raise ValueError(f"{len(image)} bytes of ids")
        self._order: deque[bytes] = deque(image[at : at + _ID.size] for at in range(0, len(image), _ID.size))
        self._by_digest = {packed[:16]: packed for packed in self._order}

    def __len__(self) -> int:
        return len(self._order)

    def find(self, digest: bytes) -> Position | None:
        packed = self._by_digest.get(digest)
        return None if packed is None else Position(*_ID.unpack(packed)[1:3])

    def put(self, digest: bytes, queue_id: int, queue_offset: int, stamp_ms: int) -> None:
        """The newest one; those that are too old or too many are forgotten."""
        packed = _ID.pack(digest, queue_id, queue_offset, stamp_ms)
        self._order.append(packed)
        self._by_digest[digest] = packed
        while len(self._order) > MAX_IDS or _ID.unpack(self._order[0])[3] < stamp_ms - MAX_AGE_MS:
            oldest = self._order.popleft()
            if self._by_digest.get(oldest[:16]) is oldest:
                del self._by_digest[oldest[:16]]

    def without(self, prefix: bytes) -> DuplicateFilter:
        """Without those whose digest begins so."""
        kept = [packed for packed in self._order if not packed.startswith(prefix)]
        return self if len(kept) == len(self._order) else DuplicateFilter(b"".join(kept))

    def save(self) -> bytes:
        return b"".join(self._order)
