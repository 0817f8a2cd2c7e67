"""What a replica has to read of its log before it can start, and whether it can (design rule 10)."""

from __future__ import annotations

from dledger.node.log_state import LogState
from dledger.store.api import EntryDamaged, LogStore


def first_unreadable(store: LogStore, begin_behind: int = -1) -> int | None:
    """An entry that has to be repaired before a start, by its index; None if there is none.

    Recovery verifies what is above the checkpoint; the sessions are rebuilt from entries below it, too.
    """
    state, committed = LogState(max_sessions=1 << 31), store.committed_checkpoint
    try:
        if begin_behind < 0:
            state.rebuild(store, committed, 0)
        else:
            state.rebuild_behind(begin_behind, store, committed, 0)
    except EntryDamaged as error:
        return error.index
    return None
