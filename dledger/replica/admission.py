"""Admits appends: checks limits and sessions, encodes batches, and tracks the callers that wait for a commit.

An append is checked, assigned an index and encoded in one step. Batches gather until the replica writes them
as a group. Until then they exist only in this object, so a node that loses leadership simply discards them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from zlib_ng.zlib_ng import crc32

from dledger.core.cluster_clock import ClockChange, Stamp
from dledger.core.sessions import MAX_SESSIONS, SequenceStatus, SessionTable, StoredBatch
from dledger.core.values import ENTRY_HEADER_SIZE, Base, Tail
from dledger.errors import (
    Code,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    NotLeader,
    Overloaded,
    Refused,
    SessionExpired,
)
from dledger.replica.log_state import LogState
from dledger.replica.shell import AppendHandle, AppendOutcome
from dledger.store.api import ReservedEnd
from dledger.store.format.batch import Batch, encode_batch, max_batch_size
from dledger.store.format.internal import (
    ImageBegin,
    Internal,
    NoOp,
    SessionBatch,
    SessionOpen,
    StampedInternal,
    bodies_crc,
    encode_internal,
)

Outcome = AppendOutcome | DLedgerError | None


@dataclass(slots=True)
class WaitingAppend:
    token: AppendHandle
    bodies: Sequence[bytes]
    session: tuple[int, int] | None
    open_session: bool
    deadline_ms: int


class AdmissionQueue:
    """Appends that wait for disk space, in order and bounded. Each waits until its deadline."""

    def __init__(self, max_bytes: int, max_appends: int) -> None:
        self._max_bytes = max_bytes
        self._max_appends = max_appends
        self._waiting: deque[WaitingAppend] = deque()
        self._bytes = 0
        self._next_deadline_ms: float = float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, append: WaitingAppend, pending_bytes: int) -> bool:
        """Queue an append. Returns False if it would exceed a limit. `pending_bytes` is the size of appends
        that are pending elsewhere."""
        size = sum(map(len, append.bodies))
        if len(self._waiting) >= self._max_appends or pending_bytes + self._bytes + size > self._max_bytes:
            return False
        self._waiting.append(append)
        self._bytes += size
        self._next_deadline_ms = min(self._next_deadline_ms, append.deadline_ms)
        return True

    def retry(
        self, now_ms: int, admit: Callable[[WaitingAppend], Outcome]
    ) -> list[tuple[AppendHandle, AppendOutcome | DLedgerError]]:
        """Admit waiting appends while there is room. Returns the appends that are complete, with their
        results."""
        answers: list[tuple[AppendHandle, AppendOutcome | DLedgerError]] = []
        while self._waiting:
            outcome = admit(self._waiting[0])
            if isinstance(outcome, SpacePending) and now_ms < self._waiting[0].deadline_ms:
                answers += [(token, outcome) for token in self._remove_expired(now_ms)]
                break
            token = self._remove_first().token
            if outcome is not None:
                answers.append((token, outcome))
        return answers

    def clear(self) -> list[AppendHandle]:
        """Remove all appends and return their tokens."""
        tokens = [append.token for append in self._waiting]
        self._waiting.clear()
        self._bytes = 0
        self._next_deadline_ms = float("inf")
        return tokens

    def _remove_expired(self, now_ms: int) -> list[AppendHandle]:
        """Remove expired appends after the first one and return their tokens."""
        if now_ms < self._next_deadline_ms:
            return []
        expired = [append for append in self._waiting if append.deadline_ms <= now_ms]
        self._waiting = deque(append for append in self._waiting if append.deadline_ms > now_ms)
        self._bytes -= sum(len(body) for append in expired for body in append.bodies)
        self._next_deadline_ms = min(append.deadline_ms for append in self._waiting)
        return [append.token for append in expired]

    def _remove_first(self) -> WaitingAppend:
        append = self._waiting.popleft()
        self._bytes -= sum(map(len, append.bodies))
        return append


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """Limits on appends, in bytes and counts (docs/guarantees.md rule 13)."""

    max_body_bytes: int = 1 << 20
    max_batch_bytes: int = 1 << 20  # encoded: bodies plus 48 bytes per entry
    max_batch_entries: int = 65_536
    max_pending_bytes: int = 64 << 20  # accepted but not committed
    max_pending_appends: int = 65_536  # callers that wait for a commit, including retries
    max_sessions: int = MAX_SESSIONS
    stamp_every_ms: int = 1000  # interval of cluster time stamps for batches without a head
    owner_stamp_every_ms: int = 100  # the same for batches whose owner uses cluster time
    group_bytes: int = 64 << 10  # gathered bytes that are written without waiting for the previous group


@dataclass(slots=True)
class Waiter:
    """A caller that waits for the commit of last_index. `token` is None after the caller was answered."""

    token: AppendHandle | None
    last_index: int
    first_index: int  # start of the batch; above the end of the log if nothing is stored
    byte_size: int
    deadline_ms: int
    outcome: AppendOutcome | DLedgerError


NO_ROOM = ReservedEnd(-1, -1)
_NEVER = 1 << 62  # first index of a batch that is not stored
_OVERHEAD_OF_HEAD = ENTRY_HEADER_SIZE + len(encode_internal(StampedInternal(0, SessionBatch(0, 0, 0, 0))))

_REFUSALS: dict[SequenceStatus, tuple[type[DLedgerError], Code, str]] = {
    SequenceStatus.GAP: (
        Refused,
        Code.SESSION_GAP,
        "batch {seq} of session {id} arrived before its predecessor",
    ),
    SequenceStatus.EXPIRED: (SessionExpired, Code.SESSION_EXPIRED, "session {id} is unknown or has expired"),
    SequenceStatus.CONFLICT: (
        InvalidRequest,
        Code.SESSION_CONFLICT,
        "batch {seq} of session {id} is stored with different bodies: two writers share the session",
    ),
    SequenceStatus.WINDOW_FULL: (
        Refused,
        Code.SESSION_WINDOW_FULL,
        "session {id} has the maximum of uncommitted batches; wait for results",
    ),
}


class ExpiryUnconfirmed(SessionExpired):
    """The session may have been opened beyond the end of this log. Only a leader can rule that out."""


class SpacePending(Overloaded):
    """Space for the batch is being prepared. A retry may succeed shortly."""


class AppendAdmission:
    def __init__(self, limits: AppendLimits, data_file_size: int) -> None:
        largest = max_batch_size(data_file_size)
        assert limits.max_batch_bytes <= largest, f"max_batch_bytes exceeds {largest}, the capacity of a file"
        self.limits = limits
        self.data_file_size = data_file_size
        self.state = LogState(max_sessions=limits.max_sessions)
        self.tail = Tail(-1, -1, 0, 0)  # the end of the log, gathered batches included
        self.gathered_bytes = 0
        self.pending_bytes = 0  # total of all waiters
        self.limits_hit: dict[str, int] = {}
        self.room: Callable[[], ReservedEnd] | None = None  # end of the space reserved on disk
        self._known_room = NO_ROOM  # last result of `room`, which shrinks only if the log does
        self.is_full: Callable[[], bool] = lambda: False  # the disk is full and no space can be prepared
        self.want_room: Callable[[], None] = lambda: None  # an append waits for `room` to grow
        self.others_are_full: Callable[[], bool] = lambda: False  # too many full members to commit anything
        self._gathered: list[Batch] = []
        self._waiters: deque[Waiter] = deque()  # by index
        self._repeats: list[Waiter] = []  # retries of stored batches that wait for the commit
        self.next_deadline_ms: float = float("inf")

    @property
    def sessions(self) -> SessionTable:
        return self.state.sessions

    # -- leading ------------------------------------------------------------------------------------------

    def admit(
        self,
        token: AppendHandle,
        bodies: Sequence[bytes],
        *,
        session: tuple[int, int] | None,
        open_session: bool,
        deadline_ms: int,
        term: int,
        committed_index: int,
        now_ms: int,
        wall_ms: int,
    ) -> AppendOutcome | DLedgerError | None:
        """Admit one append. Returns the result if it is already known, or None if it will be known when the
        batch is committed."""
        problem = self._check_request(bodies, session, open_session)
        if problem is not None:
            return problem
        value: Internal | None = None
        sums: list[int] | None = None
        if open_session:
            value = SessionOpen()
        elif session is not None:
            session_id, seq = session
            sums = [crc32(body) for body in bodies]
            crc = bodies_crc(bodies, sums)
            judgement, first_try = self.sessions.judge(session_id, seq, len(bodies), crc, committed_index)
            if judgement is not SequenceStatus.NEW:
                return self._judged(
                    token, judgement, first_try, session_id, seq, len(bodies), deadline_ms, committed_index
                )
            value = SessionBatch(session_id, seq, len(bodies), crc)
        value = self._stamped(value, now_ms, wall_ms)
        head = None if value is None else encode_internal(value)
        batch = encode_batch(
            self.tail, term, bodies, data_file_size=self.data_file_size, head=head, sums=sums
        )
        if self.others_are_full() or not self.has_room_for(batch):
            return self._no_room()
        self.gather(token, batch, value, len(bodies), deadline_ms, now_ms)
        return None

    def has_room_for(self, batch: Batch) -> bool:
        """Return True if disk space is reserved. Call this before an index is assigned, so that a full disk
        is detected before any push.
        """
        return self._has_room_upto(batch.end_pos, batch.last_index)

    def _has_room_upto(self, end_pos: int, last_index: int) -> bool:
        if end_pos <= self._known_room.pos and last_index <= self._known_room.index:
            return True
        if self.room is None:
            return True
        end = self._known_room = self.room()
        return end_pos <= end.pos and last_index <= end.index

    def why_no_room(self, end_pos: int, last_index: int) -> Overloaded | None:
        """Return the error for a batch that ends at this position, or None if it can be stored now."""
        if self.others_are_full() or not self._has_room_upto(end_pos, last_index):
            return self._no_room()
        return None

    def has_room_for_internal(self, value: Internal, term: int) -> bool:
        """Return True if there is room for an internal entry that must not use the space that no-ops and
        purges need."""
        return self.has_room_for(self.measure_internal(value, term))

    def measure_internal(self, value: Internal, term: int) -> Batch:
        """Encode an internal entry as if it were appended now, to measure it."""
        head = encode_internal(value if isinstance(value, StampedInternal) else StampedInternal(0, value))
        return encode_batch(self.tail, term, [], data_file_size=self.data_file_size, head=head)

    def _no_room(self) -> Overloaded:
        if self.others_are_full():
            self.count_limit("disk_reserve_bytes")
            text = "the disks of most members are full; appends resume once space is available"
            return Overloaded(text, code=Code.DISK_FULL)
        if not self.is_full():
            text = "disk space is being prepared; try again in a moment"
            return SpacePending(text, code=Code.LEADER_PENDING_FULL)
        self.count_limit("disk_reserve_bytes")
        text = "the disk is full up to disk_reserve_bytes; appends resume once space is available"
        return Overloaded(text, code=Code.DISK_FULL)

    def append_internal(self, value: Internal, term: int, now_ms: int, wall_ms: int) -> int:
        """Add an internal entry, for which no caller waits, to the gathered batch. Returns its index."""
        stamped = self._stamped(value, now_ms, wall_ms)
        assert stamped is not None
        clock = self.state.clock
        if isinstance(value, ImageBegin) and clock.steps_ms:
            # A log that starts after this image lacks the stamps that recorded the steps.
            change = ClockChange(0, clock.slew_left_ms(now_ms), clock.steps_ms, clock.pause_ms)
            stamped = replace(stamped, change=change)
        return self._gather_internal(stamped, term, now_ms)

    def append_stamp(self, stamp: Stamp, term: int, now_ms: int) -> None:
        """Gather an entry that changes the rate of cluster time. Skipped while the disk is full."""
        stamped = StampedInternal(stamp.time_ms, NoOp(), stamp.change)
        if self.has_room_for_internal(stamped, term):
            self._gather_internal(stamped, term, now_ms)

    def _gather_internal(self, stamped: StampedInternal, term: int, now_ms: int) -> int:
        head = encode_internal(stamped)
        batch = encode_batch(self.tail, term, [], data_file_size=self.data_file_size, head=head)
        self.gather(None, batch, stamped, 0, 1 << 62, now_ms)
        return batch.first_index

    def noop(self, tail: Tail, term: int, stamp: Stamp, now_ms: int) -> Batch:
        """Encode the first entry of a new leader, after `tail`. Nothing may be gathered yet."""
        assert not self._gathered
        head = encode_internal(StampedInternal(stamp.time_ms, NoOp(), stamp.change))
        batch = encode_batch(tail, term, [], data_file_size=self.data_file_size, head=head)
        assert batch.head is not None
        self.state.note(batch.head, batch.first_index, batch.last_index, term, batch.pos, now_ms)
        self.tail = batch.tail
        return batch

    def stamp_of_owner(self, now_ms: int, wall_ms: int) -> tuple[int, StampedInternal | None]:
        """Return the cluster time of an owner's batch, and the head of the batch if it needs one.

        These times never decrease along the log: a leader exceeds its last stamp by less than the increment
        that `noop` adds.
        """
        clock = self.state.clock
        stamp_ms, last = clock.read(now_ms, wall_ms), clock.last_stamp_ms
        if last is not None and stamp_ms - last < self.limits.owner_stamp_every_ms:
            return stamp_ms, None
        return stamp_ms, StampedInternal(stamp_ms, NoOp())

    def _stamped(self, value: Internal | None, now_ms: int, wall_ms: int) -> StampedInternal | None:
        """Add cluster time to a head (rule 12).

        A batch that otherwise needs no head gets one only if the last stamp is old enough to justify an
        additional entry.
        """
        clock = self.state.clock
        stamp = clock.read(now_ms, wall_ms)
        last = clock.last_stamp_ms
        if value is None:
            if last is not None and stamp - last < self.limits.stamp_every_ms:
                return None
            value = NoOp()
        return StampedInternal(stamp, value)

    def gather(
        self,
        token: AppendHandle | None,
        batch: Batch,
        head: StampedInternal | None,
        count: int,
        deadline_ms: int,
        now_ms: int,
    ) -> None:
        """Add a batch that follows `tail`. `head` is its decoded head, if any; `token` is None if no caller
        waits.
        """
        first, last, term, size = batch.first_index, batch.last_index, batch.term, len(batch.data)
        self.tail = batch.tail
        self._gathered.append(batch)
        self.gathered_bytes += size
        self.pending_bytes += size
        index, pos = first, batch.pos
        if batch.head is not None:
            assert head is not None
            head_size = len(batch.head)
            self.state.note_value(head, head_size, first, last, term, pos, now_ms)
            if count:
                index, pos = first + 1, pos + ENTRY_HEADER_SIZE + head_size
            elif isinstance(head.inner, SessionOpen):
                index = self.sessions.session_at(first)
        outcome = AppendOutcome(index, count, term, pos)
        self._waiters.append(Waiter(token, last, first, size, deadline_ms, outcome))
        if deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms

    def take_group(self) -> list[Batch]:
        """Remove and return the gathered batches, to be written now."""
        batches, self._gathered = self._gathered, []
        self.gathered_bytes = 0
        assert batches
        return batches

    def _check_request(
        self, bodies: Sequence[bytes], session: tuple[int, int] | None, open_session: bool
    ) -> DLedgerError | None:
        if not bodies and not open_session:
            return InvalidRequest("an append needs at least one body", code=Code.REQUEST_WITH_EMPTY_BODYS)
        if open_session and (bodies or session is not None):
            return InvalidRequest("open_session excludes bodies and a session")
        if session is not None and (session[0] < 0 or session[1] < 1):
            return InvalidRequest(f"session_id {session[0]}, seq {session[1]}: ids start at 0, seqs at 1")
        return self.check_limits(list(map(len, bodies)))

    def check_limits(self, sizes: Sequence[int]) -> DLedgerError | None:
        """Return the error of the limit that a batch with bodies of these sizes exceeds now, or None."""
        limits = self.limits
        count = len(sizes)
        size = sum(sizes) + ENTRY_HEADER_SIZE * count
        if size > limits.max_body_bytes and max(sizes) > limits.max_body_bytes:
            self.count_limit("max_body_bytes")
            text = f"a body of {max(sizes)} bytes exceeds max_body_bytes of {limits.max_body_bytes}"
            return InvalidRequest(text, code=Code.BODY_TOO_LARGE)
        size += _OVERHEAD_OF_HEAD
        if size > limits.max_batch_bytes or count > limits.max_batch_entries:
            self.count_limit("max_batch_bytes")
            text = (
                f"a batch of {count} entries and {size} bytes with headers; max_batch_bytes is"
                f" {limits.max_batch_bytes}, max_batch_entries {limits.max_batch_entries}"
            )
            return InvalidRequest(text, code=Code.BATCH_TOO_LARGE)
        if self.pending_bytes + size > limits.max_pending_bytes:
            self.count_limit("max_pending_bytes")
            text = f"{self.pending_bytes} bytes are waiting for a commit; try again later"
            return Overloaded(text, code=Code.LEADER_PENDING_FULL)
        if len(self._waiters) + len(self._repeats) >= limits.max_pending_appends:
            self.count_limit("max_pending_appends")
            text = f"{limits.max_pending_appends} appends are waiting for a commit; try again later"
            return Overloaded(text, code=Code.LEADER_PENDING_FULL)
        return None

    def _judged(
        self,
        token: AppendHandle,
        judgement: SequenceStatus,
        first_try: StoredBatch | None,
        session_id: int,
        seq: int,
        count: int,
        deadline_ms: int,
        committed_index: int,
    ) -> AppendOutcome | DLedgerError | None:
        if judgement is SequenceStatus.FORGOTTEN:
            return AppendOutcome(-1, count, -1, -1, duplicate=True)
        if judgement is SequenceStatus.REPEAT:
            assert first_try is not None
            first, last = first_try.first_index, first_try.last_index
            outcome = AppendOutcome(first, count, first_try.term, first_try.pos, duplicate=True)
            return self._answer_at(last, token, outcome, first, deadline_ms, committed_index)
        cls, code, text = _REFUSALS[judgement]
        if session_id < self.sessions.offset:
            text = "session {id} ended when the log was recovered as a new cluster"
        error = cls(text.format(id=session_id, seq=seq), code=code)
        if judgement is SequenceStatus.CONFLICT:
            assert first_try is not None
            last = first_try.last_index
        elif judgement is SequenceStatus.EXPIRED:
            last = self.sessions.unknown_since(session_id)
            if last > self.tail.index:
                return ExpiryUnconfirmed(error.message)
            last = max(last, self.state.uncommitted_image)
        else:
            if judgement is SequenceStatus.WINDOW_FULL:
                self.count_limit("session_window")
            return error
        return self._answer_at(last, token, error, _NEVER, deadline_ms, committed_index)

    def _answer_at(
        self,
        last_index: int,
        token: AppendHandle,
        outcome: AppendOutcome | DLedgerError,
        first_index: int,
        deadline_ms: int,
        committed_index: int,
    ) -> AppendOutcome | DLedgerError | None:
        """Answer once last_index is committed, which makes the result final under any leader.

        Until then, another leader could still replace the entry that proves the result.
        """
        if last_index <= committed_index:
            return outcome
        self._repeats.append(Waiter(token, last_index, first_index, 0, deadline_ms, outcome))
        self.next_deadline_ms = min(self.next_deadline_ms, deadline_ms)
        return None

    # -- changes of the log -------------------------------------------------------------------------------

    def follow(self, batches: Iterable[Batch], now_ms: int) -> None:
        """Note batches appended by a leader."""
        for batch in batches:
            if batch.head is not None:
                self.state.note(
                    batch.head, batch.first_index, batch.last_index, batch.term, batch.pos, now_ms
                )
            self.tail = batch.tail

    def reset(self, tail: Tail, base: Base) -> None:
        """Note that an empty log starting after `base` replaced the log."""
        assert not self._waiters and not self._gathered
        self._known_room = NO_ROOM
        self.tail = tail
        self.state.reset(base)

    def truncate_after(self, tail: Tail) -> None:
        """Note that the log now ends at `tail`. Only followers truncate, and they have no waiting callers."""
        assert not self._waiters and not self._gathered
        self._known_room = NO_ROOM
        self.tail = tail
        self.state.truncate_after(tail.index)

    def committed(self, committed_index: int) -> list[tuple[AppendHandle, AppendOutcome | DLedgerError]]:
        """Return the callers to answer for a commit. The log state must be updated first."""
        answers: list[tuple[AppendHandle, AppendOutcome | DLedgerError]] = []
        waiters = self._waiters
        while waiters and waiters[0].last_index <= committed_index:
            waiter = waiters.popleft()
            self.pending_bytes -= waiter.byte_size
            if waiter.token is not None:
                answers.append((waiter.token, waiter.outcome))
        if self._repeats:
            ready = [w for w in self._repeats if w.last_index <= committed_index]
            self._repeats = [w for w in self._repeats if w.last_index > committed_index]
            answers += [(w.token, w.outcome) for w in ready if w.token is not None]
        return answers

    def expire(self, now_ms: int) -> list[tuple[AppendHandle, DLedgerError]]:
        """Return the callers whose deadline has passed. Their entries remain in the log and may still be
        committed.
        """
        if now_ms < self.next_deadline_ms:
            return []
        expired: list[tuple[AppendHandle, DLedgerError]] = []
        self.next_deadline_ms = float("inf")
        for waiter in [*self._waiters, *self._repeats]:
            if waiter.token is None:
                continue
            if waiter.deadline_ms <= now_ms:
                text = "no majority stored the entry in time; it may still be committed"
                expired.append((waiter.token, Indeterminate(text, code=Code.WAIT_QUORUM_ACK_TIMEOUT)))
                waiter.token = None
            else:
                self.next_deadline_ms = min(self.next_deadline_ms, waiter.deadline_ms)
        self._repeats = [waiter for waiter in self._repeats if waiter.token is not None]
        return expired

    def abandon(self, log_tail: Tail, refused: NotLeader) -> list[tuple[AppendHandle, DLedgerError]]:
        """Fail all callers after leadership is lost.

        Batches that were gathered but not written are definitely not stored. Written batches may still be
        committed.
        """
        answers: list[tuple[AppendHandle, DLedgerError]] = []
        for waiter in [*self._waiters, *self._repeats]:
            if waiter.token is None:
                continue
            if waiter.first_index > log_tail.index:
                answers.append((waiter.token, refused))
            else:
                text = "leadership was lost before the entry was committed; it may still be committed"
                answers.append((waiter.token, Indeterminate(text, code=Code.TERM_CHANGED)))
        self._waiters.clear()
        self._repeats.clear()
        self._gathered.clear()
        self.next_deadline_ms = float("inf")
        self.gathered_bytes = self.pending_bytes = 0
        self.tail = log_tail
        self.state.truncate_after(log_tail.index)
        return answers

    def count_limit(self, name: str) -> None:
        self.limits_hit[name] = self.limits_hit.get(name, 0) + 1
