"""Counters of a node, as plain numbers for exporters. They need no lock, because each has a single writing
thread."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

#: Upper bounds in seconds: from a cached write to a stalled disk.
_LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class LatencyHistogram:
    """Observations in buckets: one count per upper bound, and a last one for larger values."""

    __slots__ = ("buckets", "counts", "sum")

    def __init__(self, buckets: Sequence[float] = _LATENCY_BUCKETS) -> None:
        self.buckets: Sequence[float] = buckets
        self.counts: list[int] = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value


class NodeMetrics:
    """The counters of one node. Latencies are in seconds."""

    def __init__(self) -> None:
        self.append_latency = LatencyHistogram()
        self.fsync_latency = LatencyHistogram()
        self._elections: Counter[str] = Counter()
        self._limits: Counter[str] = Counter()
        #: True while CPUs are kept awake during work. Set by the owner of the event loop.
        self.keeps_cpus_awake: Callable[[], bool] = lambda: False
        #: Recent maximum delay of the event loop (seconds), and the number of delays. Set likewise.
        self.loop_lag_s: Callable[[], float] = lambda: 0.0
        self.loop_stalls: Callable[[], int] = lambda: 0

    @property
    def elections_by_cause(self) -> Mapping[str, int]:
        return self._elections

    @property
    def limits_hit(self) -> Mapping[str, int]:
        return self._limits

    def election(self, cause: str) -> None:
        self._elections[cause] += 1

    def limit_hit(self, name: str) -> None:
        self._limits[name] += 1
