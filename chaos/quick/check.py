"""What became of every message, from the raw trace of a run: lost, duplicated, reordered, phantom; in the
logs, and in the hands of consumer groups.

Reads the files line by line and holds a few bytes for each message of a bounded range; traces with more
messages are read several times. Written on its own: it shares no code with the writers or the Spark job, so
that they can disagree.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

from chaos.quick.groups import GroupFacts, check_groups
from chaos.quick.lookups import lookups_of
from chaos.quick.receives import check_acks, check_order
from chaos.quick.retention import Retention, retention_of
from chaos.quick.trace import SHARE, QuickReport, events_of, log_of, position_of

#: Messages that one reading of the files looks at.
WINDOW = 1 << 20

#: Operations that send the message which they name, or what may become of it.
_SENDS = ("send", "append", "txn_begin")
#: Operations that name a message, and do not send it.
_NOT_SENDING = ("txn_begin", "txn_rollback", "recall")

# What is known of a message, instead of the position at which it was acknowledged. Half: in a transaction
# that nobody has tried to commit.
_NEVER_SENT, _IN_DOUBT, _FAILED, _STORED_SOMEWHERE, _HALF = -1, -2, -3, -4, -5
#: Of a message without a key.
_NO_KEY = (1 << 32) - 1
#: Cluster time may run faster than ours by a thousandth: so many of our ns may be a ms of it.
_LEAST_MS = 999_000


def quick_check(run_directory: Path, window: int = WINDOW) -> QuickReport:
    """The report on a finished run. FileNotFoundError without a trace."""
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
            c: _Sent(c * SHARE + turn * share, share, is_first=turn == 0, lost_ns=retention.lost_ns)
            for c in senders.values()
        }
        for path, client in senders.items():
            for event in events_of(path, ("op", "item"), report if turn == 0 else None):
                sent[client].take(event, report)
            sent[client].count(report)
        _follow(sent, drains, readers, groups, report)
        for topic, key, mids in lookups_of(readers):
            for one in sent.values():
                one.looked_up(topic, key, mids, report)
        if any(facts.receives for facts in groups.values()):
            check_acks(readers, range(turn * share, (turn + 1) * share), report)
        for path, client in senders.items():
            sent[client].report_lost(path.name, groups if report.drained else {}, retention, report)
        behind = [one.behind - client * SHARE for client, one in sent.items() if one.behind is not None]
        if not behind:
            return report
        # A number may be wrong, and far behind all others.
        turn = min(behind) // share


def _follow(
    sent: Mapping[int, _Sent],
    drains: list[Path],
    readers: list[Path],
    groups: Mapping[str, GroupFacts],
    report: QuickReport,
) -> None:
    """What was read of these messages in the end, and what groups were given of them."""
    for path in drains:
        for event in events_of(path, ("dlv",)):
            if (one := sent.get(event["mid"] // SHARE)) is not None:
                one.found(event, report)
    for path in readers if groups else ():
        for event in events_of(path, ("dlv", "done")):
            one = sent.get(event["mid"] // SHARE)
            if one is not None and "group" in event:
                one.handed_over(event, groups[event["group"]].bit, report)


class _Sent:
    """The messages `first` to `first + window` of one client."""

    def __init__(self, first: int, window: int, *, is_first: bool, lost_ns: int = 0) -> None:
        """`lost_ns`: of `Retention`."""
        self._first, self._window = first, window
        self._lost_ns = lost_ns
        self._is_first = is_first
        self.last = -1  # the greatest number sent, in this range or behind it
        self.behind: int | None = None  # the least number sent behind this range
        self._positions = array("q")  # by message: where it was acknowledged, or what else is known
        self._queues = array("l")
        self._digests = array("Q")
        self._due = array("q")  # ns: not to be delivered before
        self._sent_at = array("q")  # ns
        self._times_read = bytearray()
        self._tags = array("H")
        self._keys = array("L")
        self._asked: set[int] = set()  # keys that somebody looked up
        self._found = bytearray()  # by message: whether a look-up has found it
        self._given = array("Q")  # by message: bits of the groups that were given it
        self._processed = array("Q")
        self._names: dict[str, int] = {}  # of logs and tags
        self._open: dict[int, list[int]] = {}  # messages of operations under way that send
        self._recalls: dict[int, int] = {}  # messages of such operations under way
        self._last_of: dict[tuple[str, int, bool], int] = {}  # by process and log: last acknowledged position

    def take(self, event: dict[str, Any], report: QuickReport) -> None:
        if event["ev"] == "op" and event["f"] in _NOT_SENDING:
            self._take_other(event)
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

    def _take_other(self, event: dict[str, Any]) -> None:
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
        """None: not in this range."""
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
        self._sent_at[slot] = event["mono"]  # of an item: the invoke of its batch comes next
        if delay_ms := event.get("delay_ms", 0):
            self._due[slot] = event["mono"] + delay_ms * _LEAST_MS

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
                    "phantom", f"message {mid} was acknowledged in {log_of(event)}, for which it was not"
                )
        if first < 0 or self._slot(mids[0]) is None:
            return
        # A process waits for each answer before it sends again. Places of what was lost with a master are
        # given again.
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
        """A message was read in the end."""
        mid, at = event["mid"], position_of(event)
        where = f"message {mid} in {log_of(event)} at {at}"
        slot = self._slot(mid)
        if not self._is_genuine(event, slot, where, report) or slot is None:
            return
        position = self._positions[slot]
        if self._times_read[slot]:
            report.note("duplicated", where)
        elif position == _IN_DOUBT:
            report.in_doubt_stored += 1
        self._times_read[slot] = 1
        if position >= 0 and position != at:
            report.note("reordered", f"{where} was acknowledged at {position}")

    def handed_over(self, event: dict[str, Any], bit: int, report: QuickReport) -> None:
        """A group was given a message, or is through with it."""
        slot = self._slot(event["mid"])
        if event["ev"] == "done":
            if slot is not None and slot < len(self._positions) and event["code"] != "retry":
                self._processed[slot] |= bit
            return
        where = f"message {event['mid']}, which group {event['group']} was given,"
        if self._is_genuine(event, slot, where, report) and slot is not None:
            report.redelivered += bool(self._given[slot] & bit)
            self._given[slot] |= bit

    def _is_genuine(self, event: dict[str, Any], slot: int | None, where: str, report: QuickReport) -> bool:
        """Whether a message that was seen had been sent; False, too, if another reading decides that."""
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
            report.note("phantom", f"{where} is not what was sent")
        if self._positions[slot] == _FAILED:
            report.note("phantom", f"{where} had failed for certain")
        if self._positions[slot] == _HALF:
            report.note("phantom", f"{where} was never committed")
        if event["mono"] < self._due[slot]:
            ms = (self._due[slot] - event["mono"]) / 1e6
            report.note("early", f"{where} was not due for {ms:.0f} ms")
        return True

    def looked_up(self, topic: str, key: str, mids: list[int], report: QuickReport) -> None:
        """All messages that a look-up by key has found."""
        name = self._names.get(f"{topic}#{key}")
        if name is not None:
            self._asked.add(name)
        for mid in mids:
            slot = self._slot(mid)
            if slot is not None and slot < len(self._keys):
                self._found[slot] = 1
                if self._keys[slot] != name:
                    report.note("phantom", f"message {mid} was found by key {key}, which is not its own")

    def report_lost(
        self, name: str, groups: Mapping[str, GroupFacts], retention: Retention, report: QuickReport
    ) -> None:
        """`groups`: those that must have processed everything."""
        names = list(self._names)
        for slot, position in enumerate(self._positions):
            is_read = self._times_read[slot]
            log = names[self._queues[slot]] if position >= 0 else ""
            if position >= 0 and not is_read and retention.lets_go(log, position, self._sent_at[slot]):
                report.purged += 1
                continue
            if position >= 0 and not is_read and retention.lost_with_its_master(self._sent_at[slot]):
                report.left_behind += 1
                continue
            if (position >= 0 or position == _STORED_SOMEWHERE) and not is_read:
                report.note("lost", f"message {self._first + slot} of {name}, acknowledged at {position}")
            if position >= 0 and self._keys[slot] in self._asked and not self._found[slot]:
                report.note("lost", f"message {self._first + slot} of {name}, which its key does not find")
            for group, facts in groups.items() if is_read else ():
                wants = facts.wants(names[self._queues[slot]], names[self._tags[slot]])
                if wants and not self._processed[slot] & facts.bit:
                    where = f"{names[self._queues[slot]]} at {position}"
                    report.note("lost", f"message {self._first + slot} in {where} for group {group}")


def _check_drains(drains: list[Path], clients: set[int], report: QuickReport) -> None:
    """The reading itself: in order, of nobody's messages but the clients', and to the end."""
    ended, wanted = bool(drains), {}
    last: dict[str, int] = {}
    for path in drains:
        complete = False
        for event in events_of(path, ("dlv", "meta"), report):
            if event["ev"] == "dlv":
                report.read += 1
                log, at = log_of(event), position_of(event)
                if at <= last.get(log, -1):
                    report.note("reordered", f"{log} was read at {at} after {last[log]}")
                last[log] = at
                if event["mid"] < 0 or event["mid"] // SHARE not in clients:
                    report.note("phantom", f"message {event['mid']} in {log} at {at} is nobody's")
            elif event["ev"] == "meta" and event["e"] == "drain_target":
                wanted[log_of(event)] = event["off"]
            elif event["ev"] == "meta" and event["e"] == "drain_end":
                complete = True
        ended = ended and complete
    # The end of a log may be entries of its own; those of a queue are all messages.
    short = [log for log, off in wanted.items() if log.startswith("q:") and last.get(log, -1) < off]
    report.drained = ended and bool(wanted) and not short


def _client_of(path: Path) -> int:
    """The number of the client whose messages a file is about; -1: it sent none."""
    for event in events_of(path, ("op", "item")):
        if event["ev"] == "item" or (event["f"] in _SENDS and "mid" in event):
            return int(event["mid"]) // SHARE
    return -1
