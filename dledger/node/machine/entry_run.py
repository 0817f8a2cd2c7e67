"""Committed entries for a state machine, decoded from log bytes on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.node.machine.state_machine import AppliedEntry
from dledger.store.format.batch import MAGIC_NORMAL, DamagedBatch, unpack_begin


class EntryRun(Sequence[AppliedEntry]):
    """User entries in `pieces`: whole, verified entries of the log, each with its 48-byte header.

    Internal entries among them are skipped. Machines that process many entries at a time may use the pieces
    directly.
    """

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.pieces = pieces

    def __bool__(self) -> bool:
        return any(map(_has_users, self.pieces))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AppliedEntry]:
        return iter(self._entries)

    @overload
    def __getitem__(self, index: int) -> AppliedEntry: ...

    @overload
    def __getitem__(self, index: slice) -> list[AppliedEntry]: ...

    def __getitem__(self, index: int | slice) -> AppliedEntry | list[AppliedEntry]:
        return self._entries[index]

    @cached_property
    def _entries(self) -> list[AppliedEntry]:
        """Decode the entries in one pass and copy only the bodies, because this is the hot path of applying.

        Raises DamagedBatch if the pieces are not entries.
        """
        entries: list[AppliedEntry] = []
        for piece in self.pieces:
            offset, end = 0, len(piece)
            while offset < end:
                magic, size, index, term, pos = _begin(piece, offset)
                if magic == MAGIC_NORMAL:
                    entries.append(
                        AppliedEntry(
                            index, term, bytes(piece[offset + ENTRY_HEADER_SIZE : offset + size]), pos
                        )
                    )
                offset += size
        return entries


def _begin(piece: bytes | memoryview, offset: int) -> tuple[int, int, int, int, int]:
    """Decode magic, size, index, term and position of an entry. Raises DamagedBatch if invalid."""
    remaining = len(piece) - offset
    if remaining < ENTRY_HEADER_SIZE:
        raise DamagedBatch("the header is truncated", index=-1, pos=-1)
    header: tuple[int, int, int, int, int] = unpack_begin(piece, offset)
    if not ENTRY_HEADER_SIZE <= header[1] <= remaining:
        raise DamagedBatch(f"the header has the invalid size {header[1]}", index=header[2], pos=header[4])
    return header


def _has_users(piece: bytes | memoryview) -> bool:
    offset, end = 0, len(piece)
    while offset < end:
        magic, size, _, _, _ = _begin(piece, offset)
        if magic == MAGIC_NORMAL:
            return True
        offset += size
    return False
