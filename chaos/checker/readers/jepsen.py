"""Jepsen's histories: `history.edn`, and the same as JSON or JSON lines.

Of its workloads: set, queue (with drains), kafka (send, poll, txn, assign, subscribe) and register; the first
two and the last also with values [key value], as `jepsen.independent` has them. What an operation without a
known outcome (`info`) did stays open, as in Jepsen. An operation that ends without having begun, and one that
is no part of its workload, are never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from chaos.checker.readers.edn import EdnError, forms
from chaos.checker.readers.elements import QueueReader, SetReader
from chaos.checker.readers.history import MALFORMED, HistoryTrace, Model, ReaderError
from chaos.checker.readers.kafka import KafkaReader
from chaos.checker.readers.register import RegisterWriter, text_of
from chaos.trace.schema import OpType

_TYPES = {"invoke": OpType.INVOKE, "ok": OpType.OK, "fail": OpType.FAIL, "info": OpType.INFO}
#: What each model is told by, and all operations that it may have.
_NAMES: dict[Model, tuple[frozenset[str], frozenset[str]]] = {
    Model.SET: (frozenset(("add",)), frozenset(("add", "read"))),
    Model.QUEUE: 2 * (frozenset(("enqueue", "dequeue", "drain")),),
    Model.KAFKA: (
        frozenset(("send", "poll", "txn", "assign", "subscribe")),
        frozenset(("send", "poll", "txn", "assign", "subscribe", "crash", "debug-topic-partitions")),
    ),
    Model.REGISTER: (frozenset(("write", "cas")), frozenset(("read", "write", "cas"))),
}
#: Micro-operations of kafka. Transactions of others are of lists or registers.
_PARTS = frozenset(("send", "poll"))
#: Operations that are looked at to find out what the history is of.
_LOOK_AT = 10_000


@dataclass(frozen=True, slots=True)
class Op:
    """One event of a history. `time`: ns, None if it has none. `about`: all that it says."""

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
    """What the first operations of a history say about all of it."""

    model: Model
    #: Values are [key value].
    keyed: bool
    #: Operations say which keys were rebalanced while they went on.
    rebalances: bool


def convert(source: Path, run_dir: Path, run: str) -> None:
    """Write a history as a trace.

    Raises:
        ReaderError: it is none, or of a workload that is not known here.
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
                    reader.take(op)
                else:
                    raise ReaderError(f"operation {op.f} is no part of a history of the kind {survey.model}")
            except MALFORMED as error:
                raise ReaderError(f"{source}:{op.line}: {error}") from error
        trace.finish(reader.targets())


def _reader(survey: _Survey, trace: HistoryTrace) -> _Reader:
    if survey.model is Model.KAFKA:
        return KafkaReader(trace, rebalances=survey.rebalances)
    if survey.model is Model.REGISTER:
        return _RegisterReader(trace, keyed=survey.keyed)
    reader: Callable[..., _Reader] = SetReader if survey.model is Model.SET else QueueReader
    return reader(trace, keyed=survey.keyed)


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
        found: list[Any] = json.loads(text)
        return found
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _survey(source: Path) -> _Survey:
    seen = [op for op in islice(operations(source), _LOOK_AT) if op.process != "nemesis"]
    for op in seen:
        for model, (telling, _) in _NAMES.items():
            if op.f in telling and not (model is Model.KAFKA and _is_elsewhere(op)):
                rebalances = any("rebalance-log" in one.about for one in seen)
                return _Survey(model, _is_keyed(model, seen), rebalances)
    names = sorted(name for telling, _ in _NAMES.values() for name in telling)
    raise ReaderError(
        f"{source}: of no known workload; known are {', '.join(names)} as names of operations, and send and "
        "poll in transactions"
    )


def _is_elsewhere(op: Op) -> bool:
    """Whether it is a transaction of another workload than kafka."""
    return op.f == "txn" and any(isinstance(part, list) and part[0] not in _PARTS for part in op.value or [])


def _is_keyed(model: Model, ops: list[Op]) -> bool:
    """Whether all values are [key value]: then those of reads begin as [key nil]."""
    begun = [op.value for op in ops if op.type is OpType.INVOKE and op.f in ("read", "dequeue", "drain")]
    ended = [op.value for op in ops if op.type is OpType.OK and op.f in ("read", "dequeue", "drain")]
    if model is Model.REGISTER:
        begun += [op.value for op in ops if op.type is OpType.INVOKE and op.f == "write"]
        begun += [
            value[1] if isinstance(value, list) and len(value) == 2 else None
            for value in (op.value for op in ops if op.type is OpType.INVOKE and op.f == "cas")
        ]
    inner = [value[1] for value in ended if isinstance(value, list) and len(value) == 2]
    if model is Model.SET and not all(one is None or isinstance(one, list) for one in inner):
        return False
    return bool(begun) and len(inner) == len(ended) and all(_is_pair(value) for value in begun)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


class _Reader(Protocol):
    def take(self, op: Op) -> None:
        """One event of a client."""

    def targets(self) -> dict[str, int] | None:
        """See `HistoryTrace.finish`."""


class _RegisterReader:
    """Writes, reads and compare-and-set of one register, or, with values [key value], of many."""

    def __init__(self, trace: HistoryTrace, *, keyed: bool) -> None:
        self._trace = trace
        self._writer = RegisterWriter(trace, says_why=False)
        self._keyed = keyed

    def take(self, op: Op) -> None:
        key, value = "register", op.value
        if self._keyed and _is_pair(value):
            key, value = str(value[0]), value[1]
        if op.f == "cas" and isinstance(value, list):
            self._writer.take(op, key, [text_of(one) for one in value])
        elif op.f == "read" and op.type is OpType.OK and value is None:
            # As in Jepsen, that is a read of which nobody knows what it showed.
            if self._trace.is_busy(op.process):
                self._trace.complete(op.process, OpType.OK)
            else:
                self._trace.orphan(op.process, "get", op.type)
        else:
            self._writer.take(op, key, text_of(value))

    def targets(self) -> dict[str, int] | None:
        return None
