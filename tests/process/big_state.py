"""A state machine with a large state that takes no memory, for the tests."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from dledger import AppliedEntry, ImageRefused

_COUNT = struct.Struct(">q")
BLOCK_BYTES = 256 << 10


class BigState:
    """Implements dledger.SnapshotStateMachine: the number of entries, and bytes that follow from it.

    The environment variable BIG_STATE_BYTES is the size of the bytes.
    """

    def __init__(self) -> None:
        self.count = 0

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self.count += len(entries)

    def save(self) -> Iterable[bytes]:
        return self.snapshot()

    def snapshot(self) -> Iterator[bytes]:
        return self._pieces(self.count)

    @staticmethod
    def _pieces(count: int) -> Iterator[bytes]:
        yield _COUNT.pack(count)
        for number in range(int(os.environ["BIG_STATE_BYTES"]) // BLOCK_BYTES):
            yield block(count, number)

    def load(self, chunks: Iterable[bytes]) -> None:
        self.count, rest, number = 0, b"", -1
        for chunk in chunks:
            rest += chunk
            if number < 0 and len(rest) >= _COUNT.size:
                (self.count,) = _COUNT.unpack_from(rest)
                rest, number = rest[_COUNT.size :], 0
            while len(rest) >= BLOCK_BYTES:
                if rest[:BLOCK_BYTES] != block(self.count, number):
                    raise ImageRefused(f"block {number} is not that of {self.count} entries")
                rest, number = rest[BLOCK_BYTES:], number + 1
        if rest:
            raise ImageRefused(f"{len(rest)} bytes follow the last block")


def block(count: int, number: int) -> bytes:
    seed = blake2b(b"%d %d" % (count, number), digest_size=64).digest()
    return seed * (BLOCK_BYTES // len(seed))
