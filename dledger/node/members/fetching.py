"""What a member gives to another one that repairs its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from dledger.errors import ReadFailed
from dledger.node.loop.readable import ReadableLog
from dledger.rpc.ports import FetchedFrames
from dledger.store.api import EntryDamaged, Frames, LogStore


class LogFetcher:
    """Implements dledger.node.members.inbound.Fetch. `readers` None: the loop has threads of its own.
    `on_damage` is called on the loop with an index that cannot be read."""

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
        """Whole batches, committed; `uncommitted`, for another member's repair only: durable ones, which may
        yet be taken back, and which that member has to prove to be those that it had."""
        if not uncommitted:
            last_index = min(last_index, self._readable.index)
            if first_index > last_index:
                raise ReadFailed(f"entry {first_index} is not committed here")
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
    """Whole batches from `first_index` on, durable and verified. Any thread. ReadFailed, EntryDamaged.

    They need not be committed, so the asker has to prove that they are the ones that it had. It may have
    another batch there than this log has.
    """
    last_index = min(last_index, store.durable_index)
    if first_index > last_index:
        raise ReadFailed(f"entry {first_index} is not durable here")
    before = first_index - 1
    is_certain = before == store.base.index or any(known.last_index == before for known in store.damages)
    if not is_certain and not store.entry(before).ends_batch:
        raise ReadFailed(f"no batch begins at entry {first_index} here")
    return store.read(first_index, last_index, max_bytes, whole_batches=True)
