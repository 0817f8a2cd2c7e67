"""Jepsen's histories: `history.edn`, and the same as JSON or JSON lines.

Of its workloads: set, queue (with drains), kafka (send, poll, txn, assign, subscribe) and register. What an
operation without a known outcome (`info`) did stays open, as in Jepsen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from chaos.checker.readers.edn import EdnError, forms
from chaos.checker.readers.history import SHARE, HistoryTrace, Model, ReaderError
from chaos.checker.readers.kafka import KafkaReader
from chaos.trace.schema import OpType

_TYPES = {"invoke": OpType.INVOKE, "ok": OpType.OK, "fail": OpType.FAIL, "info": OpType.INFO}
_MODELS = {
    **dict.fromkeys(("add",), Model.SET),
    **dict.fromkeys(("enqueue", "dequeue", "drain"), Model.QUEUE),
    **dict.fromkeys(("send", "poll", "txn", "assign", "subscribe"), Model.KAFKA),
    **dict.fromkeys(("write", "cas"), Model.REGISTER),
}
#: Operations that are looked at to find out what the history is of.
_LOOK_AT = 10_000


#: What a value of another shape than expected, or a number beyond all reason, ends in.
_WRONG = (
    ReaderError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Op:
    """One event of a history. `time`: ns, None if it has none."""

    line: int
    process: str
    type: OpType
    f: str
    value: Any
    time: int | None
    error: str

    @property
    def number(self) -> int:
        return self.line * SHARE


def convert(source: Path, run_dir: Path, run: str) -> None:
    """Write a history as a trace.

    Raises:
        ReaderError: it is none, or of a workload that is not known here.
    """
    model = _model_of(source)
    with HistoryTrace(run_dir, run, model) as trace:
        reader = _reader(model, trace)
        for op in operations(source):
            try:
                trace.tick(op.time)
                if op.process == "nemesis":
                    trace.nemesis(op.f, op.value)
                else:
                    reader.take(op)
            except _WRONG as error:
                raise ReaderError(f"{source}:{op.line}: {error}") from error
        trace.finish(reader.targets())


def _reader(model: Model, trace: HistoryTrace) -> _Reader:
    if model is Model.KAFKA:
        return KafkaReader(trace)
    if model is Model.REGISTER:
        return RegisterReader(trace)
    return SetReader(trace) if model is Model.SET else QueueReader(trace)


def operations(source: Path) -> Iterator[Op]:
    """The events of a history, in its order."""
    for line, form in _forms(source):
        if not isinstance(form, dict) or not {"type", "f", "process"} <= set(form):
            raise ReaderError(f"{source}:{line}: no operation with type, f and process")
        how = _TYPES.get(str(form["type"]).removeprefix(":"))
        if how is None:
            raise ReaderError(f"{source}:{line}: unknown type {form['type']!r}")
        time = form.get("time")
        yield Op(
            line,
            str(form["process"]).removeprefix(":"),
            how,
            str(form["f"]).removeprefix(":"),
            form.get("value"),
            time if isinstance(time, int) else None,
            str(form.get("error", "")),
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
        found: list[Any] = json.loads(text)
        return found
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _model_of(source: Path) -> Model:
    for op in islice(operations(source), _LOOK_AT):
        if op.process != "nemesis" and op.f in _MODELS:
            return _MODELS[op.f]
    raise ReaderError(
        f"{source}: of no known workload; known are {', '.join(sorted(_MODELS))} as names of operations"
    )


class _Reader(Protocol):
    def take(self, op: Op) -> None:
        """One event of a client."""

    def targets(self) -> dict[str, int] | None:
        """See `HistoryTrace.finish`."""


class SetReader:
    """Adds, and reads of the whole set."""

    LOG = "set"

    def __init__(self, trace: HistoryTrace) -> None:
        self._trace = trace
        self._last_sent = -1
        self._reads: dict[str, int] = {}
        self._last_read = -1

    def take(self, op: Op) -> None:
        trace = self._trace
        if op.type is OpType.INVOKE:
            if op.f == "add":
                trace.send(op.number, op.process, self.LOG, op.value)
            elif op.f == "read":
                trace.ask(op.number, op.process, "get", self.LOG)
                self._reads[op.process] = trace.now
            return
        if not trace.is_busy(op.process):
            return
        if op.f == "add" and op.type is OpType.OK:
            self._last_sent = trace.now
        if op.f == "read" and op.type is OpType.OK:
            for i, value in enumerate(op.value or ()):
                trace.tell(op.process, self.LOG, value, i)
            self._last_read = max(self._last_read, self._reads[op.process])
            trace.complete(op.process, OpType.OK, end_claim=True)
        else:
            trace.complete(op.process, op.type)

    def targets(self) -> dict[str, int] | None:
        return {self.LOG: -1} if self._last_read > self._last_sent else None


class QueueReader:
    """Elements that go in and come out; a drain takes out what there is."""

    LOG = "queue"

    def __init__(self, trace: HistoryTrace) -> None:
        self._trace = trace
        self._last_sent = -1
        self._asked: dict[str, int] = {}
        self._empty_at = -1

    def take(self, op: Op) -> None:
        trace = self._trace
        if op.type is OpType.INVOKE:
            if op.f == "enqueue":
                trace.send(op.number, op.process, self.LOG, op.value)
            elif op.f in ("dequeue", "drain"):
                trace.ask(op.number, op.process, "drain" if op.f == "drain" else "pull", self.LOG)
                self._asked[op.process] = trace.now
            return
        if not trace.is_busy(op.process):
            return
        if op.f == "enqueue":
            if op.type is OpType.OK:
                self._last_sent = trace.now
            trace.complete(op.process, op.type)
            return
        # A drain that failed may have taken out what it names.
        taken = (op.value or []) if op.f == "drain" else [op.value] if op.value is not None else []
        if op.type is not OpType.OK and op.f == "dequeue":
            taken = []
        for i, value in enumerate(taken):
            trace.tell(op.process, self.LOG, value, i)
        found_empty = (op.f == "drain" and op.type is OpType.OK) or (
            op.f == "dequeue" and "empty" in op.error
        )
        if found_empty or (op.f == "dequeue" and op.type is OpType.OK and not taken):
            self._empty_at = max(self._empty_at, self._asked[op.process])
        trace.complete(op.process, op.type)

    def targets(self) -> dict[str, int] | None:
        return {self.LOG: -1} if self._empty_at > self._last_sent else None


class RegisterReader:
    """Writes, reads and compare-and-set of one register, or, with values [key value], of many."""

    def __init__(self, trace: HistoryTrace) -> None:
        self._trace = trace
        self._keyed = False

    def take(self, op: Op) -> None:
        trace = self._trace
        if op.type is OpType.INVOKE:
            self._keyed |= op.f != "cas" and isinstance(op.value, list)
            key, value = self._key_and_value(op.value)
            if op.f == "read":
                trace.ask(op.number, op.process, "get", key)
            elif op.f in ("write", "cas"):
                # Of a compare-and-set only what it writes is looked at.
                trace.send(op.number, op.process, key, value[1] if op.f == "cas" else value)
            return
        if not trace.is_busy(op.process):
            return
        if op.f == "read" and op.type is OpType.OK:
            key, value = self._key_and_value(op.value)
            if value is not None:
                trace.tell(op.process, key, value)
        trace.complete(op.process, op.type)

    def _key_and_value(self, value: Any) -> tuple[str, Any]:
        return (str(value[0]), value[1]) if self._keyed and isinstance(value, list) else ("register", value)

    def targets(self) -> dict[str, int] | None:
        return None
