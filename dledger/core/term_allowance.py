"""How far terms may rise because peers say so.

A term only rises, and it is 64 bits wide on the wire and on disk: a peer that names one near the end of
the range, whether broken or hostile, would leave no term for another election. So terms from peers are
believed up to an allowance, which is refilled with time:

- MAX_TERM_ADVANCE at once. A node that was away adopts all terms that it missed in one step, so this is far
  more than elections can use up: an election each 100 ms for thirteen years.
- TERMS_PER_MS. An election takes a durable vote, so a real one every millisecond is out of reach; and whoever
  repeats the largest jump needs 140,000 years to reach MAX_TERM.

A node that starts has the full allowance: to exhaust the range by restarts takes 2^30 of them.
"""

from __future__ import annotations

from dledger.core.messages import Message, PositionResponse, VoteRequest
from dledger.core.values import MAX_TERM

MAX_TERM_ADVANCE = 1 << 32
TERMS_PER_MS = 1 << 10


class TermAllowance:
    """A token bucket, counted in terms. Times are those of `RaftCore.step`."""

    def __init__(self) -> None:
        self._left = MAX_TERM_ADVANCE
        self._counted_ms: int | None = None  # up to when `_left` was refilled

    def admits(self, advance: int, now_ms: int) -> bool:
        """Whether a peer may raise the term by so much now."""
        return advance <= self.left(now_ms)

    def spend(self, advance: int, now_ms: int) -> None:
        """The term was raised by a peer."""
        self._left = max(0, self.left(now_ms) - advance)
        self._counted_ms = now_ms

    def why_refused(self, message: Message, own_term: int, now_ms: int) -> str | None:
        """Why nothing of a message is believed; None: its terms are within reason."""
        term = message.term
        if isinstance(message, PositionResponse | VoteRequest):
            term = max(term, message.ledger_end_term)
        if term <= own_term or (term <= MAX_TERM and self.admits(term - own_term, now_ms)):
            return None
        return f"term {term} is too far beyond {own_term}, the term of this node"

    def left(self, now_ms: int) -> int:
        if self._counted_ms is None:
            return self._left
        refill = max(0, now_ms - self._counted_ms) * TERMS_PER_MS
        return min(MAX_TERM_ADVANCE, self._left + refill)
