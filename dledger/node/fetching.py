"""What a member gives to another one that repairs its log."""

from __future__ import annotations

from dledger.errors import ReadFailed
from dledger.store.api import Frames, LogStore


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
