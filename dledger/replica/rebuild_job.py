"""Reading a log to rebuild what a replica derives from it: the work of a thread, and what comes of it."""

from __future__ import annotations

from typing import NamedTuple

from dledger.errors import ReadFailed
from dledger.replica.log_state import LogState
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.format.internal import Internal


class Rebuilt(NamedTuple):
    """The state of a log up to `upto`, the end of a batch."""

    state: LogState
    unfinished: list[Internal]  # committed marks whose work a crash may have prevented
    upto: int


class RebuildJob(NamedTuple):
    """Read the log, on any thread but that of the replica."""

    number: int
    upto: int
    behind: int  # entries up to here are damaged, and were purged by others; -1: none
    so_far: Rebuilt | None  # go on from there

    def run(self, store: LogStore, max_sessions: int, now_ms: int) -> Rebuilt | EntryDamaged | None:
        """None: the log has changed meanwhile. StorageError: the disk cannot be read."""
        try:
            if self.so_far is not None:
                self.so_far.state.read_on(store, self.so_far.upto, self.upto, now_ms)
                return self.so_far._replace(upto=self.upto)
            state = LogState(max_sessions=max_sessions)
            if self.behind < 0:
                return Rebuilt(state, state.rebuild(store, self.upto, now_ms), self.upto)
            state.rebuild_behind(self.behind, store, self.upto, now_ms)
            return Rebuilt(state, [], self.upto)
        except EntryDamaged as error:
            return error
        except ReadFailed:
            return None
