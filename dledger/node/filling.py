"""How far ahead of appends zeros are written: about what a second of them takes. Pure."""

from __future__ import annotations

#: Appends of so much time are ahead, within bounds: for less, a file system's own records are not touched.
_AHEAD_S = 1.0
_LEAST_BYTES = 256 << 10
#: Growth is looked at so often; half of what is known of it is what was known before.
_LOOK_EVERY_S = 0.2
#: Who appends less than this has no need of it.
_LIGHT_BYTES_PER_S = 1 << 10
#: So much is written at once, and at most: what syncs meet of it is a chunk, twice as often as needed.
_CHUNK_BYTES = 1 << 20
_HEADWAY = 2.0


class Filling:
    """What to fill, from where the log ends, looked at again and again.

    A log that does not grow, or that grows by more than `most_bytes_per_second`, is not filled: with large
    batches to sync there is more work in writing everything twice than there is to be saved.
    """

    def __init__(self, most_bytes_per_second: int) -> None:
        self._most = most_bytes_per_second
        self._rate = 0.0
        self._seen: tuple[float, int] | None = None

    @property
    def ahead_bytes(self) -> int:
        """Beyond the end of the log; 0: nothing."""
        if not _LIGHT_BYTES_PER_S <= self._rate <= self._most:
            return 0
        return max(_LEAST_BYTES, int(self._rate * _AHEAD_S))

    @property
    def chunk_bytes(self) -> int:
        """At a time."""
        return min(_CHUNK_BYTES, max(_LEAST_BYTES, self.ahead_bytes // 4))

    @property
    def pause_s(self) -> float:
        """Between two chunks."""
        return min(_LOOK_EVERY_S, self.chunk_bytes / (self._rate * _HEADWAY)) if self._rate else _LOOK_EVERY_S

    def look(self, now_s: float, end_pos: int) -> None:
        """`end_pos`: where the log ends."""
        if self._seen is None:
            self._seen = now_s, end_pos
            return
        since_s, before = self._seen
        if now_s - since_s >= _LOOK_EVERY_S:
            self._seen = now_s, end_pos
            self._rate = (self._rate + max(0, end_pos - before) / (now_s - since_s)) / 2
