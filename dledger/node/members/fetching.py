"""Reads of entries for other members that repair their log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from dledger.errors import ReadFailed
from dledger.infra.loops.readable import ReadableLog
from dledger.rpc.ports import FetchedFrames
from dledger.store.api import EntryDamaged, Frames, LogStore


class LogFetcher:
    """Implements dledger.node.members.inbound.FetchEntries.

    If `readers` is None, the loop's default executor reads. `on_damage` is called on the loop with the index
    of an unreadable entry.
    """

    def __init__(
        self,
        store: LogStore,
        readable: ReadableLog,
        readers: Executor | None,
        on_damage: Callable[[int], None],
    ) -> None:
        self._store = store
        self._readable = readable
        self._readers = readers
        self._on_damage = on_damage

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool = False
    ) -> FetchedFrames:
        """Return whole committed batches; with `uncommitted`, durable ones.

        Only another member's repair may request uncommitted entries. These entries may still be truncated, so
        the requester must prove that they are the entries that it had.
        """
        if not uncommitted:
            last_index = min(last_index, self._readable.index)
            if first_index > last_index:
                raise ReadFailed(f"entry {first_index} is not committed on this node")
        loop = asyncio.get_running_loop()
        try:
            frames = await loop.run_in_executor(
                self._readers, read_for_repair, self._store, first_index, last_index, max_bytes
            )
        except EntryDamaged as error:
            self._on_damage(error.index)
            raise
        return FetchedFrames(frames.first_index, frames.last_index, bytes(frames.data))


def read_for_repair(store: LogStore, first_index: int, last_index: int, max_bytes: int) -> Frames:
    """Read whole batches starting at `first_index`, durable and verified. May be called on any thread.

    They need not be committed, so the requester must prove that they are the entries it had. It may have
    another batch there than this log. Raises ReadFailed and EntryDamaged.
    """
    last_index = min(last_index, store.durable_index)
    if first_index > last_index:
        raise ReadFailed(f"entry {first_index} is not durable on this node")
    before = first_index - 1
    is_certain = before == store.base.index or any(damage.last_index == before for damage in store.damages)
    if not is_certain and not store.entry(before).ends_batch:
        raise ReadFailed(f"entry {first_index} is not the first of a batch on this node")
    return store.read(first_index, last_index, max_bytes, whole_batches=True)
