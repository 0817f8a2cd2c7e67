"""What a workload has achieved so far, for the terminal and for the question whether a run says anything."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from chaos.trace.schema import OpType

_RECENT = 2000
#: Between two acknowledgements, in ns: shorter pauses are not worth a note.
_SILENCE_NS = 100_000_000
_MAX_SILENCES = 10_000
_SLICE_NS = 100_000_000


class Silence(NamedTuple):
    """A time without an acknowledgement (monotonic ns)."""

    since: int
    until: int


class Tally:
    """`operations_between` counts each acknowledged send once, whatever its size; all else counts every
    message of a batch. `shed`: operations that an open loop did not begin, because too many were under way.
    Times are monotonic ns."""

    def __init__(self) -> None:
        self.outcomes: Counter[OpType] = Counter()
        self.errors: Counter[str] = Counter()
        self.operations = 0
        self.read = 0  # entries and messages that readers and groups were given
        self.shed = 0
        self.first_of_term: dict[int, int] = {}  # term -> when its first acknowledgement came
        self.silences: list[Silence] = []
        self.latencies_ns: deque[int] = deque(maxlen=_RECENT)
        self._last_ok: int | None = None
        self._slices: Counter[int] = Counter()  # acknowledged, per _SLICE_NS
        self._operations: Counter[int] = Counter()  # the same
        self._read: Counter[int] = Counter()

    @property
    def acknowledged(self) -> int:
        return self.outcomes[OpType.OK]

    def ok(self, began: int, now: int, messages: int = 1, term: int = -1) -> None:
        """`term`: of the leader that answered, if it said."""
        self.first_of_term.setdefault(term, now)
        self.outcomes[OpType.OK] += messages
        self.latencies_ns.append(now - began)
        self._slices[now // _SLICE_NS] += messages
        self._operations[now // _SLICE_NS] += 1
        self.operations += 1
        last, self._last_ok = self._last_ok, now
        if last is not None and now - last > _SILENCE_NS and len(self.silences) < _MAX_SILENCES:
            self.silences.append(Silence(last, now))

    def took(self, now: int, count: int) -> None:
        """Readers or groups were given so many entries or messages."""
        self.read += count
        self._read[now // _SLICE_NS] += count

    def not_ok(self, outcome: OpType, code: str, messages: int = 1) -> None:
        self.outcomes[outcome] += messages
        self.errors[code or "other"] += 1

    def acknowledged_between(self, since: int, until: int) -> int:
        """Messages, to a tenth of a second."""
        return _between(self._slices, since, until)

    def operations_between(self, since: int, until: int) -> int:
        return _between(self._operations, since, until)

    def read_between(self, since: int, until: int) -> int:
        return _between(self._read, since, until)

    @property
    def longest_silence(self) -> Silence | None:
        return max(self.silences, key=lambda s: s.until - s.since, default=None)

    def latency_ms(self, share: float) -> float:
        """A quantile of the last messages; 0 without any."""
        ordered = sorted(self.latencies_ns)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6 if ordered else 0.0


def _between(slices: Counter[int], since: int, until: int) -> int:
    # Not slice by slice: since may be 0, and then so many have passed as tenths of a second since the boot.
    first, last = since // _SLICE_NS, until // _SLICE_NS
    return sum(count for one, count in slices.items() if first <= one <= last)
