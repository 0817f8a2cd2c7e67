"""Histories of sets and of queues."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol

from chaos.checker.readers.history import SHARE, HistoryOp, HistoryTrace, ReaderError
from chaos.trace.schema import OpType


class _Op(HistoryOp, Protocol):
    @property
    def value(self) -> Any: ...
    @property
    def error(self) -> str: ...


class _Ends:
    """Which of several sets or queues were looked at to their end: after the last was acknowledged, or so
    that all that was acknowledged was shown."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._acked: dict[str, set[int]] = defaultdict(set)
        self._looked: dict[str, int] = {}
        #: What was taken out of a queue; what the last read of a set showed.
        self._shown: dict[str, set[int]] = defaultdict(set)

    def sent(self, log: str, now: int, element: int) -> None:
        self._sent[log] = now
        self._acked[log].add(element)

    def taken(self, log: str, element: int) -> None:
        self._shown[log].add(element)

    def showed(self, log: str, since: int, elements: set[int]) -> None:
        """A read of all, which began at `since`."""
        if since > self._looked.get(log, -1):
            self._shown[log] = elements
            self.looked(log, since)

    def looked(self, log: str, since: int) -> None:
        """From then on, there was nothing behind what had been shown."""
        self._looked[log] = max(self._looked.get(log, -1), since)

    def reached(self) -> dict[str, int] | None:
        found = {
            log: -1
            for log in self._looked.keys() | self._acked.keys()
            if self._looked.get(log, -1) > self._sent.get(log, -1)
            or (self._acked[log] and self._acked[log] <= self._shown[log])
        }
        return found or None


class _CollectionReader:
    """What the two have in common. With `keyed` there are many, and values are [key value]."""

    NAME = ""

    def __init__(self, trace: HistoryTrace, *, keyed: bool) -> None:
        self._trace = trace
        self._keyed = keyed
        self._ends = _Ends()
        #: Of the read that a process has under way: of which log, and when it began.
        self._asked: dict[str, tuple[str, int]] = defaultdict(lambda: (self.NAME, -1))

    def targets(self) -> dict[str, int] | None:
        return self._ends.reached()

    def _place(self, value: Any) -> tuple[str, Any]:
        if not self._keyed:
            return self.NAME, value
        if not isinstance(value, list) or len(value) != 2:
            raise ReaderError(f"{value!r} is not [key value], as the values before it")
        return f"{self.NAME} {value[0]}", value[1]

    def _ask(self, op: _Op, f: str) -> None:
        log = self._place(op.value)[0]
        self._trace.ask(op.line * SHARE, op.process, f, log)
        self._asked[op.process] = log, self._trace.now

    def _send(self, op: _Op) -> None:
        log, value = self._place(op.value)
        if op.type is OpType.INVOKE:
            self._trace.send(op.line * SHARE, op.process, log, value)
            return
        if op.type is OpType.OK:
            self._ends.sent(log, self._trace.now, self._trace.mid(log, value))
        self._complete(op, "append")

    def _complete(self, op: _Op, f: str, **results: Any) -> None:
        if self._trace.is_busy(op.process):
            self._trace.complete(op.process, op.type, **results)
        else:
            self._trace.orphan(op.process, f, op.type)


class SetReader(_CollectionReader):
    """Adds, and reads of the whole set."""

    NAME = "set"

    def take(self, op: _Op) -> None:
        if op.f == "add":
            self._send(op)
        elif op.type is OpType.INVOKE:
            self._ask(op, "get")
        elif op.type is not OpType.OK or not self._trace.is_busy(op.process):
            self._complete(op, "get")
        else:
            log, began = self._asked[op.process]
            value = self._place(op.value)[1]
            if value is not None and not isinstance(value, list):
                raise ReaderError(f"a read of a set shows a collection, not {value!r}")
            for i, element in enumerate(value or ()):
                self._trace.tell(op.process, log, element, i)
            self._ends.showed(log, began, {self._trace.mid(log, element) for element in value or ()})
            self._complete(op, "get", end_claim=True)


class QueueReader(_CollectionReader):
    """Elements that go in and come out; a drain takes out what there is."""

    NAME = "queue"

    def take(self, op: _Op) -> None:
        f = "drain" if op.f == "drain" else "pull"
        if op.f == "enqueue":
            self._send(op)
        elif op.type is OpType.INVOKE:
            self._ask(op, f)
        elif not self._trace.is_busy(op.process):
            self._complete(op, f)
        else:
            self._take_out(op, f)

    def _take_out(self, op: _Op, f: str) -> None:
        log, began = self._asked[op.process]
        value = op.value
        if self._keyed and isinstance(value, list) and len(value) == 2:
            value = value[1]
        # A drain that failed may have taken out what it names.
        taken = value or [] if f == "drain" else [value]
        if f != "drain" and (value is None or op.type is not OpType.OK):
            taken = []
        if not isinstance(taken, list):
            raise ReaderError(f"a drain shows a collection, not {taken!r}")
        for i, element in enumerate(taken):
            self._trace.tell(op.process, log, element, i)
            self._ends.taken(log, self._trace.mid(log, element))
        empty = "empty" in op.error or (op.type is OpType.OK and (f == "drain" or not taken))
        if empty and op.type is not OpType.INFO:
            self._ends.looked(log, began)
            self._complete(op, f, end_claim=True)
        else:
            self._complete(op, f)
