"""Appends that wait for space on the disk to be prepared: in order, bounded, and no longer than they said."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dledger.errors import DLedgerError
from dledger.replica.admission import RoomIsComing
from dledger.replica.shell import AppendOutcome, AppendToken

Outcome = AppendOutcome | DLedgerError | None


@dataclass(slots=True)
class WaitingAppend:
    token: AppendToken
    bodies: Sequence[bytes]
    session: tuple[int, int] | None
    open_session: bool
    deadline_ms: int


class AdmissionQueue:
    def __init__(self, max_bytes: int, max_appends: int) -> None:
        self._max_bytes = max_bytes
        self._max_appends = max_appends
        self._waiting: deque[WaitingAppend] = deque()
        self._bytes = 0
        self._next_deadline_ms: float = float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, append: WaitingAppend, pending_bytes: int) -> bool:
        """False: so much waits already that it is refused. `pending_bytes` wait elsewhere."""
        size = sum(map(len, append.bodies))
        if len(self._waiting) >= self._max_appends or pending_bytes + self._bytes + size > self._max_bytes:
            return False
        self._waiting.append(append)
        self._bytes += size
        self._next_deadline_ms = min(self._next_deadline_ms, append.deadline_ms)
        return True

    def retry(
        self, now_ms: int, admit: Callable[[WaitingAppend], Outcome]
    ) -> list[tuple[AppendToken, AppendOutcome | DLedgerError]]:
        """Let those in that there is room for now. Whoever has an answer, and the answer."""
        answers: list[tuple[AppendToken, AppendOutcome | DLedgerError]] = []
        while self._waiting:
            outcome = admit(self._waiting[0])
            if isinstance(outcome, RoomIsComing) and now_ms < self._waiting[0].deadline_ms:
                answers += [(token, outcome) for token in self._leave_late(now_ms)]
                break
            token = self._leave().token
            if outcome is not None:
                answers.append((token, outcome))
        return answers

    def clear(self) -> list[AppendToken]:
        """Nobody waits any more: the tokens."""
        tokens = [append.token for append in self._waiting]
        self._waiting.clear()
        self._bytes = 0
        self._next_deadline_ms = float("inf")
        return tokens

    def _leave_late(self, now_ms: int) -> list[AppendToken]:
        """Those behind the first whose time is up: the tokens."""
        if now_ms < self._next_deadline_ms:
            return []
        late = [append for append in self._waiting if append.deadline_ms <= now_ms]
        self._waiting = deque(append for append in self._waiting if append.deadline_ms > now_ms)
        self._bytes -= sum(len(body) for append in late for body in append.bodies)
        self._next_deadline_ms = min(append.deadline_ms for append in self._waiting)
        return [append.token for append in late]

    def _leave(self) -> WaitingAppend:
        append = self._waiting.popleft()
        self._bytes -= sum(map(len, append.bodies))
        return append
