"""What a replica has to read of its log before it can start, and whether it can (design rule 10)."""

from __future__ import annotations

from dledger.node.log_state import LogState
from dledger.store.api import EntryDamaged, LogStore


def first_unreadable(store: LogStore) -> int | None:
    """An entry that has to be repaired before a start, by its index; None if there is none.

    Recovery verifies what is above the checkpoint; the sessions are rebuilt from entries below it, too, and
    where the log is known to be committed has to be readable.
    """
    committed = max(store.base.index, min(store.committed_checkpoint, store.end_index))
    try:
        store.tail_at(committed)
        LogState(max_sessions=1 << 31).rebuild(store, committed, 0)
    except EntryDamaged as error:
        return error.index
    return None
