"""Checks pushes against the bytes of the replica's own log before the core processes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.core.log_view import LogView
from dledger.core.messages import Append, Compare, Message, PushResponse, PushType, Truncate
from dledger.core.raft import RaftCore
from dledger.core.values import MembershipAt, Tail, TermRun
from dledger.errors import Code
from dledger.replica.admission import AppendAdmission
from dledger.store.api import Damage, EntryDamaged, LogStore
from dledger.store.format.batch import Batch, DamagedBatch, parse_batches
from dledger.store.format.internal import membership_in

TailAt = Callable[[int], Tail]
Payload = bytes | memoryview | None


class PushTails:
    """Ends of batches pushed by a leader.

    They replace known damaged entries of this log, because entries with the same index and term are equal
    (rule 6).
    """

    def __init__(self, log: LogView, store: LogStore, tail_at: TailAt) -> None:
        """`tail_at` reads the bytes of this log."""
        self._log = log
        self._store = store
        self.own_tail_at = tail_at
        self.data_file_size = store.data_file_size
        self._last: Tail | None = None  # end of the newest push
        self.incoming: list[Batch] = []  # the push being received

    def received(self) -> None:
        if self.incoming:
            self._last = self.incoming[-1].tail
            self.incoming = []

    def of_push(self, index: int) -> Tail | None:
        for batch in self.incoming:
            if batch.last_index == index:
                return batch.tail
        last = self._last
        return last if last and last.index == index and self._log.holds(index, last.term) else None

    def at(self, index: int, *, on_disk: bool = False) -> Tail:
        """Return the tail at `index`, from this log or the last push.

        Raises EntryDamaged if neither has it, or if the damage is not recorded yet: it must be recorded
        before anything depends on it. `on_disk`: bypass the cache.
        """
        try:
            return (self._store.tail_at if on_disk else self.own_tail_at)(index)
        except EntryDamaged as error:
            tail = self.of_push(index)
            if tail is None or damage_met(self._store, error) is None:
                raise
            return tail


def lacks_room(
    core: RaftCore, admission: AppendAdmission, store: LogStore, incoming: Sequence[Batch]
) -> bool:
    """Return True if a push may not fit on the disk. A follower must accept only entries that it can store.

    Compares positions, not byte counts: batches queued for the disk thread take space, too.
    """
    if not incoming or incoming[-1].last_index <= core.log.end_index:
        return False
    last = incoming[-1]
    if admission.has_room_for(last):
        return False
    # Entries assigned before the leader knew of the full disk may use the reserve. Otherwise an image and a
    # purge that follow them, and that would free space, could never be stored.
    return not store.could_take(last.end_pos, last.last_index)


def read_push(
    core: RaftCore, pushed: PushTails, message: Append | Compare | Truncate, payload: Payload
) -> bool | None:
    """Return True if the chains match (COMPARE). For an APPEND, set `pushed.incoming` to its batches.

    Raises DamagedBatch if the bytes are invalid, EntryDamaged if local entries are unreadable.
    """
    if isinstance(message, Compare):
        return chain_matches(core.log, pushed.own_tail_at, message)
    if isinstance(message, Append):
        pushed.incoming = parse_push(core, pushed.at, message, payload, data_file_size=pushed.data_file_size)
    check_cut(core, pushed, message)
    return None


def chain_matches(log: LogView, tail_at: TailAt, message: Compare) -> bool | None:
    """Compare histories. Logs that contain the same (index, term) must be equal up to that entry (rule 6)."""
    if message.index <= log.base.index or not log.holds(message.index, message.index_term):
        return None
    return tail_at(message.index).chain_crc == message.chain_crc


def damage_met(store: LogStore, error: DamagedBatch | EntryDamaged) -> Damage | None:
    """Return the damage of this log that caused the error. Returns None if it is not recorded yet, or if the
    bytes of the push are damaged and not this log."""
    if not isinstance(error, EntryDamaged):
        return None
    return next((d for d in store.damages if d.first_index <= error.index <= d.last_index), None)


def parse_push(
    core: RaftCore,
    tail_at: TailAt,
    message: Append,
    payload: Payload,
    *,
    data_file_size: int,
) -> list[Batch]:
    """Verify the bytes of an Append, unless the core will ignore them. Raises DamagedBatch."""
    log, prev_index = core.log, message.prev_index
    if message.term < core.term or not log.holds(prev_index, message.prev_term):
        return []  # an old leader, or a conflict: the core needs no bytes to respond
    if prev_index < log.base.index:
        return []
    tail = tail_at(prev_index)
    batches = parse_batches(payload or b"", tail, data_file_size=data_file_size)
    if not batches or batches[-1].last_index != message.last_index:
        raise DamagedBatch(
            f"the batches do not end at the announced index {message.last_index}",
            index=message.first_index,
            pos=tail.pos,
        )
    term, runs = -1, []
    for batch in batches:
        if batch.term != term:
            term = batch.term
            runs.append(TermRun(term, batch.first_index))
    if tuple(runs) != message.runs:
        raise DamagedBatch(
            "the terms of the batches differ from those announced", index=message.first_index, pos=tail.pos
        )
    return batches


def memberships_of(batches: Sequence[Batch]) -> tuple[MembershipAt, ...]:
    """Return the configurations in these batches."""
    found: list[MembershipAt] = []
    for batch in batches:
        if batch.head and (membership := membership_in(batch.head)) is not None:
            found.append(MembershipAt(batch.first_index, batch.term, membership))
    return tuple(found)


def check_cut(core: RaftCore, pushed: PushTails, message: Append | Truncate) -> None:
    """Check that the entry before a truncation is readable or was just pushed.

    Raises EntryDamaged otherwise, because truncation needs the end of that entry.
    """
    cut = core.following.cut_by(message)
    if cut is not None:
        # The disk thread will read from the store, not from the cache.
        pushed.at(cut - 1, on_disk=cut - 1 <= core.log.durable_index)


def refusal(core: RaftCore, message: Message, code: Code, damage: Damage | None = None) -> PushResponse:
    """Refuse a push. After a pause the leader compares the logs again, before the refused index or the
    damage."""
    assert isinstance(message, Append | Compare | Truncate)
    log = core.log
    is_probe = isinstance(message, Compare)
    return PushResponse(
        core.term,
        core.node_id,
        message.stream_id,
        code,
        PushType.COMPARE if is_probe else PushType.APPEND,
        message.prev_index if isinstance(message, Append) else message.index - (not is_probe),
        log.begin_index,
        log.end_index,
        conflict_index=-1 if damage is None else damage.first_index,
        counts=not core.hard_state.is_barred,
        has_room=core.has_room and code is not Code.DISK_FULL,
        owner=core.owner,
    )
