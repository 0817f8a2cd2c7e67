"""Consumer groups in the quick check: their members, and the order of messages that each member receives from
a queue while it owns the queue."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from chaos.quick.retention import Retention
from chaos.quick.trace import SHARE, QuickReport, events_of, log_of, position_of


@dataclass(slots=True)
class GroupFacts:
    """A group. `bit`: one of 64. `tags`: its filter, or None. `mode`: see the schema. `last_ns`: time of its
    last event."""

    bit: int
    topics: set[str] = field(default_factory=set)
    tags: frozenset[str] | None = None
    members: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    mode: str = ""
    last_ns: int = 0

    @property
    def receives(self) -> bool:
        """True for groups with per-message acknowledgment, whose members own no queues."""
        return self.mode in ("shared", "fifo")

    def wants(self, log: str, tag: str) -> bool:
        """Return True if the group must process such a message. A group without members at the end does not
        have to process any."""
        if not self.members - self.gone or (self.tags is not None and tag not in self.tags):
            return False
        return log.removeprefix("q:").rpartition("/")[0] in self.topics


class _LastDelivery(NamedTuple):
    """The last delivery from a queue to a member."""

    consumer: str
    epoch: int
    at: int


def check_groups(
    readers: Sequence[Path], clients: Collection[int], retention: Retention, report: QuickReport
) -> dict[str, GroupFacts]:
    """Check the deliveries and return the groups by name.

    Each file belongs to one slot of one group. Several members use a slot one after the other. `clients`:
    numbers of all clients that sent messages.
    """
    groups: dict[str, GroupFacts] = {}
    for path in readers:
        last: dict[tuple[str, str], _LastDelivery] = {}
        for event in events_of(path, ("member", "dlv", "done"), report):
            if (facts := groups.get(event.get("group", ""))) is not None:
                facts.last_ns = max(facts.last_ns, event["mono"])
            if event["ev"] == "member":
                _add_member_event(event, groups)
            elif event["ev"] == "done":
                report.consumed += event["code"] != "retry"
            elif "group" in event:
                if event["mid"] < 0 or event["mid"] // SHARE not in clients:
                    where = f"message {event['mid']}, delivered to {event['consumer']},"
                    report.note("phantom", f"{where} has no sender")
                if not groups[event["group"]].receives:
                    key = (event["group"], log_of(event))
                    last[key] = _check_delivery(
                        event, last.get(key), groups[event["group"]], retention, report
                    )
    return groups


def _add_member_event(event: dict[str, Any], groups: dict[str, GroupFacts]) -> None:
    facts = groups.setdefault(event["group"], GroupFacts(1 << (len(groups) % 64)))
    if event["e"] == "join":
        facts.members.add(event["consumer"])
        facts.topics.add(event["topic"])
        facts.mode = event.get("mode", "")
        tags = event.get("filter", "*")
        facts.tags = None if tags == "*" else frozenset(tags.split("||"))
    elif event["e"] in ("leave", "crash"):
        facts.gone.add(event["consumer"])


def _check_delivery(
    event: dict[str, Any],
    last: _LastDelivery | None,
    facts: GroupFacts,
    retention: Retention,
    report: QuickReport,
) -> _LastDelivery:
    now = _LastDelivery(event["consumer"], event["epoch"], position_of(event))
    if last is None or (last.consumer, last.epoch) != (now.consumer, now.epoch):
        return now
    where = f"{now.consumer} received {now.at} of {log_of(event)} after {last.at}"
    if event.get("attempt", 0):
        if now.at != last.at:
            report.note("reordered", f"{where}, as a retry")
    elif now.at == last.at:
        report.note("duplicated", f"{where}, not as a retry")
    elif now.at < last.at:
        report.note("reordered", where)
    elif (
        now.at > last.at + 1 and facts.tags is None and not retention.is_start_removed(log_of(event), now.at)
    ):
        report.note("lost", f"{where}, and nothing in between")
    return now
