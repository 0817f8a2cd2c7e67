"""Jepsen's kafka workload: sends that are answered with offsets, polls that show values at offsets.

A key is a partition, and becomes a log. One operation may hold several sends and polls (`txn`): each of
them, and
each key of a poll, becomes an operation of its own, of a process of its own (`3.0`, `3.1`, ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from chaos.checker.readers.history import SHARE, HistoryTrace, ReaderError
from chaos.trace.schema import OpType


class _Op(Protocol):
    @property
    def line(self) -> int: ...
    @property
    def process(self) -> str: ...
    @property
    def type(self) -> OpType: ...
    @property
    def f(self) -> str: ...
    @property
    def value(self) -> Any: ...


class KafkaReader:
    def __init__(self, trace: HistoryTrace) -> None:
        self._trace = trace
        #: By process: what it has under way, and the line on which that began.
        self._sends: dict[str, list[tuple[str, Any]]] = {}
        self._begun: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._subscribed: set[str] = set()
        self._acked: dict[str, int] = {}

    def take(self, op: _Op) -> None:
        if op.f in ("assign", "subscribe"):
            if op.type is OpType.INVOKE:
                self._epochs[op.process] = self._epochs.get(op.process, 0) + 1
                (self._subscribed.add if op.f == "subscribe" else self._subscribed.discard)(op.process)
        elif op.f in ("send", "poll", "txn"):
            (self._begin if op.type is OpType.INVOKE else self._end)(op)

    def _begin(self, op: _Op) -> None:
        sends = [(str(part[1]), _value(part[2])) for part in op.value or [] if part[0] == "send"]
        self._sends[op.process], self._begun[op.process] = sends, op.line
        for i, (key, value) in enumerate(sends):
            self._trace.send(op.line * SHARE + i, f"{op.process}.{i}", key, value)

    def _end(self, op: _Op) -> None:
        if op.process not in self._begun:
            raise ReaderError(f"process {op.process} ends an operation that it has not begun")
        sends, line = self._sends.pop(op.process), self._begun.pop(op.process)
        parts = op.value or []
        answers = [part[2] for part in parts if part[0] == "send"]
        for i, (key, _) in enumerate(sends):
            answer = answers[i] if i < len(answers) else None
            results: dict[str, Any] = {}
            if op.type is OpType.OK and isinstance(answer, list) and isinstance(offset := answer[0], int):
                results = {"lidx": offset, "ledger": key}
                self._acked[key] = max(self._acked.get(key, -1), offset)
            self._trace.complete(f"{op.process}.{i}", op.type, **results)
        # What a poll showed counts whatever became of its operation.
        for i, (key, pairs) in enumerate(_polled(parts), len(sends)):
            self._poll(op, line * SHARE + i, f"{op.process}.{i}", key, pairs)

    def _poll(self, op: _Op, number: int, process: str, key: str, pairs: list[Any]) -> None:
        trace = self._trace
        # Its invocation is written late, so its interval is shorter than it was: reads in this model say only
        # what there was when they returned, and for that the return counts.
        trace.ask(number, process, "pull", key)
        # After a subscription partitions come and go within a poll; and what ended otherwise is polled again.
        again = op.process in self._subscribed or op.type is not OpType.OK
        moved = {"attempt": 1} if again else {}
        about = {"group": op.process, "consumer": op.process, "epoch": self._epochs.get(op.process, 0)}
        for i, (offset, value) in enumerate(pairs):
            trace.tell(process, key, value, i, lidx=offset, **about, **moved)
        trace.complete(process, op.type)

    def targets(self) -> dict[str, int] | None:
        """The last offset of each log that was acknowledged."""
        return self._acked


def _value(answer: Any) -> Any:
    """Of a send: a value, or [offset value]."""
    return answer[1] if isinstance(answer, list) else answer


def _polled(parts: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    for part in parts:
        if part[0] == "poll" and len(part) > 1 and part[1]:
            for key, pairs in part[1].items():
                yield str(key), pairs
