"""Retention in the quick check: messages that may have been removed by the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.quick.trace import events_of, log_of

#: Maximum gain of cluster time on the run's clocks, in ns: a lag of 1 s, and 100 ms for a change of leader.
_GAIN_NS = 1_100_000_000


@dataclass(slots=True)
class Retention:
    """Configured retention, and the start of each log that the final readers received, with the time.

    `lost_ns`: time at which a classic master without double write was lost, or a majority of nodes for good,
    of whose commits the survivor, or the promoted learner, knew those up to `known_index`. Clients cannot
    observe the number of bytes after an entry. With a limit on bytes (`by_size`), any message below the start
    of its log may therefore have been removed.
    """

    by_size: bool = False
    keep_ns: int | None = None
    lost_ns: int = 0
    known_index: int = -1
    begins: dict[str, tuple[int, int]] = field(default_factory=dict)  # log -> (position, ns)

    def may_be_removed(self, log: str, position: int, sent_at: int) -> bool:
        """Return True if a message at a position, whose send started at `sent_at`, may have been removed."""
        begin, told_at = self.begins.get(log, (0, 0))
        if position >= begin:
            return False
        return self.by_size or self.expires_by(told_at, sent_at)

    def expires_by(self, at: int, sent_at: int) -> bool:
        """Return True if a message whose send started at `sent_at` may have been removed by age at `at`."""
        return self.keep_ns is not None and at - sent_at >= self.keep_ns

    def may_be_lost_with_nodes(self, position: int, sent_at: int) -> bool:
        """Return True if a message whose send started at `sent_at` may have been lost with a classic master
        or with a majority of nodes. Clients cannot observe which messages the others had."""
        return sent_at < self.lost_ns and position > self.known_index

    def is_start_removed(self, log: str, position: int) -> bool:
        """Return True if everything before a position may have been removed by the end of the run."""
        return (self.by_size or self.keep_ns is not None) and position <= self.begins.get(log, (0, 0))[0]


def retention_of(run_directory: Path, drains: Sequence[Path]) -> Retention:
    """Return the configured retention, and the starts of the logs that the final readers received."""
    retention = Retention()
    is_single = False
    for path in sorted((run_directory / "raw").glob("nemesis.*")):
        for event in events_of(path, ("meta",)):
            if event["e"] == "taken_over" and is_single:
                retention.lost_ns = max(retention.lost_ns, event["mono"])
            if event["e"] == "recovered":
                retention.lost_ns = event["mono"]
                # A promotion claims that the learner knew all that it kept.
                retention.known_index = max(event["committed"], event.get("last", -1))
            if event["e"] == "run_begin":
                retention.by_size = "keep_bytes" in event
                is_single = event.get("broker_role") == "ASYNC_MASTER"
                retention.keep_ns = event["keep_ms"] * 1_000_000 - _GAIN_NS if "keep_ms" in event else None
    for path in drains:
        requests: dict[int, str] = {}
        for event in events_of(path, ("op",)):
            if event["type"] == "invoke" and event["f"] in ("min_off", "max_off"):
                requests[event["op"]] = log_of(event)
            elif event["type"] == "ok" and "min_off" in event:
                log = requests[event["op"]]
                start = (event["min_off"], event["mono"])
                retention.begins[log] = max(retention.begins.get(log, start), start)
    return retention
