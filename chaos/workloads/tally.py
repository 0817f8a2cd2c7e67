"""Counters of a workload, which the terminal shows and which determine whether a run is void."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from chaos.trace.schema import OpType

_RECENT = 2000
#: Shortest pause between two acknowledgments that is recorded, in ns.
_SILENCE_NS = 100_000_000
_MAX_SILENCES = 10_000
_SLICE_NS = 100_000_000


class Silence(NamedTuple):
    """A period without an acknowledgment (monotonic ns)."""

    since: int
    until: int


class LoadTally:
    """Counts outcomes and errors of a workload.

    `operations_between` counts each acknowledged send once, whatever its size; all other counters count the
    messages of a batch. `shed`: operations that an open loop skipped because too many were in flight.
    `repeated`: sends with a second attempt; `recognized`: sends of which the broker had stored an earlier
    attempt. `unclosed`: descriptions of clients whose close did not end. Times are monotonic ns.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[OpType] = Counter()
        self.errors: Counter[str] = Counter()
        self.operations = 0
        self.read = 0  # entries and messages delivered to readers and groups
        self.shed = 0
        self.repeated = 0
        self.recognized = 0
        self.unclosed: list[str] = []
        self.first_of_term: dict[int, int] = {}  # term -> time of its first acknowledgment
        self.silences: list[Silence] = []
        self.latencies_ns: deque[int] = deque(maxlen=_RECENT)
        self._last_ok: int | None = None
        self._slices: Counter[int] = Counter()  # acknowledged messages per _SLICE_NS
        self._operations: Counter[int] = Counter()  # acknowledged operations per _SLICE_NS
        self._read: Counter[int] = Counter()

    @property
    def acknowledged(self) -> int:
        return self.outcomes[OpType.OK]

    def ok(self, began: int, now: int, messages: int = 1, term: int = -1) -> None:
        """Record an acknowledgment. `term`: the term of the leader that answered, if known."""
        self.first_of_term.setdefault(term, now)
        self.outcomes[OpType.OK] += messages
        self.latencies_ns.append(now - began)
        self._slices[now // _SLICE_NS] += messages
        self._operations[now // _SLICE_NS] += 1
        self.operations += 1
        last, self._last_ok = self._last_ok, now
        if last is not None and now - last > _SILENCE_NS and len(self.silences) < _MAX_SILENCES:
            self.silences.append(Silence(last, now))

    def count_read(self, now: int, count: int) -> None:
        """Count entries or messages delivered to readers or groups."""
        self.read += count
        self._read[now // _SLICE_NS] += count

    def not_ok(self, outcome: OpType, code: str, messages: int = 1) -> None:
        self.outcomes[outcome] += messages
        self.errors[code or "other"] += 1

    def acknowledged_between(self, since: int, until: int) -> int:
        """Return the number of acknowledged messages, with a time resolution of a tenth of a second."""
        return _between(self._slices, since, until)

    def operations_between(self, since: int, until: int) -> int:
        return _between(self._operations, since, until)

    def read_between(self, since: int, until: int) -> int:
        return _between(self._read, since, until)

    @property
    def longest_silence(self) -> Silence | None:
        return max(self.silences, key=lambda s: s.until - s.since, default=None)

    def longest_silence_ms(self, since: int, until: int) -> int:
        """Return the length of the longest silence that overlaps an interval, or 0."""
        lengths = [s.until - s.since for s in self.silences if s.since <= until and s.until >= since]
        return max(lengths, default=0) // 1_000_000

    def latency_ms(self, share: float) -> float:
        """Return a quantile of the latencies of the last operations, or 0 if there are none."""
        ordered = sorted(self.latencies_ns)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6 if ordered else 0.0


def _between(slices: Counter[int], since: int, until: int) -> int:
    # Iterate over the recorded slices, not over the interval: `since` may be 0, long before the first slice.
    first, last = since // _SLICE_NS, until // _SLICE_NS
    return sum(count for slice_number, count in slices.items() if first <= slice_number <= last)
