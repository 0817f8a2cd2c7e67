"""Sessions: a retry is stored once (docs/guarantees.md, Sessions).

The table covers a log to its *end*, the uncommitted tail included, so that a new leader recognises a retry
whose first try is in its log but not yet committed. What the tail did is undone when it is truncated.
"""

from __future__ import annotations

import struct
from collections import deque
from enum import Enum
from typing import NamedTuple

RESULTS_KEPT = 64  # per session; also the most batches a session may have uncommitted
MAX_SESSIONS = 10_000


class Result(NamedTuple):
    """What the first try of one batch got."""

    first_index: int  # of the first body
    count: int  # type: ignore[assignment]  # hides tuple.count
    crc: int  # of the bodies
    term: int
    pos: int  # of the first body's entry
    last_index: int  # the batch is committed when this is


class Session(NamedTuple):
    """State after its batch `last_seq`; immutable, so that undoing is putting the old value back."""

    last_seq: int
    last_index: int  # of its last session entry's batch; the least one is evicted first
    results: tuple[Result, ...]  # of the last seqs, newest last


class Judgement(Enum):
    NEW = "new"  # append it
    REPEAT = "repeat"  # stored before: answer with the first result once that is committed
    FORGOTTEN = "forgotten"  # stored and committed long ago; where is not known any more
    GAP = "gap"  # an earlier seq has not come: definitely not stored
    EXPIRED = "expired"  # the session is not known
    CONFLICT = "conflict"  # the seq was used for other bodies
    WINDOW_FULL = "window-full"  # too many batches of the session are uncommitted


class _Undo(NamedTuple):
    last_index: int  # of the batch that did it
    session_id: int
    before: Session | None
    evicted_id: int
    evicted: Session | None


_COUNT = struct.Struct(">I")
_SESSION = struct.Struct(">qqqI")
_RESULT = struct.Struct(">qIIqqq")


class SessionTable:
    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._sessions: dict[int, Session] = {}
        self._undo: deque[_Undo] = deque()
        self._evicted: dict[int, int] = {}  # by the uncommitted tail -> the OPEN that needed the place
        self._encoded: dict[int, tuple[Session, bytes]] = {}  # as it was encoded last: most do not change

    def __len__(self) -> int:
        return len(self._sessions)

    def judge(
        self, session_id: int, seq: int, count: int, crc: int, committed_index: int
    ) -> tuple[Judgement, Result | None]:
        """What to do with batch `seq` of a session. REPEAT and CONFLICT come with what is stored under it."""
        session = self._sessions.get(session_id)
        if session is None:
            return Judgement.EXPIRED, None
        if seq == session.last_seq + 1:
            full = len(session.results) == RESULTS_KEPT and session.results[0].last_index > committed_index
            return (Judgement.WINDOW_FULL if full else Judgement.NEW), None
        if seq > session.last_seq:
            return Judgement.GAP, None
        age = session.last_seq - seq
        if age >= len(session.results):
            return Judgement.FORGOTTEN, None
        result = session.results[-1 - age]
        if (result.count, result.crc) != (count, crc):
            return Judgement.CONFLICT, result
        return Judgement.REPEAT, result

    def unknown_since(self, session_id: int) -> int:
        """Of a session that is not known: the index whose commit makes that final, as no log can then hold
        it any more. That of the OPEN in the uncommitted tail that evicted it; else its own, where the log
        has no OPEN, or one whose session was evicted by what is committed."""
        return self._evicted.get(session_id, session_id)

    def opened(self, session_id: int) -> None:
        """The OPEN entry at index session_id is in the log now."""
        evicted_id, evicted = -1, None
        if len(self._sessions) >= self._max_sessions:
            evicted_id = min(self._sessions, key=lambda key: self._sessions[key].last_index)
            evicted = self._sessions.pop(evicted_id)
            self._evicted[evicted_id] = session_id
        self._undo.append(_Undo(session_id, session_id, None, evicted_id, evicted))
        self._sessions[session_id] = Session(0, session_id, ())

    def appended(self, session_id: int, seq: int, result: Result) -> bool:
        """Batch `seq` of a session is in the log now. It was judged NEW by the leader that wrote it; False,
        and nothing is changed, if it cannot have been."""
        before = self._sessions.get(session_id)
        if before is None or seq != before.last_seq + 1:
            return False
        self._undo.append(_Undo(result.last_index, session_id, before, -1, None))
        kept = before.results
        results = (*(kept if len(kept) < RESULTS_KEPT else kept[1:]), result)
        self._sessions[session_id] = Session(seq, result.last_index, results)
        return True

    def truncate_after(self, last_index: int) -> None:
        """Everything above last_index has left the log."""
        while self._undo and self._undo[-1].last_index > last_index:
            undo = self._undo.pop()
            _revert(self._sessions, undo)
            self._evicted.pop(undo.evicted_id, None)

    def committed(self, committed_index: int) -> None:
        """Nothing up to here can be undone any more."""
        while self._undo and self._undo[0].last_index <= committed_index:
            self._evicted.pop(self._undo.popleft().evicted_id, None)

    def encode_committed(self) -> bytes:
        """The table as it is without the uncommitted tail."""
        sessions = dict(self._sessions)
        for undo in reversed(self._undo):
            _revert(sessions, undo)
        return self._encode(sessions)

    def encode_all(self) -> bytes:
        """The table to the end of the log, for a state image that begins there."""
        return self._encode(self._sessions)

    def load(self, data: bytes) -> None:
        """Replace everything by an encoded table. ValueError if it is not one; nothing is changed then."""
        sessions: dict[int, Session] = {}
        try:
            (count,) = _COUNT.unpack_from(data)
            at = _COUNT.size
            for _ in range(count):
                session_id, last_seq, last_index, kept = _SESSION.unpack_from(data, at)
                at += _SESSION.size
                results = []
                for _ in range(kept):
                    results.append(Result(*_RESULT.unpack_from(data, at)))
                    at += _RESULT.size
                sessions[session_id] = Session(last_seq, last_index, tuple(results))
        except struct.error as error:
            raise ValueError(f"not a session table: {error}") from None
        if at != len(data):
            raise ValueError(f"not a session table: {len(data) - at} bytes too many")
        self._sessions = sessions
        self._undo.clear()
        self._evicted.clear()

    def _encode(self, sessions: dict[int, Session]) -> bytes:
        known, self._encoded = self._encoded, {}
        parts = [_COUNT.pack(len(sessions))]
        for session_id in sorted(sessions):
            session = sessions[session_id]
            found = known.get(session_id)
            if found is None or found[0] is not session:
                found = session, _encoded(session_id, session)
            self._encoded[session_id] = found
            parts.append(found[1])
        return b"".join(parts)


def _encoded(session_id: int, session: Session) -> bytes:
    head = _SESSION.pack(session_id, session.last_seq, session.last_index, len(session.results))
    return b"".join((head, *[_RESULT.pack(*result) for result in session.results]))


def _revert(sessions: dict[int, Session], undo: _Undo) -> None:
    if undo.before is None:
        del sessions[undo.session_id]
    else:
        sessions[undo.session_id] = undo.before
    if undo.evicted is not None:
        sessions[undo.evicted_id] = undo.evicted
