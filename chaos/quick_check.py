"""What became of every message, from the raw trace of a run: lost, duplicated, reordered, phantom.

Reads the files line by line and holds a few bytes for each message of a bounded range; traces with more
messages are read several times. Written on its own: it shares no code with the writers or the Spark job, so
that they can disagree.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: Messages that one reading of the files looks at.
WINDOW = 1 << 20
_EXAMPLES = 10
#: Messages of one client are numbered from its number times this on.
_SHARE = 1 << 40

# What is known of a message, instead of the position at which it was acknowledged.
_NEVER_SENT, _IN_DOUBT, _FAILED, _STORED_SOMEWHERE = -1, -2, -3, -4


@dataclass(slots=True)
class QuickReport:
    """Counts, and the first few of each kind in words. `drained`: the final reading was complete."""

    acknowledged: int = 0
    failed: int = 0
    in_doubt: int = 0
    in_doubt_stored: int = 0
    read: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    phantom: int = 0
    drained: bool = False
    torn_lines: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.drained and not (self.lost or self.duplicated or self.reordered or self.phantom)

    def note(self, kind: str, text: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{kind}: {text}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quick_check(run_directory: Path, window: int = WINDOW) -> QuickReport:
    """The report on a finished run. FileNotFoundError without a trace."""
    folder = run_directory / "raw"
    files = sorted(folder.iterdir())
    drains = [path for path in files if path.name.startswith("client-drain")]
    senders = [path for path in files if path.name.startswith("client-") and path not in drains]
    report = QuickReport()
    clients = {path: _client_of(path) for path in senders}
    for path, client in clients.items():
        if client >= 0:
            _check_sender(path, client * _SHARE, drains, window, report)
    _check_drains(drains, set(clients.values()) - {-1}, report)
    return report


def _check_sender(path: Path, first: int, drains: list[Path], window: int, report: QuickReport) -> None:
    """Compare what one client, with messages from `first` on, was promised with what was read in the end."""
    is_first = True
    while True:
        sent = _Sent(first, window, is_first=is_first)
        for event in _events(path, report if is_first else None):
            sent.take(event, report)
        sent.count(report)
        for drain in drains:
            for event in _events(drain):
                if event["ev"] == "dlv":
                    sent.found(event, report)
        sent.report_lost(path.name, report)
        if sent.last < first + window:
            return
        first, is_first = first + window, False


class _Sent:
    """The messages `first` to `first + window` of one client."""

    def __init__(self, first: int, window: int, *, is_first: bool) -> None:
        self._first, self._window = first, window
        self._is_first = is_first
        self.last = -1  # the greatest number sent, in this range or behind it
        self._positions = array("q")  # by message: where it was acknowledged, or what else is known
        self._queues = array("l")
        self._digests = array("Q")
        self._times_read = bytearray()
        self._names: dict[str, int] = {}
        self._open: dict[int, list[int]] = {}  # messages of operations under way
        self._last_of: dict[tuple[str, int], int] = {}  # by process and log: last acknowledged position

    def take(self, event: dict[str, Any], report: QuickReport) -> None:
        if event["ev"] == "item" or (event["ev"] == "op" and event["type"] == "invoke" and "mid" in event):
            self._open.setdefault(event["op"], []).append(event["mid"])
            self._note_sent(event)
        elif event["ev"] == "op" and event["type"] != "invoke":
            mids = self._open.pop(event["op"], [])
            if event["type"] == "ok" and mids:
                self._note_acknowledged(event, mids, report)
            elif event["type"] == "fail":
                for mid in mids:
                    self._set(mid, _FAILED)

    def _slot(self, mid: int) -> int | None:
        """None: not in this range."""
        slot = mid - self._first
        return slot if 0 <= slot < self._window else None

    def _note_sent(self, event: dict[str, Any]) -> None:
        self.last = max(self.last, event["mid"])
        slot = self._slot(event["mid"])
        if slot is None:
            return
        while len(self._positions) <= slot:
            self._positions.append(_NEVER_SENT)
            self._queues.append(0)
            self._digests.append(0)
            self._times_read.append(0)
        self._positions[slot] = _IN_DOUBT
        self._queues[slot] = self._queue(event)
        self._digests[slot] = int(event["digest"], 16)

    def _note_acknowledged(self, event: dict[str, Any], mids: list[int], report: QuickReport) -> None:
        first = _position_of(event)
        for i, mid in enumerate(mids):
            self._set(mid, _STORED_SOMEWHERE if first < 0 else first + i)
        if first < 0 or self._slot(mids[0]) is None:
            return
        # A process waits for each answer before it sends again.
        key = (event["proc"], self._queues[mids[0] - self._first])
        if first <= self._last_of.get(key, -1):
            report.note("reordered", f"{event['proc']} got {first} after {self._last_of[key]}")
        self._last_of[key] = first + len(mids) - 1

    def _set(self, mid: int, what: int) -> None:
        slot = self._slot(mid)
        if slot is not None:
            self._positions[slot] = what

    def _queue(self, event: dict[str, Any]) -> int:
        return self._names.setdefault(_log_of(event), len(self._names))

    def count(self, report: QuickReport) -> None:
        for position in self._positions:
            if position in (_IN_DOUBT, _FAILED):
                report.in_doubt += position == _IN_DOUBT
                report.failed += position == _FAILED
            elif position != _NEVER_SENT:
                report.acknowledged += 1

    def found(self, event: dict[str, Any], report: QuickReport) -> None:
        """A message was read in the end."""
        mid, at = event["mid"], _position_of(event)
        where = f"message {mid} in {_log_of(event)} at {at}"
        slot = self._slot(mid)
        if mid > self.last:
            if self._is_first and mid // _SHARE == self._first // _SHARE:
                report.note("phantom", f"{where} was never sent")
            return
        if slot is None:
            return
        if self._positions[slot] == _NEVER_SENT:
            report.note("phantom", f"{where} was never sent")
            return
        position = self._positions[slot]
        if self._digests[slot] != int(event["digest"], 16) or self._queues[slot] != self._queue(event):
            report.note("phantom", f"{where} is not what was sent")
        if position == _FAILED:
            report.note("phantom", f"{where} had failed for certain")
        if self._times_read[slot]:
            report.note("duplicated", where)
        elif position == _IN_DOUBT:
            report.in_doubt_stored += 1
        self._times_read[slot] = 1
        if position >= 0 and position != at:
            report.note("reordered", f"{where} was acknowledged at {position}")

    def report_lost(self, name: str, report: QuickReport) -> None:
        for slot, position in enumerate(self._positions):
            if (position >= 0 or position == _STORED_SOMEWHERE) and not self._times_read[slot]:
                report.note("lost", f"message {self._first + slot} of {name}, acknowledged at {position}")


def _check_drains(drains: list[Path], clients: set[int], report: QuickReport) -> None:
    """The reading itself: in order, of nobody's messages but the clients', and to the end."""
    ended, wanted = bool(drains), {}
    last: dict[str, int] = {}
    for path in drains:
        complete = False
        for event in _events(path, report):
            if event["ev"] == "dlv":
                report.read += 1
                log, at = _log_of(event), _position_of(event)
                if at <= last.get(log, -1):
                    report.note("reordered", f"{log} was read at {at} after {last[log]}")
                last[log] = at
                if event["mid"] < 0 or event["mid"] // _SHARE not in clients:
                    report.note("phantom", f"message {event['mid']} in {log} at {at} is nobody's")
            elif event["ev"] == "meta" and event["e"] == "drain_target":
                wanted[_log_of(event)] = event["off"]
            elif event["ev"] == "meta" and event["e"] == "drain_end":
                complete = True
        ended = ended and complete
    # The end of a log may be entries of its own; those of a queue are all messages.
    short = [log for log, off in wanted.items() if log.startswith("q:") and last.get(log, -1) < off]
    report.drained = ended and bool(wanted) and not short


def _client_of(path: Path) -> int:
    """The number of the client whose messages a file is about; -1: it sent none."""
    for event in _events(path):
        if "mid" in event and event["ev"] in ("op", "item"):
            return int(event["mid"]) // _SHARE
    return -1


def _position_of(event: dict[str, Any]) -> int:
    """-1: it has none."""
    return int(event.get("qoff", event.get("lidx", -1)))


def _log_of(event: dict[str, Any]) -> str:
    return f"q:{event['topic']}/{event['q']}" if "topic" in event else f"ledger:{event.get('ledger')}"


def _events(path: Path, report: QuickReport | None = None) -> Iterator[dict[str, Any]]:
    """Of one file. Only the last line may be torn; a line that is none before it is a ValueError."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                if report is not None:
                    report.torn_lines += 1
                return
            yield json.loads(line)
