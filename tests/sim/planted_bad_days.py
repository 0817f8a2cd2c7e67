"""Mistakes of the bad days (rules 9 to 12 and retention), as `planted` has the classic ones of Raft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dledger.core.events import FitnessChanged
from dledger.core.leadership import Leadership
from dledger.core.raft import RaftCore
from dledger.core.values import NO_BASE
from dledger.errors import DLedgerError, StorageError
from dledger.node.members.fetching import LogFetcher
from dledger.node.members.repairer import Repairer
from dledger.replica.admission import AppendAdmission
from dledger.replica.log_state import LogState
from dledger.replica.rebuilding import StateRebuild
from dledger.replica.replica import Replica
from dledger.replica.shell import AppendOutcome
from dledger.rpc.ports import FetchedFrames
from dledger.store import opening, recovery
from dledger.store.api import Damage, Frames
from dledger.store.files import FileSequence
from dledger.store.format.batch import parse_batch
from dledger.store.opening import StoreOpener
from dledger.store.repair import Repair
from dledger.store.scan import LogEndCheck, LogEndState


def recovered_without_fdatasync(patch: pytest.MonkeyPatch) -> None:
    """A restarted node vouches for what a killed process left in the page cache."""
    running: list[bool] = []
    original, sync_file, sync = opening.recover, FileSequence.sync_file, FileSequence.sync

    def recover(*args: Any, **options: Any) -> Any:
        running.append(True)
        try:
            return original(*args, **options)
        finally:
            running.pop()

    def file_synced(files: FileSequence, start: int) -> None:
        if not running:
            sync_file(files, start)

    def synced(files: FileSequence) -> None:
        if not running:
            sync(files)

    patch.setattr(opening, "recover", recover)
    patch.setattr(FileSequence, "sync_file", file_synced)
    patch.setattr(FileSequence, "sync", synced)


def repair_by_truncation(patch: pytest.MonkeyPatch) -> None:
    """What cannot be read at a start is cut, with all that follows, as if it had never been acknowledged."""
    original = recovery.judge_end

    def judge_end(*args: Any, **options: Any) -> LogEndCheck:
        found = original(*args, **options)
        return found._replace(verdict=LogEndState.TORN) if found.verdict is LogEndState.DAMAGED else found

    def cut(self: Any, tail: Any) -> None:
        self._lost = "damaged"
        original_cut(self, tail)

    original_cut = recovery._Recovery._cut
    patch.setattr(recovery, "judge_end", judge_end)
    patch.setattr(recovery._Recovery, "_cut", cut)


def floor_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The end of the log is lost to damage, and the node votes and counts as if it had never been there."""

    def lost_end(self: StoreOpener, base: Any, term: int, index: int, reason: str) -> None:
        state = self.hard_state
        original(self, base, term, index, reason)
        opening.write_hard_state(self._disk, self._paths.hard_state, state)
        self.hard_state = state

    original = StoreOpener._lost_end
    patch.setattr(StoreOpener, "_lost_end", lost_end)


def damage_never_repaired(patch: pytest.MonkeyPatch) -> None:
    """Damage is noted, and stays."""

    async def repair(repairer: Repairer, damage: Damage) -> bool:
        return False

    patch.setattr(Repairer, "_repair", repair)


def damaged_node_leads(patch: pytest.MonkeyPatch) -> None:
    """A node that cannot read part of its log leads on, and followers that need that part wait."""

    def judge_fitness(replica: Replica, now_ms: int) -> None:
        state = replica.admission.state
        may_lead = not (state.needs_image or state.is_rebuilding)
        replica._step(
            FitnessChanged(may_lead, replica.store.has_room_after(replica.log_tail), replica.owner), now_ms
        )

    patch.setattr(Replica, "_judge_fitness", judge_fitness)


def repair_not_compared_with_what_follows(patch: pytest.MonkeyPatch) -> None:
    """Whatever follows the good entry before a damage is taken for what was there: also an entry that another
    member has at this place, and that was never committed."""
    original = Repair.feed

    def feed(repair: Repair, frames: Frames) -> None:
        try:
            original(repair, frames)
        except StorageError:
            size = repair._data.file_size
            repair._add_batch(parse_batch(frames.data, 0, repair.known.before, data_file_size=size))
            repair._fed = repair.known.after

    patch.setattr(Repair, "feed", feed)


def only_committed_entries_given(patch: pytest.MonkeyPatch) -> None:
    """After a power failure nobody knows what is committed before a leader commits something, and a damaged
    node that is needed for that waits for its repair."""
    original = LogFetcher.fetch

    async def fetch(
        fetcher: LogFetcher, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool = False
    ) -> FetchedFrames:
        return await original(fetcher, first_index, last_index, max_bytes)

    patch.setattr(LogFetcher, "fetch", fetch)


def rebuilding_node_keeps_its_vote(patch: pytest.MonkeyPatch) -> None:
    """A node that waits for a repair, or reads its log, answers nobody."""
    original = Replica.receive

    def receive(replica: Replica, now_ms: int, peer: str, message: Any, payload: Any = None) -> None:
        if replica.rebuilding.is_done:
            original(replica, now_ms, peer, message, payload)

    patch.setattr(Replica, "receive", receive)


def pushed_while_rebuilding_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The sessions of a node that was pushed to while it read its log are those of the log that it read."""
    patch.setattr(LogState, "add_noted", lambda *_: None)


def rebuild_outlives_a_truncation(patch: pytest.MonkeyPatch) -> None:
    """What was read of the log before it was cut is taken for what it holds."""
    patch.setattr(StateRebuild, "truncated", lambda *_: None)


def cache_believed_after_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    """The kernel calls the pages of a failed fsync clean: they are read again, and were never written."""
    patch.setattr(opening, "_distrust_cache", lambda *args: None)


def stalled_leader_stays(patch: pytest.MonkeyPatch) -> None:
    """Open for years in well-known systems: a leader with a hanging disk goes on, and commits nothing."""
    patch.setattr(RaftCore, "disk_is_stuck", False)


def stalled_leader_always_goes(patch: pytest.MonkeyPatch) -> None:
    """It also goes if nobody's disk is any better: leadership goes round and round."""
    patch.setattr(Leadership, "_others_disks_work", lambda leadership: True)


def full_disk_told_after_the_push(patch: pytest.MonkeyPatch) -> None:
    """DISK_FULL is the answer to a batch that is in the log, and on its way to the followers."""
    original, has_room_for = AppendAdmission.admit, AppendAdmission.has_room_for
    answered: list[Any] = []

    def room(admission: AppendAdmission, batch: Any) -> bool:
        if not has_room_for(admission, batch):
            answered.append(admission._no_room())
        return True

    def admit(
        admission: AppendAdmission, token: object, bodies: Sequence[bytes], **options: Any
    ) -> AppendOutcome | DLedgerError | None:
        answered.clear()
        outcome = original(admission, token, bodies, **options)
        if answered and outcome is None and admission._waiters:
            admission._waiters[-1].token = None
            return answered[-1]  # type: ignore[no-any-return]
        return outcome

    patch.setattr(AppendAdmission, "has_room_for", room)
    patch.setattr(AppendAdmission, "admit", admit)


def purge_forgotten_over_a_restart(patch: pytest.MonkeyPatch) -> None:
    """What a full disk put off is never done: the stored session table covers the PURGE."""
    original = LogState._load

    def load(state: LogState, stored: bytes, now_ms: int) -> bool:
        loaded = original(state, stored, now_ms)
        state.purge = NO_BASE
        return loaded

    patch.setattr(LogState, "_load", load)


def image_outlives_its_truncation(patch: pytest.MonkeyPatch) -> None:
    """A node that was given a base keeps the sessions of an image that has left its log."""
    original = LogState.truncate_after

    def truncate_after(state: LogState, last_index: int) -> None:
        state._image_mark = None
        original(state, last_index)

    patch.setattr(LogState, "truncate_after", truncate_after)
