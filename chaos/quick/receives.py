"""The part of the quick check that is about groups that receive messages one by one, and acknowledge each: an
acknowledged ack never comes back, and one that consumes in order is given each queue's messages so.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any

from chaos.quick.groups import GroupFacts
from chaos.quick.trace import SHARE, QuickReport, events_of, log_of, position_of


def check_order(readers: Sequence[Path], groups: Mapping[str, GroupFacts], report: QuickReport) -> None:
    """Look at the first time that each message was given to a group, whichever member it was."""
    given: dict[tuple[str, str], _Given] = {}
    if any(facts.mode == "fifo" for facts in groups.values()):
        files = [events_of(path, ("dlv",)) for path in readers]
        for event in merge(*files, key=itemgetter("mono")):
            if "group" in event and groups[event["group"]].mode == "fifo":
                key = (event["group"], log_of(event))
                given.setdefault(key, _Given()).take(event, report)


def check_acks(readers: Sequence[Path], turn: Container[int], report: QuickReport) -> None:
    """Look for messages that a group was given by a receive that began after it had acknowledged them.
    `turn`: numbers that messages have with their client; others are looked at another time."""
    acked: dict[tuple[str, int], int] = {}  # group and message -> when the ack had been answered
    for path in readers:
        for key, mono in _acknowledged(path):
            if key[1] % SHARE in turn:
                acked[key] = min(mono, acked.get(key, mono))
    for path in readers:
        begun: dict[int, int] = {}  # receives under way
        for event in events_of(path, ("op", "dlv")):
            if event["ev"] == "dlv":
                since = acked.get((event.get("group", ""), event["mid"]))
                if since is not None and since < begun.get(event["op"], 0):
                    where = f"message {event['mid']} of {log_of(event)}, which group {event['group']}"
                    report.note("returned", f"{where} had acknowledged, was given to {event['consumer']}")
            elif event["f"] == "receive":
                if event["type"] == "invoke":
                    begun[event["op"]] = event["mono"]
                else:
                    begun.pop(event["op"], None)


@dataclass(slots=True)
class _Given:
    """Which positions of a queue a group was given, and the highest of them."""

    top: int = -1
    seen: bytearray = field(default_factory=bytearray)

    def take(self, event: dict[str, Any], report: QuickReport) -> None:
        at = position_of(event)
        if at >= len(self.seen):
            self.seen.extend(bytes(at + 1 - len(self.seen)))
        if at < self.top and not self.seen[at]:
            where = f"{event['consumer']} was given {at} of {log_of(event)}"
            report.note("reordered", f"{where} for the first time, after {self.top}")
        self.seen[at] = 1
        self.top = max(self.top, at)


def _acknowledged(path: Path) -> Iterator[tuple[tuple[str, int], int]]:
    """((group, message), when) of each ack that was answered ok."""
    begun: dict[int, tuple[str, int]] = {}
    for event in events_of(path, ("op",)):
        if event["f"] == "ack":
            if event["type"] == "invoke":
                begun[event["op"]] = event["group"], event["mid"]
            else:
                key = begun.pop(event["op"])
                if event["type"] == "ok":
                    yield key, event["mono"]
