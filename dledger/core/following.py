"""The follower's side of replication (docs/guarantees.md rules 6, 7 and 8).

Every push is validated when it is executed. First its term and leader are checked, then its push stream. The
result of an earlier validation is never reused, so a message from a deposed leader has no effect.
"""

from __future__ import annotations

from dledger.core.core_state import CoreState
from dledger.core.effects import ResetLog, StoreEntries, TruncateLog
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    InstallBase,
    PushMessage,
    PushResponse,
    PushType,
    Truncate,
)
from dledger.core.values import MembershipAt, TermRun
from dledger.errors import Code

NO_STREAM = -1

_TYPES: dict[type, PushType] = {
    Append: PushType.APPEND,
    Compare: PushType.COMPARE,
    Truncate: PushType.TRUNCATE,
    Commit: PushType.COMMIT,
    Goodbye: PushType.GOODBYE,
    InstallBase: PushType.INSTALL_BASE,
}


class Follower:
    """The follower's end of the current leader's push stream."""

    def __init__(self, core: CoreState) -> None:
        self.core = core
        self.stream_id = NO_STREAM
        self.acked_index = -1  # last index acknowledged on this stream
        self.said_goodbye = False

    def forget_stream(self) -> None:
        """Stop acknowledging on the old stream, after a new term or a newer stream.

        A follower that only suspected its leader keeps the stream, because the leader has no reason to open
        another or to probe again.
        """
        self.stream_id = NO_STREAM
        self.acked_index = -1
        self.said_goodbye = False

    def is_current_stream(self, stream_id: int) -> bool:
        return stream_id == self.stream_id and not self.said_goodbye

    def on_push(
        self,
        peer: str,
        message: PushMessage,
        chain_matches: bool | None,
        memberships: tuple[MembershipAt, ...],
    ) -> None:
        """`memberships`: configurations among the entries of an APPEND."""
        core = self.core
        if not core.on_leader_contact(peer, message.term):
            if core.stopped is None:
                self._answer(peer, message, Code.EXPIRED_TERM, -1)
            return
        if message.stream_id < self.stream_id:
            return
        if message.stream_id > self.stream_id:
            self.forget_stream()
            self.stream_id = message.stream_id
        match message:
            case Append() if self._follows_the_end(message):
                core.log.append(message.runs, message.last_index, memberships)
                if memberships:
                    core.note_memberships()
                core.emit(StoreEntries(message, message.first_index))
                core.log.verified_index = message.last_index
                self.acknowledge()
            case Append():
                self._append(peer, message, memberships)
            case Compare():
                self._compare(peer, message, chain_matches)
            case Truncate():
                self._truncate(peer, message)
            case InstallBase():
                self._install_base(peer, message)
            case Goodbye():
                self.said_goodbye = True
            case Commit():
                pass
        if core.stopped is None:
            self.learn_committed(message.committed_index)

    def learn_committed(self, leader_committed: int) -> None:
        """Commit up to the leader's index, limited to the prefix verified against the leader's log (rule
        8).
        """
        self.core.commit_to(min(leader_committed, self.core.log.verified_index))

    def acknowledge(self, *, even_if_known: bool = False) -> None:
        """Report the durable index of this log to the leader."""
        core = self.core
        if self.stream_id == NO_STREAM or core.leader_id is None:
            return
        index = min(core.log.durable_index, core.log.verified_index)
        if index > self.acked_index or even_if_known:
            self.acked_index = index
            self._respond(core.leader_id, self.stream_id, Code.SUCCESS, PushType.APPEND, index)

    # -- the pushes ---------------------------------------------------------------------------------------

    def _compare(self, peer: str, message: Compare, chain_matches: bool | None) -> None:
        core, log = self.core, self.core.log
        if message.index < log.base.index:
            self._answer(peer, message, Code.INDEX_LESS_THAN_LOCAL_BEGIN, message.index)
            return
        if not log.holds(message.index, message.index_term):
            self._conflict(peer, message, message.index)
            return
        if chain_matches is False:
            core.fatal(
                Code.DATA_DAMAGED,
                f"entry {message.index} of term {message.index_term} has another history at leader {peer}:"
                " the logs have diverged",
            )
            return
        log.verified_index = max(log.verified_index, message.index)
        self._answer(peer, message, Code.SUCCESS, message.index)
        self.acked_index = -1
        self.acknowledge()

    def _install_base(self, peer: str, message: InstallBase) -> None:
        """Restart the log at the leader's base, which is after the end of this log.

        `base` is committed, so no committed entry is lost.
        """
        core, log, base = self.core, self.core.log, message.base
        if base.index > log.base.index and not log.holds(base.index, base.term):
            if base.index <= core.committed_index:
                core.fatal(
                    Code.INCONSISTENT_INDEX,
                    f"leader {peer} of term {core.term} has another entry at {base.index}, committed here",
                )
                return
            membership = message.membership or log.memberships[-1]
            core.note_memberships(membership)
            log.reset_to(base, membership)
            core.committed_index = max(core.committed_index, base.index)
            core.emit(ResetLog(base, log.generation))
        log.verified_index = max(log.verified_index, min(base.index, log.end_index))
        self._answer(peer, message, Code.SUCCESS, base.index)

    def _truncate(self, peer: str, message: Truncate) -> None:
        log = self.core.log
        stored = log.begin_index <= message.index <= log.end_index
        if stored and log.term_at(message.index) != message.index_term:
            if self._cut(message.index, peer):
                self._answer(peer, message, Code.SUCCESS, message.index - 1)
            return
        # The log has the same entry, or none: the message was delayed or repeated. Report the verified
        # prefix.
        self._answer(peer, message, Code.SUCCESS, log.verified_index)

    def _follows_the_end(self, message: Append) -> bool:
        """The steady state: the log ends exactly at prev_index."""
        log = self.core.log
        return message.prev_index == log.end_index and message.prev_term == log.end_term

    def _append(self, peer: str, message: Append, memberships: tuple[MembershipAt, ...]) -> None:
        log = self.core.log
        if message.prev_index < log.base.index:
            self._answer(peer, message, Code.INDEX_LESS_THAN_LOCAL_BEGIN, message.prev_index)
            return
        if not log.holds(message.prev_index, message.prev_term):
            self._conflict(peer, message, message.prev_index)
            return
        new_from = self._first_difference(message)
        if new_from <= message.last_index:
            if new_from <= log.end_index and not self._cut(new_from, peer):
                return
            new = [known for known in memberships if known.index >= new_from]
            log.append(_runs_from(message.runs, new_from), message.last_index, new)
            if new:
                self.core.note_memberships()
            self.core.emit(StoreEntries(message, new_from))
        log.verified_index = max(log.verified_index, message.last_index)
        self.acknowledge(even_if_known=new_from > message.last_index)

    def cut_by(self, message: Append | Truncate) -> int | None:
        """Return the first index that this message would delete, or None."""
        log = self.core.log
        if message.term < self.core.term:
            return None
        if isinstance(message, Truncate):
            stored = log.begin_index <= message.index <= log.end_index
            return message.index if stored and log.term_at(message.index) != message.index_term else None
        if message.first_index > log.end_index or message.prev_index < log.base.index:
            return None
        if not log.holds(message.prev_index, message.prev_term):
            return None
        new_from = self._first_difference(message)
        return new_from if new_from <= min(message.last_index, log.end_index) else None

    def _first_difference(self, message: Append) -> int:
        """Return the first index of the message whose term differs from the log's, or last_index + 1."""
        log = self.core.log
        shared_end = min(message.last_index, log.end_index)
        for position, run in enumerate(message.runs):
            following = message.runs[position + 1 : position + 2]
            run_end = min(following[0].first_index - 1 if following else message.last_index, shared_end)
            if run.first_index > run_end:
                break
            for ours in log.runs_between(run.first_index, run_end):
                if ours.term != run.term:
                    return ours.first_index
        return shared_end + 1

    def _cut(self, index: int, peer: str) -> bool:
        """Delete the entry at `index` and all later ones. If one of them is committed, emit Fatal and return
        False."""
        core = self.core
        if index <= core.committed_index:
            core.fatal(
                Code.INCONSISTENT_INDEX,
                f"leader {peer} of term {core.term} would truncate at {index}, but {core.committed_index} is"
                " committed here: a committed entry is missing from the leader's log",
            )
            return False
        core.log.truncate_after(index - 1)
        core.emit(TruncateLog(index - 1, core.log.generation))
        core.note_memberships()
        return True

    # -- responses ----------------------------------------------------------------------------------------

    def _conflict(self, peer: str, message: Compare | Append, index: int) -> None:
        """Reject the entry at `index`, with the conflicting term and its first index (rule 7)."""
        core, log = self.core, self.core.log
        if index <= core.committed_index:
            core.fatal(
                Code.INCONSISTENT_INDEX,
                f"leader {peer} of term {core.term} has another entry at {index}, which is committed here",
            )
            return
        if index > log.end_index:
            self._answer(peer, message, Code.INCONSISTENT_STATE, index, -1, log.end_index + 1)
        else:
            first = log.first_index_of_term_at(index)
            self._answer(peer, message, Code.INCONSISTENT_STATE, index, log.term_at(index), first)

    def _answer(
        self,
        peer: str,
        message: PushMessage,
        code: Code,
        index: int,
        conflict_term: int = -1,
        conflict_index: int = -1,
    ) -> None:
        type_ = _TYPES[type(message)]
        self._respond(peer, message.stream_id, code, type_, index, conflict_term, conflict_index)

    def _respond(
        self,
        peer: str,
        stream_id: int,
        code: Code,
        type_: PushType,
        index: int,
        conflict_term: int = -1,
        conflict_index: int = -1,
    ) -> None:
        core = self.core
        barred = core.hard_state.is_barred
        core.send(
            peer,
            PushResponse(
                core.term,
                core.node_id,
                stream_id,
                code,
                type_,
                index,
                core.log.begin_index,
                core.log.end_index,
                conflict_term,
                conflict_index,
                not barred,
                barred and not core.hard_state.rejoining,
                core.has_room,
                core.owner,
            ),
        )


def _runs_from(runs: tuple[TermRun, ...], first_index: int) -> list[TermRun]:
    """Return the runs starting at first_index. The first run is shortened to start there."""
    cut: list[TermRun] = []
    for run in runs:
        if run.first_index <= first_index:
            cut = [TermRun(run.term, first_index)]
        else:
            cut.append(run)
    assert cut
    return cut
