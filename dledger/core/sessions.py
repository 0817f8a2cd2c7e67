"""Sessions store each retried batch once (docs/guarantees.md, Sessions).

The table covers the log to its *end*, including the uncommitted tail, so that a new leader recognizes a
retry whose first attempt is in its log but not yet committed. Truncating the tail reverts its effects.
"""

from __future__ import annotations

import struct
from collections import deque
from enum import Enum
from typing import NamedTuple

RESULTS_KEPT = 64  # per session; also the most batches a session may have uncommitted
MAX_SESSIONS = 10_000


class StoredBatch(NamedTuple):
    """Stored location of the first attempt of a batch."""

    first_index: int  # index of the first body
    count: int  # type: ignore[assignment]  # hides tuple.count
    crc: int  # checksum of the bodies
    term: int
    pos: int  # position of the first body's entry
    last_index: int  # once this index is committed, the batch is


class SessionState(NamedTuple):
    """State after batch `last_seq`. Immutable, so that undo is an assignment of the previous value."""

    last_seq: int
    last_index: int  # end of the last session entry's batch; eviction picks the lowest
    results: tuple[StoredBatch, ...]  # results of the last seqs, newest last


class SequenceStatus(Enum):
    NEW = "new"  # not stored yet: append it
    REPEAT = "repeat"  # stored before: answer with the first result once that is committed
    FORGOTTEN = "forgotten"  # stored and committed long ago; its position is no longer known
    GAP = "gap"  # an earlier seq is missing; this batch is not stored
    EXPIRED = "expired"  # unknown session
    CONFLICT = "conflict"  # the seq was used for other bodies
    WINDOW_FULL = "window-full"  # too many batches of the session are uncommitted


class _Undo(NamedTuple):
    last_index: int  # end of the batch that made the change
    session_id: int
    before: SessionState | None
    evicted_id: int
    evicted: SessionState | None


_COUNT = struct.Struct(">I")
#: In place of the count: an offset follows, and then the count.
_HAS_OFFSET = 0xFFFF_FFFF
_OFFSET = struct.Struct(">q")
_SESSION = struct.Struct(">qqqI")
_RESULT = struct.Struct(">qIIqqq")


class SessionTable:
    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._offset = 0
        self._sessions: dict[int, SessionState] = {}
        self._undo: deque[_Undo] = deque()
        self._evicted: dict[int, int] = {}  # evicted by the uncommitted tail -> index of the evicting OPEN
        # last encoding of each session, because most do not change
        self._encoded: dict[int, tuple[SessionState, bytes]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def offset(self) -> int:
        """Ids below this one are of a cluster before a forced recovery (dledger.core.values.Recovery)."""
        return self._offset

    def session_at(self, index: int) -> int:
        """Return the id of the session that an OPEN entry at `index` opens."""
        return self._offset + index

    def judge(
        self, session_id: int, seq: int, count: int, crc: int, committed_index: int
    ) -> tuple[SequenceStatus, StoredBatch | None]:
        """Classify batch `seq` of a session. REPEAT and CONFLICT include the stored result."""
        session = self._sessions.get(session_id)
        if session is None:
            return SequenceStatus.EXPIRED, None
        if seq == session.last_seq + 1:
            full = len(session.results) == RESULTS_KEPT and session.results[0].last_index > committed_index
            return (SequenceStatus.WINDOW_FULL if full else SequenceStatus.NEW), None
        if seq > session.last_seq:
            return SequenceStatus.GAP, None
        age = session.last_seq - seq
        if age >= len(session.results):
            return SequenceStatus.FORGOTTEN, None
        result = session.results[-1 - age]
        if (result.count, result.crc) != (count, crc):
            return SequenceStatus.CONFLICT, result
        return SequenceStatus.REPEAT, result

    def unknown_since(self, session_id: int) -> int:
        """Return the index that must be committed before an unknown session is certainly absent.

        If an OPEN in the uncommitted tail evicted the session, this is the index of that OPEN. Otherwise it
        is the session's own index: either the log has no OPEN at that index, or a committed entry evicted the
        session.
        """
        return self._evicted.get(session_id, session_id - self._offset)

    def recovered(self, session_offset: int) -> None:
        """End all sessions: a new cluster continues the log, and its session ids have this offset.

        This cannot be undone: the entry that says so is committed before any other node receives it.
        """
        if session_offset != self._offset:
            self._offset = session_offset
            self._sessions.clear()
            self._undo.clear()
            self._evicted.clear()

    def opened(self, index: int) -> None:
        """Apply the OPEN entry at `index`."""
        session_id = self.session_at(index)
        evicted_id, evicted = -1, None
        if len(self._sessions) >= self._max_sessions:
            evicted_id = min(self._sessions, key=lambda key: self._sessions[key].last_index)
            evicted = self._sessions.pop(evicted_id)
            self._evicted[evicted_id] = index
        self._undo.append(_Undo(index, session_id, None, evicted_id, evicted))
        self._sessions[session_id] = SessionState(0, index, ())

    def appended(self, session_id: int, seq: int, result: StoredBatch) -> bool:
        """Apply batch `seq` of a session.

        The leader that wrote it judged it NEW. Returns False, without a change, if that is impossible.
        """
        before = self._sessions.get(session_id)
        if before is None or seq != before.last_seq + 1:
            return False
        self._undo.append(_Undo(result.last_index, session_id, before, -1, None))
        earlier = before.results
        results = (*(earlier if len(earlier) < RESULTS_KEPT else earlier[1:]), result)
        self._sessions[session_id] = SessionState(seq, result.last_index, results)
        return True

    def truncate_after(self, last_index: int) -> None:
        """Revert the effects of entries above last_index."""
        while self._undo and self._undo[-1].last_index > last_index:
            undo = self._undo.pop()
            _revert(self._sessions, undo)
            self._evicted.pop(undo.evicted_id, None)

    def committed(self, committed_index: int) -> None:
        """Discard the undo records of committed entries."""
        while self._undo and self._undo[0].last_index <= committed_index:
            self._evicted.pop(self._undo.popleft().evicted_id, None)

    def encode_committed(self) -> bytes:
        """Encode the table without the effects of the uncommitted tail."""
        sessions = dict(self._sessions)
        for undo in reversed(self._undo):
            _revert(sessions, undo)
        return self._encode(sessions)

    def encode_all(self) -> bytes:
        """Encode the table at the end of the log, for a state image that starts there."""
        return self._encode(self._sessions)

    def load(self, data: bytes) -> None:
        """Replace the table by an encoded one. Raises ValueError, without a change, if `data` is not a
        table.
        """
        sessions: dict[int, SessionState] = {}
        try:
            (count,) = _COUNT.unpack_from(data)
            offset, session_offset = _COUNT.size, 0
            if count == _HAS_OFFSET:
                (session_offset,) = _OFFSET.unpack_from(data, offset)
                (count,) = _COUNT.unpack_from(data, offset + _OFFSET.size)
                offset += _OFFSET.size + _COUNT.size
            for _ in range(count):
                session_id, last_seq, last_index, result_count = _SESSION.unpack_from(data, offset)
                offset += _SESSION.size
                results = []
                for _ in range(result_count):
                    results.append(StoredBatch(*_RESULT.unpack_from(data, offset)))
                    offset += _RESULT.size
                sessions[session_id] = SessionState(last_seq, last_index, tuple(results))
        except struct.error as error:
            raise ValueError(f"the data is not a session table: {error}") from None
        if offset != len(data):
            raise ValueError(
                f"the data is not a session table: it has {len(data) - offset} extra bytes at its end"
            )
        self._sessions = sessions
        self._offset = session_offset
        self._undo.clear()
        self._evicted.clear()

    def _encode(self, sessions: dict[int, SessionState]) -> bytes:
        known, self._encoded = self._encoded, {}
        parts = [_COUNT.pack(len(sessions))]
        if self._offset:
            parts.insert(0, _COUNT.pack(_HAS_OFFSET) + _OFFSET.pack(self._offset))
        for session_id in sorted(sessions):
            session = sessions[session_id]
            encoded = known.get(session_id)
            if encoded is None or encoded[0] is not session:
                encoded = session, _encoded(session_id, session)
            self._encoded[session_id] = encoded
            parts.append(encoded[1])
        return b"".join(parts)


def _encoded(session_id: int, session: SessionState) -> bytes:
    head = _SESSION.pack(session_id, session.last_seq, session.last_index, len(session.results))
    return b"".join((head, *[_RESULT.pack(*result) for result in session.results]))


def _revert(sessions: dict[int, SessionState], undo: _Undo) -> None:
    if undo.before is None:
        del sessions[undo.session_id]
    else:
        sessions[undo.session_id] = undo.before
    if undo.evicted is not None:
        sessions[undo.evicted_id] = undo.evicted
