"""Reads the bodies of committed entries by position, on any thread, for programs that store positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, InvalidRequest, ReadFailed
from dledger.infra.loops.readable import ReadableLog
from dledger.store.api import EntryDamaged, LogStore

MAX_BYTES = 64 << 20  # total size of the bodies in one call


class BodyReader:
    """Reads bodies. The readable end never decreases, so it is updated only when a read fails."""

    def __init__(self, store: LogStore, readable: ReadableLog, on_damage: Callable[[int], None]) -> None:
        """`on_damage` is called on the reading thread with an unreadable index."""
        self._store = store
        self._readable = readable
        self._on_damage = on_damage
        self._end_pos = 0

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """See NodeServer.read_bodies."""
        if len(spans) > 1 and sum([size for _, size in spans]) > MAX_BYTES:
            raise InvalidRequest(f"the bodies requested in one call exceed the limit of {MAX_BYTES} bytes")
        end_pos = self._end_pos
        try:
            try:
                return self._store.read_bodies(spans, end_pos)
            except ReadFailed as error:
                self._update_end()
                # Another thread may have updated the end since this call started.
                if error.code is not Code.INDEX_OUT_OF_RANGE or self._end_pos <= end_pos:
                    raise
                return self._store.read_bodies(spans, self._end_pos)
        except EntryDamaged as error:
            self._on_damage(error.index)
            raise

    def index_at(self, pos: int) -> int:
        """See NodeServer.index_at_pos."""
        try:
            index = self._store.index_at_pos(pos)
        except EntryDamaged as error:
            self._on_damage(error.index)
            raise
        if index > self._readable.index:
            raise ReadFailed(f"the entry at position {pos} is not readable yet")
        return index

    def read_at(self, pos: int) -> bytes:
        """See NodeServer.body_at."""
        size = self._store.entry(self.index_at(pos)).size - ENTRY_HEADER_SIZE
        return self.read([(pos, size)])[0]

    def _update_end(self) -> None:
        """Update the readable end."""
        self._end_pos = max(self._end_pos, self._store.tail_at(self._readable.index).pos)
