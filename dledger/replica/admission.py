"""Appends on their way into the log: limits, sessions, encoding, and who waits for which index.

An append is judged, given its index and encoded in one step. Batches gather here until the replica writes
them as a group; until then nothing has left this object, and giving up leadership undoes it without a trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zlib_ng.zlib_ng import crc32

from dledger.core.sessions import MAX_SESSIONS, Judgement, Result, SessionTable
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
from dledger.replica.shell import AppendOutcome, AppendToken
from dledger.store.api import ReservedEnd
from dledger.store.format.batch import Batch, encode_batch, max_batch_size
from dledger.store.format.internal import (
    Internal,
    NoOp,
    SessionBatch,
    SessionOpen,
    Stamped,
    bodies_crc,
    encode_internal,
)


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """Bounds on appends, in bytes and counts (docs/guarantees.md rule 13)."""

    max_body_bytes: int = 1 << 20
    max_batch_bytes: int = 1 << 20  # encoded: bodies and 48 bytes for each entry
    max_batch_entries: int = 65_536
    max_pending_bytes: int = 64 << 20  # accepted and not yet committed
    max_pending_appends: int = 65_536  # callers that wait for a commit, repeated ones included
    max_sessions: int = MAX_SESSIONS
    stamp_every_ms: int = 1000  # batches without a head of their own carry cluster time so often
    owner_stamp_every_ms: int = 100  # the same of batches whose owner is told their cluster time
    group_bytes: int = 64 << 10  # so many gathered bytes are written without waiting for the group before


@dataclass(slots=True)
class Waiter:
    """Somebody waits for last_index to be committed. `token` is None once that was answered."""

    token: AppendToken | None
    last_index: int
    first_index: int  # of the batch; above the end of the log, if that stores nothing
    byte_size: int
    deadline_ms: int
    outcome: AppendOutcome | DLedgerError


NO_ROOM = ReservedEnd(-1, -1)
_NEVER = 1 << 62  # the first index of a batch that is not stored
_OVERHEAD_OF_HEAD = ENTRY_HEADER_SIZE + len(encode_internal(Stamped(0, SessionBatch(0, 0, 0, 0))))

_REFUSALS: dict[Judgement, tuple[type[DLedgerError], Code, str]] = {
    Judgement.GAP: (Refused, Code.SESSION_GAP, "batch {seq} of session {id} came before batch {seq} - 1"),
    Judgement.EXPIRED: (SessionExpired, Code.SESSION_EXPIRED, "session {id} is not known (any more)"),
    Judgement.CONFLICT: (
        InvalidRequest,
        Code.SESSION_CONFLICT,
        "batch {seq} of session {id} was stored with other bodies: two writers share the session",
    ),
    Judgement.WINDOW_FULL: (
        Refused,
        Code.SESSION_WINDOW_FULL,
        "session {id} has as many uncommitted batches as a session may have; wait for answers",
    ),
}


class ExpiryUnconfirmed(SessionExpired):
    """The session may have been opened behind the end of this log: only a leader can say that it was not."""


class RoomIsComing(Overloaded):
    """Space for the batch is being prepared: it may be taken in a moment."""


class Admission:
    def __init__(self, limits: AppendLimits, data_file_size: int) -> None:
        largest = max_batch_size(data_file_size)
        assert limits.max_batch_bytes <= largest, f"max_batch_bytes is above {largest}, what a file can hold"
        self.limits = limits
        self.data_file_size = data_file_size
        self.state = LogState(max_sessions=limits.max_sessions)
        self.tail = Tail(-1, -1, 0, 0)  # the end of the log, gathered batches included
        self.gathered_bytes = 0
        self.pending_bytes = 0  # of all waiters
        self.limits_hit: dict[str, int] = {}
        self.room: Callable[[], ReservedEnd] | None = None  # up to where the disk surely has room
        self._known_room = NO_ROOM  # what `room` said last: it shrinks only when the log does
        self.is_full: Callable[[], bool] = lambda: False  # and there is none to be had
        self.want_room: Callable[[], None] = lambda: None  # somebody waits for `room` to grow
        self.others_are_full: Callable[[], bool] = lambda: False  # too many to commit anything
        self.reserve_in_use = False  # the leader makes room by what is left of the disk: nobody else may
        self._gathered: list[Batch] = []
        self._waiters: deque[Waiter] = deque()  # by index
        self._repeats: list[Waiter] = []  # sessions' batches that wait for what is stored already
        self.next_deadline_ms: float = float("inf")

    @property
    def sessions(self) -> SessionTable:
        return self.state.sessions

    # -- leading ------------------------------------------------------------------------------------------

    def admit(
        self,
        token: AppendToken,
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
        """Take one append. An answer known at once is returned; None: it will come with the commit."""
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
            if judgement is not Judgement.NEW:
                return self._judged(
                    token, judgement, first_try, session_id, seq, len(bodies), deadline_ms, committed_index
                )
            value = SessionBatch(session_id, seq, len(bodies), crc)
        value = self._stamped(value, now_ms, wall_ms)
        head = None if value is None else encode_internal(value)
        batch = encode_batch(
            self.tail, term, bodies, data_file_size=self.data_file_size, head=head, sums=sums
        )
        if self.reserve_in_use or self.others_are_full() or not self.has_room_for(batch):
            return self._no_room()
        self.gather(token, batch, value, len(bodies), deadline_ms, now_ms)
        return None

    def has_room_for(self, batch: Batch) -> bool:
        """Is space reserved for it? An index is only assigned then, so a full disk is known before a push."""
        return self._has_room_upto(batch.end_pos, batch.last_index)

    def _has_room_upto(self, end_pos: int, last_index: int) -> bool:
        if end_pos <= self._known_room.pos and last_index <= self._known_room.index:
            return True
        if self.room is None:
            return True
        end = self._known_room = self.room()
        return end_pos <= end.pos and last_index <= end.index

    def why_no_room(self, end_pos: int, last_index: int) -> Overloaded | None:
        """Why nothing that reaches so far may be taken now; None: it may."""
        if self.reserve_in_use or self.others_are_full() or not self._has_room_upto(end_pos, last_index):
            return self._no_room()
        return None

    def has_room_for_internal(self, value: Internal, term: int) -> bool:
        """An image waits for room: it must not take what no-ops and purging need."""
        head = encode_internal(Stamped(0, value))
        return self.has_room_for(
            encode_batch(self.tail, term, [], data_file_size=self.data_file_size, head=head)
        )

    def _no_room(self) -> Overloaded:
        if self.others_are_full():
            self.count_limit("disk_reserve_bytes")
            text = "the disks of most members have no room; appends are taken again once there is space"
            return Overloaded(text, code=Code.DISK_FULL)
        if not self.reserve_in_use and not self.is_full():
            text = "space on the disk is being prepared; try again in a moment"
            return RoomIsComing(text, code=Code.LEADER_PENDING_FULL)
        self.count_limit("disk_reserve_bytes")
        text = "the disk has no room beyond disk_reserve_bytes; appends are taken again once there is space"
        return Overloaded(text, code=Code.DISK_FULL)

    def append_internal(self, value: Internal, term: int, now_ms: int, wall_ms: int) -> int:
        """Gather an entry of the log's own; nobody waits for it. Returns its index."""
        stamped = self._stamped(value, now_ms, wall_ms)
        assert stamped is not None
        head = encode_internal(stamped)
        batch = encode_batch(self.tail, term, [], data_file_size=self.data_file_size, head=head)
        self.gather(None, batch, stamped, 0, 1 << 62, now_ms)
        return batch.first_index

    def noop(self, tail: Tail, term: int, now_ms: int, wall_ms: int) -> Batch:
        """The first entry of a leadership, after `tail`: nothing is gathered yet, and nobody waits for it."""
        assert not self._gathered
        stamp_ms = self.state.clock.read(now_ms, wall_ms)
        last = self.state.clock.last_stamp_ms
        if last is not None:
            # Owners were told times after the last stamp that are not in the log; ours is not before them.
            stamp_ms = max(stamp_ms, last + self.limits.owner_stamp_every_ms)
        head = encode_internal(Stamped(stamp_ms, NoOp()))
        batch = encode_batch(tail, term, [], data_file_size=self.data_file_size, head=head)
        assert batch.head is not None
        self.state.note(batch.head, batch.first_index, batch.last_index, term, batch.pos, now_ms)
        self.tail = batch.tail
        return batch

    def stamp_of_owner(self, now_ms: int, wall_ms: int) -> tuple[int, Stamped | None]:
        """Cluster time of a batch whose owner is told it, and its head, if it has to have one. Along the log
        such times never fall: what a leader says beyond its last stamp is less than `noop` adds."""
        clock = self.state.clock
        stamp_ms, last = clock.read(now_ms, wall_ms), clock.last_stamp_ms
        if last is not None and stamp_ms - last < self.limits.owner_stamp_every_ms:
            return stamp_ms, None
        return stamp_ms, Stamped(stamp_ms, NoOp())

    def _stamped(self, value: Internal | None, now_ms: int, wall_ms: int) -> Stamped | None:
        """Rule 12: a batch that has a head carries cluster time in it; one that needs none gets one for that
        only when time has moved on enough to be worth an entry."""
        clock = self.state.clock
        stamp = clock.read(now_ms, wall_ms)
        last = clock.last_stamp_ms
        if value is None:
            if last is not None and stamp - last < self.limits.stamp_every_ms:
                return None
            value = NoOp()
        return Stamped(stamp, value)

    def gather(
        self,
        token: AppendToken | None,
        batch: Batch,
        head: Stamped | None,
        count: int,
        deadline_ms: int,
        now_ms: int,
    ) -> None:
        """Take a batch that follows `tail`; `head` is that of the batch, if it has one. `token`: who waits
        for it, None: nobody."""
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
        outcome = AppendOutcome(index, count, term, pos)
        self._waiters.append(Waiter(token, last, first, size, deadline_ms, outcome))
        if deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms

    def take_group(self) -> list[Batch]:
        """The gathered batches, to be written now."""
        batches, self._gathered = self._gathered, []
        self.gathered_bytes = 0
        assert batches
        return batches

    def _check_request(
        self, bodies: Sequence[bytes], session: tuple[int, int] | None, open_session: bool
    ) -> DLedgerError | None:
        if not bodies and not open_session:
            return InvalidRequest("a batch has at least one body", code=Code.REQUEST_WITH_EMPTY_BODYS)
        if open_session and (bodies or session is not None):
            return InvalidRequest("open_session goes without bodies and without a session")
        if session is not None and (session[0] < 0 or session[1] < 1):
            return InvalidRequest(f"session_id {session[0]}, seq {session[1]}: ids begin at 0, seqs at 1")
        return self.check_limits(list(map(len, bodies)))

    def check_limits(self, sizes: Sequence[int]) -> DLedgerError | None:
        """Which limit refuses a batch with bodies of so many bytes now; None: none does."""
        limits = self.limits
        count = len(sizes)
        size = sum(sizes) + ENTRY_HEADER_SIZE * count
        if size > limits.max_body_bytes and max(sizes) > limits.max_body_bytes:
            self.count_limit("max_body_bytes")
            text = f"a body of {max(sizes)} bytes; max_body_bytes is {limits.max_body_bytes}"
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
            text = f"{self.pending_bytes} bytes wait to be committed; try again later"
            return Overloaded(text, code=Code.LEADER_PENDING_FULL)
        if len(self._waiters) + len(self._repeats) >= limits.max_pending_appends:
            self.count_limit("max_pending_appends")
            text = f"{limits.max_pending_appends} appends wait to be committed; try again later"
            return Overloaded(text, code=Code.LEADER_PENDING_FULL)
        return None

    def _judged(
        self,
        token: AppendToken,
        judgement: Judgement,
        first_try: Result | None,
        session_id: int,
        seq: int,
        count: int,
        deadline_ms: int,
        committed_index: int,
    ) -> AppendOutcome | DLedgerError | None:
        if judgement is Judgement.FORGOTTEN:
            return AppendOutcome(-1, count, -1, -1, duplicate=True)
        if judgement is Judgement.REPEAT:
            assert first_try is not None
            first, last = first_try.first_index, first_try.last_index
            outcome = AppendOutcome(first, count, first_try.term, first_try.pos, duplicate=True)
            return self._answer_at(last, token, outcome, first, deadline_ms, committed_index)
        cls, code, text = _REFUSALS[judgement]
        error = cls(text.format(id=session_id, seq=seq), code=code)
        if judgement is Judgement.CONFLICT:
            assert first_try is not None
            last = first_try.last_index
        elif judgement is Judgement.EXPIRED:
            last = self.sessions.unknown_since(session_id)
            if last > self.tail.index:
                return ExpiryUnconfirmed(error.message)
        else:
            if judgement is Judgement.WINDOW_FULL:
                self.count_limit("session_window")
            return error
        return self._answer_at(last, token, error, _NEVER, deadline_ms, committed_index)

    def _answer_at(
        self,
        last_index: int,
        token: AppendToken,
        outcome: AppendOutcome | DLedgerError,
        first_index: int,
        deadline_ms: int,
        committed_index: int,
    ) -> AppendOutcome | DLedgerError | None:
        """What the log says at last_index ends a session, or is its result: the answer waits until no other
        leader can have another entry there. What is committed stays so, whoever leads."""
        if last_index <= committed_index:
            return outcome
        self._repeats.append(Waiter(token, last_index, first_index, 0, deadline_ms, outcome))
        self.next_deadline_ms = min(self.next_deadline_ms, deadline_ms)
        return None

    # -- what happens to the log --------------------------------------------------------------------------

    def follow(self, batches: Iterable[Batch], now_ms: int) -> None:
        """Batches of a leader were put after the end."""
        for batch in batches:
            if batch.head is not None:
                self.state.note(
                    batch.head, batch.first_index, batch.last_index, batch.term, batch.pos, now_ms
                )
            self.tail = batch.tail

    def reset(self, tail: Tail, base: Base) -> None:
        """The log was replaced by an empty one that begins after `base`."""
        assert not self._waiters and not self._gathered
        self._known_room = NO_ROOM
        self.tail = tail
        self.state.reset(base)

    def truncate_after(self, tail: Tail) -> None:
        """The log ends at `tail` now. Only a follower truncates, and it has nobody waiting."""
        assert not self._waiters and not self._gathered
        self._known_room = NO_ROOM
        self.tail = tail
        self.state.truncate_after(tail.index)

    def committed(self, committed_index: int) -> list[tuple[AppendToken, AppendOutcome | DLedgerError]]:
        """Who can be answered now. The log state has been told before."""
        answers: list[tuple[AppendToken, AppendOutcome | DLedgerError]] = []
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

    def expire(self, now_ms: int) -> list[tuple[AppendToken, DLedgerError]]:
        """Callers whose time is up. Their entries stay in the log, and may be committed later."""
        if now_ms < self.next_deadline_ms:
            return []
        expired: list[tuple[AppendToken, DLedgerError]] = []
        self.next_deadline_ms = float("inf")
        for waiter in [*self._waiters, *self._repeats]:
            if waiter.token is None:
                continue
            if waiter.deadline_ms <= now_ms:
                text = "no majority has stored the entry in time; it may still be committed later"
                expired.append((waiter.token, Indeterminate(text, code=Code.WAIT_QUORUM_ACK_TIMEOUT)))
                waiter.token = None
            else:
                self.next_deadline_ms = min(self.next_deadline_ms, waiter.deadline_ms)
        self._repeats = [waiter for waiter in self._repeats if waiter.token is not None]
        return expired

    def abandon(self, log_tail: Tail, refused: NotLeader) -> list[tuple[AppendToken, DLedgerError]]:
        """Leadership is over. What was only gathered never existed; what was written may yet be committed."""
        answers: list[tuple[AppendToken, DLedgerError]] = []
        for waiter in [*self._waiters, *self._repeats]:
            if waiter.token is None:
                continue
            if waiter.first_index > log_tail.index:
                answers.append((waiter.token, refused))
            else:
                text = "leadership was lost before the entry was committed; it may still be, or not"
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
