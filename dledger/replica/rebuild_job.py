"""Rebuilds log state on a reader thread."""

from __future__ import annotations

from typing import NamedTuple

from dledger.errors import ReadFailed
from dledger.replica.log_state import LogState
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.format.internal import Internal


class RebuildResult(NamedTuple):
    """The state of a log up to `upto`, the end of a batch."""

    state: LogState
    unfinished: list[Internal]  # committed marks that a crash may have left unexecuted
    upto: int


class RebuildJob(NamedTuple):
    """Reads the log once. Run it on a thread other than the replica's."""

    number: int
    upto: int
    # Skip entries up to this index, which are damaged and purged by other members. -1 means to skip none.
    behind: int
    so_far: RebuildResult | None  # continue this result

    def run(self, store: LogStore, max_sessions: int, now_ms: int) -> RebuildResult | EntryDamaged | None:
        """Rebuild the state. Returns None if the log has changed meanwhile. Raises StorageError."""
        try:
            if self.so_far is not None:
                self.so_far.state.read_on(store, self.so_far.upto, self.upto, now_ms)
                return self.so_far._replace(upto=self.upto)
            state = LogState(max_sessions=max_sessions)
            if self.behind < 0:
                return RebuildResult(state, state.rebuild(store, self.upto, now_ms), self.upto)
            state.rebuild_behind(self.behind, store, self.upto, now_ms)
            return RebuildResult(state, [], self.upto)
        except EntryDamaged as error:
            return error
        except ReadFailed:
            return None
