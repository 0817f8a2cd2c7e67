"""Quick check of the raw trace of a run: messages that were lost, duplicated, reordered, or never sent, in
the logs and in consumer groups.

Reads the files line by line and keeps a few bytes per message for a limited range of messages; larger traces
are read several times. Shares no code with the Spark job, so that the two are independent.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

from chaos.quick.groups import GroupFacts, check_groups
from chaos.quick.retention import Retention, retention_of
from chaos.quick.trace import SHARE, QuickReport, events_of, log_of, position_of

#: Number of messages per pass over the files.
WINDOW = 1 << 20

#: Operations that send the message that they name, or decide whether it is delivered.
_SENDS = ("send", "append", "txn_begin")
#: Operations that name a message without sending it.
_NOT_SENDING = ("txn_begin", "txn_rollback", "recall")

# State of a message without a known position. Half: in a transaction without a request to commit.
_NEVER_SENT, _IN_DOUBT, _FAILED, _STORED_SOMEWHERE, _HALF = -1, -2, -3, -4, -5
#: Key of a message without one.
_NO_KEY = (1 << 32) - 1
#: Maximum gain of cluster time on the run's clocks, in ns: a lag of 1 s, and 100 ms for a change of leader.
_GAIN_NS = 1_100_000_000


def quick_check(run_directory: Path, window: int = WINDOW) -> QuickReport:
    """Check a finished run. Raises FileNotFoundError if it has no trace."""
    files = sorted(path for path in (run_directory / "raw").iterdir() if path.name.startswith("client-"))
    drains = [path for path in files if path.name.startswith("client-drain")]
    clients = {path: _client_of(path) for path in files if path not in drains}
    senders = {path: client for path, client in clients.items() if client >= 0}
    readers = [path for path in clients if path not in senders]
    report = QuickReport()
    _check_drains(drains, set(senders.values()), report)
    retention = retention_of(run_directory, drains)
    groups = check_groups(readers, set(senders.values()), retention, report)
    check_order(readers, groups, report)
    share, turn = max(1, window // max(1, len(senders))), 0
    while True:
        sent = {
            c: _SentMessages(c * SHARE + turn * share, share, is_first=turn == 0, lost_ns=retention.lost_ns)
            for c in senders.values()
        }
        for path, client in senders.items():
            for event in events_of(path, ("op", "item"), report if turn == 0 else None):
                sent[client].add_event(event, report)
            sent[client].count(report)
        _follow(sent, drains, readers, groups, report)
        for topic, key, mids in lookups_of(readers):
            for messages in sent.values():
                messages.looked_up(topic, key, mids, report)
        if any(facts.receives for facts in groups.values()):
            check_acks(readers, range(turn * share, (turn + 1) * share), report)
        for path, client in senders.items():
            sent[client].report_lost(path.name, groups if report.drained else {}, retention, report)
        behind = [
            messages.behind - client * SHARE
            for client, messages in sent.items()
            if messages.behind is not None
        ]
        if not behind:
            return report
        # Skip to the range of the next message, because a wrong number may be far beyond all others.
        turn = min(behind) // share


def _follow(
    sent: Mapping[int, _SentMessages],
    drains: list[Path],
    readers: list[Path],
    groups: Mapping[str, GroupFacts],
    report: QuickReport,
) -> None:
    """Record the final reads and the deliveries to groups of these messages."""
    for path in drains:
        for event in events_of(path, ("dlv",)):
            if (messages := sent.get(event["mid"] // SHARE)) is not None:
                messages.found(event, report)
    for path in readers if groups else ():
        for event in events_of(path, ("dlv", "done")):
            messages = sent.get(event["mid"] // SHARE)
            if messages is not None and "group" in event:
                messages.handed_over(event, groups[event["group"]].bit, report)


class _SentMessages:
    """The messages `first` to `first + window` of one client."""

    def __init__(self, first: int, window: int, *, is_first: bool, lost_ns: int = 0) -> None:
        """Create empty records for the messages of one client. `lost_ns`: see `Retention`."""
        self._first, self._window = first, window
        self._lost_ns = lost_ns
        self._is_first = is_first
        self.last = -1  # highest sent number, in this range or beyond
        self.behind: int | None = None  # lowest sent number beyond this range
        self._positions = array("q")  # by message: acknowledged position, or state
        self._queues = array("l")
        self._digests = array("Q")
        self._due = array("q")  # ns: earliest delivery
        self._sent_at = array("q")  # ns
        self._times_read = bytearray()
        self._tags = array("H")
        self._keys = array("L")
        self._asked: set[int] = set()  # keys that were looked up
        self._found = bytearray()  # by message: found by a look-up
        self._given = array("Q")  # by message: bits of the groups that received it
        self._processed = array("Q")
        self._names: dict[str, int] = {}  # logs and tags
        self._open: dict[int, list[int]] = {}  # messages of pending sends
        self._recalls: dict[int, int] = {}  # messages of pending recalls
        self._last_of: dict[tuple[str, int, bool], int] = {}  # by process and log: last acknowledged position

    def add_event(self, event: dict[str, Any], report: QuickReport) -> None:
        if event["ev"] == "op" and event["f"] in _NOT_SENDING:
            self._add_other(event)
        elif event["ev"] == "item" or (event["type"] == "invoke" and "mid" in event):
            self._open.setdefault(event["op"], []).append(event["mid"])
            self._note_sent(event)
        elif event["ev"] == "op" and event["type"] != "invoke":
            mids = self._open.pop(event["op"], [])
            if event["type"] == "ok" and mids:
                self._note_acknowledged(event, mids, report)
            elif event["type"] == "fail":
                for mid in mids:
                    self._set(mid, _FAILED)

    def _add_other(self, event: dict[str, Any]) -> None:
        if event["f"] == "txn_begin" and event["type"] == "invoke":
            self._note_sent(event)
            self._set(event["mid"], _HALF)
        elif event["f"] == "recall" and event["type"] == "invoke":
            self._recalls[event["op"]] = event["mid"]
        elif event["f"] == "recall":
            mid = self._recalls.pop(event["op"])
            if event["type"] != "fail":
                self._set(mid, _FAILED if event["type"] == "ok" else _IN_DOUBT)

    def _slot(self, mid: int) -> int | None:
        """Return the index of a message, or None outside this range."""
        slot = mid - self._first
        return slot if 0 <= slot < self._window else None

    def _note_sent(self, event: dict[str, Any]) -> None:
        self.last = max(self.last, event["mid"])
        if event["mid"] >= self._first + self._window:
            self.behind = min(event["mid"], self.behind or event["mid"])
        slot = self._slot(event["mid"])
        if slot is None:
            return
        self._make_room(slot + 1 - len(self._positions))
        self._positions[slot] = _IN_DOUBT
        self._queues[slot] = self._name(log_of(event))
        self._tags[slot] = self._name(event.get("tag", ""))
        if "key" in event:
            self._keys[slot] = self._name(f"{event['topic']}#{event['key']}")
        self._digests[slot] = int(event["digest"], 16)
        self._sent_at[slot] = event["mono"]  # for an item, its batch is invoked immediately after
        if delay_ms := event.get("delay_ms", 0):
            self._due[slot] = event["mono"] + delay_ms * 1_000_000 - _GAIN_NS

    def _make_room(self, more: int) -> None:
        if more > 0:
            self._positions.extend(repeat(_NEVER_SENT, more))
            for column in (self._queues, self._digests, self._due, self._sent_at, self._tags):
                column.extend(repeat(0, more))
            for bits in (self._given, self._processed):
                bits.extend(repeat(0, more))
            self._keys.extend(repeat(_NO_KEY, more))
            self._found.extend(bytes(more))
            self._times_read.extend(bytes(more))

    def _note_acknowledged(self, event: dict[str, Any], mids: list[int], report: QuickReport) -> None:
        first = position_of(event)
        for i, mid in enumerate(mids):
            self._set(mid, _STORED_SOMEWHERE if first < 0 else first + i)
            slot = self._slot(mid)
            if slot is not None and "topic" in event and self._name(log_of(event)) != self._queues[slot]:
                report.note(
                    "phantom", f"message {mid} was acknowledged in {log_of(event)}, but sent to another log"
                )
        if first < 0 or self._slot(mids[0]) is None:
            return
        # A process awaits each answer before its next send. Positions of messages that were lost with
        # nodes are reused.
        is_after = event["mono"] > self._lost_ns
        key = (event["proc"], self._queues[mids[0] - self._first], is_after)
        if first <= self._last_of.get(key, -1):
            report.note("reordered", f"{event['proc']} got {first} after {self._last_of[key]}")
        self._last_of[key] = first + len(mids) - 1

    def _set(self, mid: int, what: int) -> None:
        slot = self._slot(mid)
        if slot is not None:
            self._positions[slot] = what

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def count(self, report: QuickReport) -> None:
        for position in self._positions:
            if position in (_IN_DOUBT, _FAILED):
                report.in_doubt += position == _IN_DOUBT
                report.failed += position == _FAILED
            elif position not in (_NEVER_SENT, _HALF):
                report.acknowledged += 1

    def found(self, event: dict[str, Any], report: QuickReport) -> None:
        """Record a final read of a message."""
        mid, position_read = event["mid"], position_of(event)
        where = f"message {mid} in {log_of(event)} at {position_read}"
        slot = self._slot(mid)
        if not self._is_genuine(event, slot, where, report) or slot is None:
            return
        position = self._positions[slot]
        if self._times_read[slot]:
            report.note("duplicated", where)
        elif position == _IN_DOUBT:
            report.in_doubt_stored += 1
        self._times_read[slot] = 1
        if position >= 0 and position != position_read:
            report.note("reordered", f"{where} was acknowledged at {position}")

    def handed_over(self, event: dict[str, Any], bit: int, report: QuickReport) -> None:
        """Record that a group received or finished a message."""
        slot = self._slot(event["mid"])
        if event["ev"] == "done":
            if slot is not None and slot < len(self._positions) and event["code"] != "retry":
                self._processed[slot] |= bit
            return
        where = f"message {event['mid']}, delivered to group {event['group']},"
        if self._is_genuine(event, slot, where, report) and slot is not None:
            report.redelivered += bool(self._given[slot] & bit)
            self._given[slot] |= bit

    def _is_genuine(self, event: dict[str, Any], slot: int | None, where: str, report: QuickReport) -> bool:
        """Return True if a delivered message was sent. Returns False if it was not, or if another pass checks
        it."""
        if event["mid"] > self.last:
            if self._is_first:
                report.note("phantom", f"{where} was never sent")
            return False
        if slot is None:
            return False
        if self._positions[slot] == _NEVER_SENT:
            report.note("phantom", f"{where} was never sent")
            return False
        is_other = self._digests[slot] != int(event["digest"], 16)
        if is_other or self._queues[slot] != self._name(log_of(event)):
            report.note("phantom", f"{where} differs from the message that was sent")
        if self._positions[slot] == _FAILED:
            report.note("phantom", f"{where} definitely failed to be sent")
        if self._positions[slot] == _HALF:
            report.note("phantom", f"{where} was never committed")
        if event["mono"] < self._due[slot]:
            ms = (self._due[slot] - event["mono"]) / 1e6
            report.note("early", f"{where} was due {ms:.0f} ms later")
        return True

    def looked_up(self, topic: str, key: str, mids: list[int], report: QuickReport) -> None:
        """Record all messages that a look-up by key returned."""
        name = self._names.get(f"{topic}#{key}")
        if name is not None:
            self._asked.add(name)
        for mid in mids:
            slot = self._slot(mid)
            if slot is not None and slot < len(self._keys):
                self._found[slot] = 1
                if self._keys[slot] != name:
                    report.note("phantom", f"message {mid} was found by key {key}, but has another key")

    def report_lost(
        self, name: str, groups: Mapping[str, GroupFacts], retention: Retention, report: QuickReport
    ) -> None:
        """Report lost messages. `groups`: those that must have processed everything."""
        names = list(self._names)
        for slot, position in enumerate(self._positions):
            is_read = self._times_read[slot]
            log = names[self._queues[slot]] if position >= 0 else ""
            if position >= 0 and not is_read and retention.may_be_removed(log, position, self._sent_at[slot]):
                report.purged += 1
                continue
            if (
                position >= 0
                and not is_read
                and retention.may_be_lost_with_nodes(position, self._sent_at[slot])
            ):
                report.left_behind += 1
                continue
            if (position >= 0 or position == _STORED_SOMEWHERE) and not is_read:
                report.note("lost", f"message {self._first + slot} of {name}, acknowledged at {position}")
            if position >= 0 and self._keys[slot] in self._asked and not self._found[slot]:
                report.note("lost", f"message {self._first + slot} of {name}, not found by its key")
            for group, facts in groups.items() if is_read else ():
                wants = facts.wants(names[self._queues[slot]], names[self._tags[slot]])
                # The final reader may have been faster than the group, and purging in between.
                expired = retention.expires_by(facts.last_ns, self._sent_at[slot])
                if wants and not expired and not self._processed[slot] & facts.bit:
                    where = f"{names[self._queues[slot]]} at {position}"
                    report.note("lost", f"message {self._first + slot} in {where} for group {group}")


def _check_drains(drains: list[Path], clients: set[int], report: QuickReport) -> None:
    """Check the final reads: their order, the senders of their messages, and that they reached the end."""
    ended, targets = bool(drains), {}
    last: dict[str, int] = {}
    for path in drains:
        complete = False
        for event in events_of(path, ("dlv", "meta"), report):
            if event["ev"] == "dlv":
                report.read += 1
                log, position = log_of(event), position_of(event)
                if position <= last.get(log, -1):
                    report.note("reordered", f"{log} was read at {position} after {last[log]}")
                last[log] = position
                if event["mid"] < 0 or event["mid"] // SHARE not in clients:
                    report.note("phantom", f"message {event['mid']} in {log} at {position} has no sender")
            elif event["ev"] == "meta" and event["e"] == "drain_target":
                targets[log_of(event)] = event["off"]
            elif event["ev"] == "meta" and event["e"] == "drain_end":
                complete = True
        ended = ended and complete
    # A log may end with internal entries, but a queue has only messages.
    short = [log for log, off in targets.items() if log.startswith("q:") and last.get(log, -1) < off]
    report.drained = ended and bool(targets) and not short


def _client_of(path: Path) -> int:
    """Return the number of the client that wrote a file, or -1 if it sent nothing."""
    for event in events_of(path, ("op", "item")):
        if event["ev"] == "item" or (event["f"] in _SENDS and "mid" in event):
            return int(event["mid"]) // SHARE
    return -1


def lookups_of(readers: Sequence[Path]) -> Iterator[tuple[str, str, list[int]]]:
    """Yield (topic, key, messages) of each look-up with a complete answer."""
    for path in readers:
        pending: dict[int, tuple[str, str, list[int]]] = {}
        for event in events_of(path, ("op", "dlv")):
            if event["ev"] == "dlv":
                if event["op"] in pending:
                    pending[event["op"]][2].append(event["mid"])
            elif event["f"] != "lookup":
                continue
            elif event["type"] == "invoke":
                pending[event["op"]] = event["topic"], event["key"], []
            elif (lookup := pending.pop(event["op"], None)) and event.get("end_claim"):
                yield lookup


# Groups with per-message acknowledgment: an acknowledged message is never redelivered, and a FIFO group first
# receives the messages of each queue in order.


def check_order(readers: Sequence[Path], groups: Mapping[str, GroupFacts], report: QuickReport) -> None:
    """Check the order of first deliveries in FIFO groups, over all members."""
    delivered: dict[tuple[str, str], _DeliveredPositions] = {}
    if any(facts.mode == "fifo" for facts in groups.values()):
        files = [events_of(path, ("dlv",)) for path in readers]
        for event in merge(*files, key=itemgetter("mono")):
            if "group" in event and groups[event["group"]].mode == "fifo":
                key = (event["group"], log_of(event))
                delivered.setdefault(key, _DeliveredPositions()).add_event(event, report)


def check_acks(readers: Sequence[Path], turn: Container[int], report: QuickReport) -> None:
    """Report messages that a group received by a receive that started after it had acknowledged them.

    `turn`: numbers of messages within their client's range that this pass checks.
    """
    acked: dict[tuple[str, int], int] = {}  # group and message -> time of the answer to the ack
    for path in readers:
        for key, mono in _acknowledged(path):
            if key[1] % SHARE in turn:
                acked[key] = min(mono, acked.get(key, mono))
    for path in readers:
        begun: dict[int, int] = {}  # pending receives
        for event in events_of(path, ("op", "dlv")):
            if event["ev"] == "dlv":
                since = acked.get((event.get("group", ""), event["mid"]))
                started = min(begun.get(event["op"], 0), event.get("since", event["mono"]))
                if since is not None and since < started:
                    where = f"message {event['mid']} of {log_of(event)}, which group {event['group']}"
                    report.note(
                        "returned", f"{where} had acknowledged, was redelivered to {event['consumer']}"
                    )
            elif event["f"] == "receive":
                if event["type"] == "invoke":
                    begun[event["op"]] = event["mono"]
                else:
                    begun.pop(event["op"], None)


@dataclass(slots=True)
class _DeliveredPositions:
    """The positions of a queue whose messages a group received, and the highest of them."""

    top: int = -1
    seen: bytearray = field(default_factory=bytearray)

    def add_event(self, event: dict[str, Any], report: QuickReport) -> None:
        position = position_of(event)
        if position >= len(self.seen):
            self.seen.extend(bytes(position + 1 - len(self.seen)))
        if position < self.top and not self.seen[position]:
            where = f"{event['consumer']} received {position} of {log_of(event)}"
            report.note("reordered", f"{where} for the first time, after {self.top}")
        self.seen[position] = 1
        self.top = max(self.top, position)


def _acknowledged(path: Path) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield ((group, message), time) of each acknowledgment with an ok answer."""
    begun: dict[int, tuple[str, int]] = {}
    for event in events_of(path, ("op",)):
        if event["f"] == "ack":
            if event["type"] == "invoke":
                begun[event["op"]] = event["group"], event["mid"]
            else:
                key = begun.pop(event["op"])
                if event["type"] == "ok":
                    yield key, event["mono"]
