"""Reader for Jepsen's histories: `history.edn`, or the same content as JSON or JSON lines.

Supports the workloads set, queue (with drain), kafka (send, poll, txn, assign, subscribe) and register; in
all workloads except kafka, values may be [key value], as in `jepsen.independent`. As in Jepsen, an operation
with an unknown outcome (`info`) may take effect at any later time. Completions without an invocation, and
operations of other workloads, are never ignored.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from chaos.checker.readers.edn import EdnError, forms
from chaos.checker.readers.history import MALFORMED, SHARE, HistoryOp, HistoryTrace, Model, ReaderError
from chaos.checker.readers.kafka import KafkaHistoryReader
from chaos.checker.readers.register import RegisterWriter, text_of
from chaos.trace.schema import OpType

_TYPES = {"invoke": OpType.INVOKE, "ok": OpType.OK, "fail": OpType.FAIL, "info": OpType.INFO}
#: For each model, the operations that identify it, and all operations that it may have.
_NAMES: dict[Model, tuple[frozenset[str], frozenset[str]]] = {
    Model.SET: (frozenset(("add",)), frozenset(("add", "read"))),
    Model.QUEUE: 2 * (frozenset(("enqueue", "dequeue", "drain")),),
    Model.KAFKA: (
        frozenset(("send", "poll", "txn", "assign", "subscribe")),
        frozenset(("send", "poll", "txn", "assign", "subscribe", "crash", "debug-topic-partitions")),
    ),
    Model.REGISTER: (frozenset(("write", "cas")), frozenset(("read", "write", "cas"))),
}
#: Micro-operations of kafka. Transactions of other workloads have lists or registers.
_PARTS = frozenset(("send", "poll"))
#: Number of operations that are examined to determine the model.
_SURVEYED = 10_000


@dataclass(frozen=True, slots=True)
class JepsenOp:
    """One event of a history. `time`: in ns, or None. `about`: all its fields."""

    line: int
    process: str
    type: OpType
    f: str
    value: Any
    time: int | None
    error: str
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Survey:
    """Properties of a history, determined from its first operations."""

    model: Model
    #: Values are [key value].
    keyed: bool
    #: Operations list the keys that were rebalanced while they were pending.
    rebalances: bool


def convert(source: Path, run_dir: Path, run: str) -> None:
    """Convert a history to a trace.

    Raises:
        ReaderError: the file is not a history, or its workload is not supported.
    """
    survey = _survey(source)
    known = _NAMES[survey.model][1]
    with HistoryTrace(run_dir, run, survey.model, source) as trace:
        reader = _reader(survey, trace)
        for op in operations(source):
            try:
                trace.tick(op.line, op.time)
                if op.process == "nemesis":
                    trace.nemesis(op.f, op.value)
                elif op.f in known:
                    reader.add_event(op)
                else:
                    raise ReaderError(f"operation {op.f} does not belong to the workload {survey.model}")
            except MALFORMED as error:
                raise ReaderError(f"{source}:{op.line}: {error}") from error
        trace.finish(reader.targets())


def _reader(survey: _Survey, trace: HistoryTrace) -> _EventReader:
    if survey.model is Model.KAFKA:
        return KafkaHistoryReader(trace, rebalances=survey.rebalances)
    if survey.model is Model.REGISTER:
        return _RegisterHistoryReader(trace, keyed=survey.keyed)
    reader: Callable[..., _EventReader] = (
        SetHistoryReader if survey.model is Model.SET else QueueHistoryReader
    )
    return reader(trace, keyed=survey.keyed)


def operations(source: Path) -> Iterator[JepsenOp]:
    """Yield the events of a history, in order."""
    for line, form in _forms(source):
        if not isinstance(form, dict) or not {"type", "f", "process"} <= set(form):
            raise ReaderError(f"{source}:{line}: expected an operation with type, f and process")
        how = _TYPES.get(str(form["type"]).removeprefix(":"))
        if how is None:
            raise ReaderError(f"{source}:{line}: unknown type {form['type']!r}")
        time = form.get("time")
        yield JepsenOp(
            line,
            str(form["process"]).removeprefix(":"),
            how,
            str(form["f"]).removeprefix(":"),
            form.get("value"),
            time if isinstance(time, int) and not isinstance(time, bool) else None,
            str(form.get("error", "")),
            form,
        )


def _forms(source: Path) -> Iterator[tuple[int, Any]]:
    try:
        with source.open(encoding="utf-8") as file:
            if source.suffix == ".edn":
                yield from forms(file)
            elif source.suffix == ".json":
                yield from enumerate(_array_or_lines(file.read()), 1)
            else:
                yield from ((n, json.loads(line)) for n, line in enumerate(file, 1) if line.strip())
    except (EdnError, ValueError, RecursionError) as error:
        raise ReaderError(f"{source}: {error}") from error


def _array_or_lines(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        values: list[Any] = json.loads(text)
        return values
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _survey(source: Path) -> _Survey:
    seen = [op for op in islice(operations(source), _SURVEYED) if op.process != "nemesis"]
    for op in seen:
        for model, (telling, _) in _NAMES.items():
            if op.f in telling and not (model is Model.KAFKA and _is_elsewhere(op)):
                rebalances = any("rebalance-log" in other.about for other in seen)
                return _Survey(model, _is_keyed(model, seen), rebalances)
    names = sorted(name for telling, _ in _NAMES.values() for name in telling)
    raise ReaderError(
        f"{source}: unknown workload; supported are the operations {', '.join(names)}, and transactions "
        "of send and poll"
    )


def _is_elsewhere(op: JepsenOp) -> bool:
    """Return True for a transaction of a workload other than kafka."""
    return op.f == "txn" and any(isinstance(part, list) and part[0] not in _PARTS for part in op.value or [])


def _is_keyed(model: Model, ops: list[JepsenOp]) -> bool:
    """Return True if all values are [key value]. The invocation of a read then has the value [key nil]."""
    begun = [op.value for op in ops if op.type is OpType.INVOKE and op.f in ("read", "dequeue", "drain")]
    ended = [op.value for op in ops if op.type is OpType.OK and op.f in ("read", "dequeue", "drain")]
    if model is Model.REGISTER:
        begun += [op.value for op in ops if op.type is OpType.INVOKE and op.f == "write"]
        begun += [
            value[1] if isinstance(value, list) and len(value) == 2 else None
            for value in (op.value for op in ops if op.type is OpType.INVOKE and op.f == "cas")
        ]
    inner = [value[1] for value in ended if isinstance(value, list) and len(value) == 2]
    if model is Model.SET and not all(element is None or isinstance(element, list) for element in inner):
        return False
    return bool(begun) and len(inner) == len(ended) and all(_is_pair(value) for value in begun)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


class _EventReader(Protocol):
    def add_event(self, op: JepsenOp) -> None:
        """Process one event of a client."""

    def targets(self) -> dict[str, int] | None:
        """See `HistoryTrace.finish`."""


class _RegisterHistoryReader:
    """Writes, reads and compare-and-set of one register or, with values [key value], of many."""

    def __init__(self, trace: HistoryTrace, *, keyed: bool) -> None:
        self._trace = trace
        self._writer = RegisterWriter(trace, says_why=False)
        self._keyed = keyed

    def add_event(self, op: JepsenOp) -> None:
        key, value = "register", op.value
        if self._keyed and _is_pair(value):
            key, value = str(value[0]), value[1]
        if op.f == "cas" and isinstance(value, list):
            self._writer.add_event(op, key, [text_of(operand) for operand in value])
        elif op.f == "read" and op.type is OpType.OK and value is None:
            # As in Jepsen, the result of such a read is unknown.
            if self._trace.is_busy(op.process):
                self._trace.complete(op.process, OpType.OK)
            else:
                self._trace.orphan(op.process, "get", op.type)
        else:
            self._writer.add_event(op, key, text_of(value))

    def targets(self) -> dict[str, int] | None:
        return None


class _CollectionOp(HistoryOp, Protocol):
    @property
    def value(self) -> Any: ...
    @property
    def error(self) -> str: ...


class _Ends:
    """Determines which sets or queues were read to their end, that is, after the last acknowledgment, or so
    that all acknowledged elements were returned."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._acked: dict[str, set[int]] = defaultdict(set)
        self._looked: dict[str, int] = {}
        #: Elements dequeued from a queue, or returned by the last read of a set.
        self._shown: dict[str, set[int]] = defaultdict(set)

    def sent(self, log: str, now: int, element: int) -> None:
        self._sent[log] = now
        self._acked[log].add(element)

    def taken(self, log: str, element: int) -> None:
        self._shown[log].add(element)

    def showed(self, log: str, since: int, elements: set[int]) -> None:
        """Record a read of all elements that started at `since`."""
        if since > self._looked.get(log, -1):
            self._shown[log] = elements
            self.looked(log, since)

    def looked(self, log: str, since: int) -> None:
        """Record that at `since` nothing remained except the returned elements."""
        self._looked[log] = max(self._looked.get(log, -1), since)

    def reached(self) -> dict[str, int] | None:
        targets = {
            log: -1
            for log in self._looked.keys() | self._acked.keys()
            if self._looked.get(log, -1) > self._sent.get(log, -1)
            or (self._acked[log] and self._acked[log] <= self._shown[log])
        }
        return targets or None


class _CollectionReader:
    """Common part of the readers for sets and queues. With `keyed`, there are many sets or queues, and values
    are [key value]."""

    NAME = ""

    def __init__(self, trace: HistoryTrace, *, keyed: bool) -> None:
        self._trace = trace
        self._keyed = keyed
        self._ends = _Ends()
        #: For the pending read of each process: its log and its start.
        self._pending_reads: dict[str, tuple[str, int]] = defaultdict(lambda: (self.NAME, -1))

    def targets(self) -> dict[str, int] | None:
        return self._ends.reached()

    def _place(self, value: Any) -> tuple[str, Any]:
        if not self._keyed:
            return self.NAME, value
        if not isinstance(value, list) or len(value) != 2:
            raise ReaderError(f"expected [key value] like the values before it, found {value!r}")
        return f"{self.NAME} {value[0]}", value[1]

    def _invoke_read(self, op: _CollectionOp, f: str) -> None:
        log = self._place(op.value)[0]
        self._trace.invoke_read(op.line * SHARE, op.process, f, log)
        self._pending_reads[op.process] = log, self._trace.now

    def _send(self, op: _CollectionOp) -> None:
        log, value = self._place(op.value)
        if op.type is OpType.INVOKE:
            self._trace.invoke_append(op.line * SHARE, op.process, log, value)
            return
        if op.type is OpType.OK:
            self._ends.sent(log, self._trace.now, self._trace.mid(log, value))
        self._complete(op, "append")

    def _complete(self, op: _CollectionOp, f: str, **results: Any) -> None:
        if self._trace.is_busy(op.process):
            self._trace.complete(op.process, op.type, **results)
        else:
            self._trace.orphan(op.process, f, op.type)


class SetHistoryReader(_CollectionReader):
    """Adds, and reads of the complete set."""

    NAME = "set"

    def add_event(self, op: _CollectionOp) -> None:
        if op.f == "add":
            self._send(op)
        elif op.type is OpType.INVOKE:
            self._invoke_read(op, "get")
        elif op.type is not OpType.OK or not self._trace.is_busy(op.process):
            self._complete(op, "get")
        else:
            log, began = self._pending_reads[op.process]
            value = self._place(op.value)[1]
            if value is not None and not isinstance(value, list):
                raise ReaderError(f"a read of a set must return a collection, not {value!r}")
            for i, element in enumerate(value or ()):
                self._trace.add_result(op.process, log, element, i)
            self._ends.showed(log, began, {self._trace.mid(log, element) for element in value or ()})
            self._complete(op, "get", end_claim=True)


class QueueHistoryReader(_CollectionReader):
    """Enqueues and dequeues; a drain dequeues all elements."""

    NAME = "queue"

    def add_event(self, op: _CollectionOp) -> None:
        f = "drain" if op.f == "drain" else "pull"
        if op.f == "enqueue":
            self._send(op)
        elif op.type is OpType.INVOKE:
            self._invoke_read(op, f)
        elif not self._trace.is_busy(op.process):
            self._complete(op, f)
        else:
            self._dequeue(op, f)

    def _dequeue(self, op: _CollectionOp, f: str) -> None:
        log, began = self._pending_reads[op.process]
        value = op.value
        if self._keyed and isinstance(value, list) and len(value) == 2:
            value = value[1]
        # A failed drain may have dequeued the elements that it names.
        taken = value or [] if f == "drain" else [value]
        if f != "drain" and (value is None or op.type is not OpType.OK):
            taken = []
        if not isinstance(taken, list):
            raise ReaderError(f"a drain must return a collection, not {taken!r}")
        for i, element in enumerate(taken):
            self._trace.add_result(op.process, log, element, i)
            self._ends.taken(log, self._trace.mid(log, element))
        empty = "empty" in op.error or (op.type is OpType.OK and (f == "drain" or not taken))
        if empty and op.type is not OpType.INFO:
            self._ends.looked(log, began)
            self._complete(op, f, end_claim=True)
        else:
            self._complete(op, f)
