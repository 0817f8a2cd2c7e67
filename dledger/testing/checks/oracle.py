"""Records what the clients know: appends that were acknowledged, refused or left indeterminate, and the
results of reads.

The class of an error determines the outcome: Refused and InvalidRequest are definite failures, and every
other error leaves the append indeterminate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dledger.errors import Code, DLedgerError, InvalidRequest, Refused, SessionExpired
from dledger.replica.shell import AppendOutcome
from dledger.store.format.batch import MAGIC_NORMAL, Batch, decode_entries
from dledger.store.format.internal import SessionBatch, SessionOpen, decode_internal, strip_stamp
from dledger.testing.virtual.violation import Violation

RESULTS_KEPT = 64  # results of a session that the log remembers (docs/guarantees.md, Sessions)


class ClientOutcome(Enum):
    OPEN = "open"  # unknown
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


@dataclass(slots=True)
class ClientAppend:
    """One batch that a client appends, across all its attempts. Its bodies are unique."""

    bodies: Sequence[bytes]
    session: tuple[int, int] | None
    opens_session: bool = False
    outcome: ClientOutcome = ClientOutcome.OPEN
    tries_open: int = 0  # attempts that may have stored it, or still may
    index: int = -1  # of its first body, once acknowledged with a position


@dataclass(slots=True)
class ClientRead:
    """A linearizable read in progress. Its read index must be at least `at_least`."""

    at_least: int
    result: int | None = None


@dataclass(slots=True)
class _Session:
    last_seq: int = 0  # committed
    sent_seq: int = 0  # by its client
    first_indexes: dict[int, int] = field(default_factory=dict)  # seq -> index of the first body


class Oracle:
    """Compares responses with the committed log that the checker knows."""

    def __init__(self, batch_of_index: Callable[[int], Batch | None], max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._committed_batch = batch_of_index  # returns the committed batch that contains an index
        self._appends: dict[bytes, ClientAppend] = {}  # by body
        self._stored_at: dict[bytes, int] = {}  # committed bodies
        self._sessions: dict[int, _Session] = {}
        self._living: dict[int, int] = {}  # sessions that the committed log has not evicted -> last entry
        self.acknowledged: list[ClientAppend] = []
        self.seen_index = -1  # the highest index that a response or a read has shown to a client
        self.session_opens = 0

    # -- appends

    def begin(self, append: ClientAppend) -> None:
        """Record an attempt that is about to be sent."""
        append.tries_open += 1
        self.session_opens += append.opens_session
        if append.session is not None and append.session[0] in self._sessions:
            session = self._sessions[append.session[0]]
            session.sent_seq = max(session.sent_seq, append.session[1])
        for body in append.bodies:
            assert self._appends.setdefault(body, append) is append

    def answered(self, append: ClientAppend, answer: AppendOutcome | DLedgerError) -> None:
        """Record the node's response to an attempt, even if the client does not receive it."""
        if isinstance(answer, SessionExpired):
            self._check_expired(append)
        elif isinstance(answer, DLedgerError) and answer.code is Code.SESSION_CONFLICT:
            self._check_conflict(append)
        if isinstance(answer, DLedgerError):
            if isinstance(answer, Refused | InvalidRequest):
                append.tries_open -= 1
                if append.tries_open == 0 and append.outcome is ClientOutcome.OPEN:
                    append.outcome = ClientOutcome.REFUSED
                    self._check_absent(append)
            return
        self._acknowledged(append, answer)

    def tried_again(self, append: ClientAppend) -> None:
        """Record that a refused append is attempted again."""
        if append.outcome is ClientOutcome.REFUSED:
            append.outcome = ClientOutcome.OPEN

    def _acknowledged(self, append: ClientAppend, answer: AppendOutcome) -> None:
        if append.opens_session:
            self._check_open(answer)
            return
        if answer.count != len(append.bodies):
            raise Violation(
                "acknowledged", f"the answer {answer} does not match the {len(append.bodies)} bodies sent"
            )
        if answer.index < 0:
            self._check_forgotten(append, answer)
        else:
            if append.index not in (-1, answer.index):
                raise Violation(
                    "sessions",
                    f"a batch was first answered with index {append.index}, then with {answer.index}",
                )
            append.index = answer.index
            self._check_stored(append, answer.index)
            self.seen_index = max(self.seen_index, answer.index + answer.count - 1)
        if append.outcome is not ClientOutcome.ACKNOWLEDGED:
            append.outcome = ClientOutcome.ACKNOWLEDGED
            self.acknowledged.append(append)

    def _check_open(self, answer: AppendOutcome) -> None:
        if answer.index not in self._sessions:
            raise Violation(
                "sessions",
                f"the opening of session {answer.index} was answered, but its OPEN entry is not committed",
            )
        self.seen_index = max(self.seen_index, answer.index)

    def _check_expired(self, append: ClientAppend) -> None:
        assert append.session is not None
        if append.session[0] in self._living:
            raise Violation(
                "sessions",
                f"session {append.session[0]} was reported as expired, but no committed entry evicts it",
            )

    def _check_conflict(self, append: ClientAppend) -> None:
        """Check that a conflict is definite, because it ends the client's session as an expiry does."""
        assert append.session is not None
        session_id, seq = append.session
        if seq > self._sessions[session_id].last_seq or all(b in self._stored_at for b in append.bodies):
            raise Violation(
                "sessions",
                f"a conflict was reported for seq {seq} of session {session_id}, but no other bodies are "
                "stored under it",
            )

    def _check_forgotten(self, append: ClientAppend, answer: AppendOutcome) -> None:
        if append.session is None or not answer.duplicate:
            raise Violation("acknowledged", f"the first answer has no position: {answer}")
        session_id, seq = append.session
        # The leader counts from the end of its log, which may include everything the client has sent.
        last = self._sessions[session_id].sent_seq if session_id in self._sessions else 0
        if last - seq < RESULTS_KEPT:
            raise Violation(
                "sessions",
                f"the result of seq {seq} of session {session_id} was forgotten too early, at seq {last}",
            )
        if any(body not in self._stored_at for body in append.bodies):
            raise Violation(
                "acknowledged", f"{append.session} was reported as stored before, but is not committed"
            )

    def _check_stored(self, append: ClientAppend, index: int) -> None:
        for offset, body in enumerate(append.bodies):
            if self._stored_at.get(body) != index + offset:
                raise Violation(
                    "acknowledged",
                    f"{body!r} was acknowledged at {index + offset}, but is committed at "
                    f"{self._stored_at.get(body)}",
                )

    def _check_absent(self, append: ClientAppend) -> None:
        for body in append.bodies:
            if body in self._stored_at:
                raise Violation(
                    "refused",
                    f"{body!r} was refused permanently, but is committed at {self._stored_at[body]}",
                )

    # -- the committed log

    def committed(self, batch: Batch) -> None:
        """Process the next batch of the committed log."""
        first_body = batch.first_index + (batch.head is not None)
        if batch.head is not None:
            match strip_stamp(decode_internal(batch.head))[1]:
                case SessionOpen():
                    self._sessions[batch.first_index] = _Session()
                    if len(self._living) == self._max_sessions:
                        del self._living[min(self._living, key=lambda key: self._living[key])]
                    self._living[batch.first_index] = batch.first_index
                case SessionBatch(session_id, seq):
                    self._session_batch(session_id, seq, first_body)
                    self._living[session_id] = batch.last_index
        for entry in decode_entries(batch.data):
            if entry.magic == MAGIC_NORMAL:
                self._committed_body(entry.body, entry.index)

    def _session_batch(self, session_id: int, seq: int, first_body: int) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            raise Violation("sessions", f"a batch uses session {session_id}, which no committed entry opened")
        if seq != session.last_seq + 1:
            raise Violation(
                "sessions", f"seq {seq} of session {session_id} is committed after seq {session.last_seq}"
            )
        session.last_seq = seq
        session.first_indexes[seq] = first_body

    def _committed_body(self, body: bytes, index: int) -> None:
        append = self._appends.get(body)
        if append is None:
            raise Violation("phantom", f"{body!r} is committed at {index}, but no client sent it")
        if body in self._stored_at:
            raise Violation(
                "duplicate", f"{body!r} is committed twice: at {self._stored_at[body]} and {index}"
            )
        if append.outcome is ClientOutcome.REFUSED:
            raise Violation("refused", f"{body!r} was refused, but is committed at {index}")
        self._stored_at[body] = index

    # -- reads

    def begin_read(self) -> ClientRead:
        return ClientRead(self.seen_index)

    def end_read(self, read: ClientRead, read_index: int) -> None:
        """Record that a linearizable read returned the log up to `read_index`."""
        if read_index < read.at_least:
            raise Violation(
                "linearizable",
                f"a read returned index {read_index}, but {read.at_least} had been seen before it",
            )
        if read_index >= 0 and self._committed_batch(read_index) is None:
            raise Violation(
                "linearizable", f"a read returned index {read_index}, which no committed batch contains"
            )
        read.result = read_index
        self.seen_index = max(self.seen_index, read_index)

    # -- the end

    def check_final(self) -> None:
        """Check that every acknowledged batch is in the final log as it was acknowledged."""
        for append in self.acknowledged:
            if append.index >= 0:
                self._check_stored(append, append.index)
        for append in self._appends.values():
            if append.outcome is ClientOutcome.REFUSED:
                self._check_absent(append)

    @property
    def indeterminate(self) -> int:
        """Number of batches whose outcome no client knows."""
        known = {id(a): a for a in self._appends.values()}
        return sum(1 for a in known.values() if a.outcome is ClientOutcome.OPEN)
