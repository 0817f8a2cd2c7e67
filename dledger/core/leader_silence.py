"""Decides how long a leader may be silent before its follower requests pre-votes (docs/guarantees.md rule 5).

A paused or isolated leader closes no connection, so only its silence reveals it. A leader that is merely
slow must not be replaced. The bound therefore depends on the pauses between messages that this follower has
observed: on a busy machine or network they are longer, and the bound rises up to the normal election timeout.
"""

from __future__ import annotations

from dledger.core.values import Timing

#: The bound is this multiple of the longest observed pause.
_MULTIPLE = 2
#: A pause is remembered until the end of the window after its own.
_WINDOW_MS = 60_000


class LeaderSilence:
    """The pauses between messages from the leader."""

    def __init__(self, timing: Timing) -> None:
        self._min_ms = timing.silence_ms
        self._max_ms = timing.election_min_ms
        self._longest_ms = 0  # in the current window
        self._longest_before_ms = 0  # in the window before it
        self._window_end_ms = 0
        self._deposed: tuple[str, int] | None = None  # the last leader and the time of its last message

    @property
    def bound_ms(self) -> int:
        """Return the longest silence that is not suspicious, at most election_min_ms."""
        longest_ms = max(self._longest_ms, self._longest_before_ms)
        return min(self._max_ms, max(self._min_ms, _MULTIPLE * longest_ms)) if self._min_ms else self._max_ms

    @property
    def is_bounded(self) -> bool:
        """Return False if only the normal election timeout applies."""
        return self.bound_ms < self._max_ms

    def note_pause(self, pause_ms: int, now_ms: int) -> None:
        """Record the time between two messages from the same leader."""
        if now_ms >= self._window_end_ms:
            missed = now_ms >= self._window_end_ms + _WINDOW_MS
            self._longest_before_ms = 0 if missed else self._longest_ms
            self._longest_ms = 0
            self._window_end_ms = now_ms + _WINDOW_MS
        if pause_ms > self._longest_ms:
            self._longest_ms = pause_ms

    def deposed(self, leader_id: str, last_contact_ms: int) -> None:
        self._deposed = leader_id, last_contact_ms

    def returned(self, leader_id: str, now_ms: int) -> None:
        """Record a message from a leader of an earlier term.

        If that leader was silent for less than a normal election timeout, it was only slow, and the next one
        may be silent for longer.
        """
        if self._deposed is None or self._deposed[0] != leader_id:
            return
        pause_ms = now_ms - self._deposed[1]
        self._deposed = None
        if pause_ms < self._max_ms:
            self.note_pause(pause_ms, now_ms)
