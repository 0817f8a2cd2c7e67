"""Committed entries for a state machine: bytes of the log, taken apart where they are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.node.machine.state_machine import AppliedEntry
from dledger.store.format.batch import MAGIC_NORMAL, DamagedBatch, unpack_begin


class EntryRun(Sequence[AppliedEntry]):
    """The entries of users in `pieces`: whole entries as the log has them, each with its header of 48 bytes,
    verified; entries of the log itself among them. Who takes many at a time may read the pieces instead."""

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.pieces = pieces

    def __bool__(self) -> bool:
        return any(map(_has_users, self.pieces))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AppliedEntry]:
        return iter(self._entries)

    @overload
    def __getitem__(self, at: int) -> AppliedEntry: ...

    @overload
    def __getitem__(self, at: slice) -> list[AppliedEntry]: ...

    def __getitem__(self, at: int | slice) -> AppliedEntry | list[AppliedEntry]:
        return self._entries[at]

    @cached_property
    def _entries(self) -> list[AppliedEntry]:
        """The hot path of applying: one walk, and no copies but that of each body. DamagedBatch if the pieces
        are no entries."""
        entries: list[AppliedEntry] = []
        for piece in self.pieces:
            at, end = 0, len(piece)
            while at < end:
                magic, size, index, term, pos = _begin(piece, at)
                if magic == MAGIC_NORMAL:
                    entries.append(
                        AppliedEntry(index, term, bytes(piece[at + ENTRY_HEADER_SIZE : at + size]), pos)
                    )
                at += size
        return entries


def _begin(piece: bytes | memoryview, at: int) -> tuple[int, int, int, int, int]:
    """Magic, size, index, term and position of the entry at `at`. DamagedBatch if there is none."""
    left = len(piece) - at
    if left < ENTRY_HEADER_SIZE:
        raise DamagedBatch("cut in a header", index=-1, pos=-1)
    found: tuple[int, int, int, int, int] = unpack_begin(piece, at)
    if not ENTRY_HEADER_SIZE <= found[1] <= left:
        raise DamagedBatch(f"a size of {found[1]} bytes", index=found[2], pos=found[4])
    return found


def _has_users(piece: bytes | memoryview) -> bool:
    at, end = 0, len(piece)
    while at < end:
        magic, size, _, _, _ = _begin(piece, at)
        if magic == MAGIC_NORMAL:
            return True
        at += size
    return False
