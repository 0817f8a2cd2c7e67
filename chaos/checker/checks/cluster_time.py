"""Bound on how far cluster time may run ahead of the clocks of a run (docs/guarantees.md, rule 12)."""

from __future__ import annotations

#: Maximum gain of cluster time between an answer of a master and any later moment, in ns. After the first
#: stamp of a leadership, cluster time lags by at most 1 s; a longer lag is stepped over. If the next
#: leadership steps, cluster time makes up for that second in one step, and a change of leader may add 100 ms.
GAIN_NS = 1_100_000_000


def least_ns(span_ms: str) -> str:
    """Return SQL for the minimum real time in ns in which a span of cluster time can pass. It may be
    negative."""
    return f"({span_ms} * 1000000 - {GAIN_NS})"
