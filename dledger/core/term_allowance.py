"""Limit on how far peers can raise the term.

Terms never decrease, and they have 64 bits on the wire and on disk. If a broken or malicious peer sent a term
near the end of the range, there would be no term for another election. A node therefore limits how far peers
can raise its term to an allowance of MAX_TERM_ADVANCE, which refills at TERMS_PER_MS:

- A node that was down adopts all terms that it missed in one step. Elections cannot exceed MAX_TERM_ADVANCE,
  which is enough for one election every 100 ms for thirteen years.
- An election needs a durable vote, so no cluster holds one every millisecond. A peer that repeats the largest
  step needs 140,000 years to reach MAX_TERM.

A node starts with the full allowance, so 2^30 restarts could exhaust the range.
"""

from __future__ import annotations

from dledger.core.messages import Message, PositionResponse, VoteRequest
from dledger.core.values import MAX_TERM

MAX_TERM_ADVANCE = 1 << 32
TERMS_PER_MS = 1 << 10


class TermAllowance:
    """A token bucket that counts terms. `now_ms` is the clock of `RaftCore.step`."""

    def __init__(self) -> None:
        self._left = MAX_TERM_ADVANCE
        self._counted_ms: int | None = None  # time of the last refill of `_left`

    def admits(self, advance: int, now_ms: int) -> bool:
        """Return True if a peer may raise the term by `advance` now."""
        return advance <= self.left(now_ms)

    def spend(self, advance: int, now_ms: int) -> None:
        """Deduct a raise of the term by a peer."""
        self._left = max(0, self.left(now_ms) - advance)
        self._counted_ms = now_ms

    def why_refused(self, message: Message, own_term: int, now_ms: int) -> str | None:
        """Return why a message must be ignored, or None if its terms are plausible."""
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
