"""The part of the quick check that is about retention: which messages may be gone in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.quick.trace import events_of, log_of

#: Cluster time may run faster than ours by a thousandth: so many of our ns may be a ms of it.
_LEAST_MS = 999_000


@dataclass(slots=True)
class Retention:
    """What the run was configured to keep, and where its logs begin, as the final reader was told, and when.
    `lost_ns`: when a classic master was lost that promised nothing of a second copy.

    Clients do not see how many bytes stand behind an entry. With a bound on these (`by_size`) anything below
    the begin of its log may be gone.
    """

    by_size: bool = False
    keep_ns: int | None = None
    lost_ns: int = 0
    begins: dict[str, tuple[int, int]] = field(default_factory=dict)  # log -> (position, ns)

    def lets_go(self, log: str, position: int, sent_at: int) -> bool:
        """Whether a message that was stored at a position, by a send that began then, may be gone."""
        begin, told_at = self.begins.get(log, (0, 0))
        if position >= begin:
            return False
        return self.by_size or (self.keep_ns is not None and told_at - sent_at >= self.keep_ns)

    def lost_with_its_master(self, sent_at: int) -> bool:
        """Whether a message whose send began then may have been lost so. Clients do not see what the slave
        had."""
        return sent_at < self.lost_ns

    def has_passed(self, log: str, position: int) -> bool:
        """Whether all before a position may be gone by the end of the run, for all that groups show."""
        return (self.by_size or self.keep_ns is not None) and position <= self.begins.get(log, (0, 0))[0]


def retention_of(run_directory: Path, drains: Sequence[Path]) -> Retention:
    """What the harness configured, and what the final readers were told."""
    found = Retention()
    is_single = False
    for path in sorted((run_directory / "raw").glob("nemesis.*")):
        for event in events_of(path, ("meta",)):
            if event["e"] == "taken_over" and is_single:
                found.lost_ns = max(found.lost_ns, event["mono"])
            if event["e"] == "run_begin":
                found.by_size = "keep_bytes" in event
                is_single = event.get("broker_role") == "ASYNC_MASTER"
                found.keep_ns = event["keep_ms"] * _LEAST_MS if "keep_ms" in event else None
    for path in drains:
        asked: dict[int, str] = {}
        for event in events_of(path, ("op",)):
            if event["type"] == "invoke" and event["f"] in ("min_off", "max_off"):
                asked[event["op"]] = log_of(event)
            elif event["type"] == "ok" and "min_off" in event:
                log = asked[event["op"]]
                told = (event["min_off"], event["mono"])
                found.begins[log] = max(found.begins.get(log, told), told)
    return found
