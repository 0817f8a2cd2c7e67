"""The part of the quick check that is about consumer groups: who they are, and in which order each member was
given the messages of a queue as long as it kept it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from chaos.quick.retention import Retention
from chaos.quick.trace import SHARE, QuickReport, events_of, log_of, position_of


@dataclass(slots=True)
class GroupFacts:
    """`bit`: one of 64, of its own. `tags`: what it wants; None: everything. `mode`: see the schema."""

    bit: int
    topics: set[str] = field(default_factory=set)
    tags: frozenset[str] | None = None
    members: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    mode: str = ""

    @property
    def receives(self) -> bool:
        """It is given messages one by one; no member has queues."""
        return self.mode in ("shared", "fifo")

    def wants(self, log: str, tag: str) -> bool:
        """Whether the group has to process such a message. A group that nobody has stayed in has to do
        nothing."""
        if not self.members - self.gone or (self.tags is not None and tag not in self.tags):
            return False
        return log.removeprefix("q:").rpartition("/")[0] in self.topics


class _Last(NamedTuple):
    """What a member was given last of a queue."""

    consumer: str
    epoch: int
    at: int


def check_groups(
    readers: Sequence[Path], clients: Collection[int], retention: Retention, report: QuickReport
) -> dict[str, GroupFacts]:
    """Name -> facts of all groups. Each file is about one place in one group, which members take in turn.
    `clients`: numbers of all who sent anything."""
    groups: dict[str, GroupFacts] = {}
    for path in readers:
        last: dict[tuple[str, str], _Last] = {}
        for event in events_of(path, ("member", "dlv", "done"), report):
            if event["ev"] == "member":
                _take_member(event, groups)
            elif event["ev"] == "done":
                report.consumed += event["code"] != "retry"
            elif "group" in event:
                if event["mid"] < 0 or event["mid"] // SHARE not in clients:
                    where = f"message {event['mid']}, given to {event['consumer']},"
                    report.note("phantom", f"{where} is nobody's")
                if not groups[event["group"]].receives:
                    key = (event["group"], log_of(event))
                    last[key] = _follow(event, last.get(key), groups[event["group"]], retention, report)
    return groups


def _take_member(event: dict[str, Any], groups: dict[str, GroupFacts]) -> None:
    facts = groups.setdefault(event["group"], GroupFacts(1 << (len(groups) % 64)))
    if event["e"] == "join":
        facts.members.add(event["consumer"])
        facts.topics.add(event["topic"])
        facts.mode = event.get("mode", "")
        wanted = event.get("filter", "*")
        facts.tags = None if wanted == "*" else frozenset(wanted.split("||"))
    elif event["e"] in ("leave", "crash"):
        facts.gone.add(event["consumer"])


def _follow(
    event: dict[str, Any], last: _Last | None, facts: GroupFacts, retention: Retention, report: QuickReport
) -> _Last:
    now = _Last(event["consumer"], event["epoch"], position_of(event))
    if last is None or (last.consumer, last.epoch) != (now.consumer, now.epoch):
        return now
    where = f"{now.consumer} was given {now.at} of {log_of(event)} after {last.at}"
    if event.get("attempt", 0):
        if now.at != last.at:
            report.note("reordered", f"{where}, as if it had failed before")
    elif now.at == last.at:
        report.note("duplicated", f"{where}, which had not failed")
    elif now.at < last.at:
        report.note("reordered", where)
    elif now.at > last.at + 1 and facts.tags is None and not retention.has_passed(log_of(event), now.at):
        report.note("lost", f"{where}, and nothing in between")
    return now
