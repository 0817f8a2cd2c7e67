"""Reader for Jepsen's kafka workload: sends that return offsets, polls that return values at offsets.

A key is a partition and becomes a log. One operation (`txn`) may contain several sends and polls, and is
atomic. Each send becomes an append, numbered with the number of the operation plus its position; all polls
become one pull with the highest such number. Without its last three digits, the number identifies the
operation. Each part gets its own process (`3.0`, `3.1`, ..., `3.poll`); the process of the operation is
recorded as `consumer`.

Each key and process has an `epoch`, which changes whenever the process may continue with the key at another
offset. For sends and polls, this is when an assignment does not include the key. For polls, it is also when
the process restarts from the beginning, and at any time while it subscribes, because the broker then moves
keys. `attempt` is 1 for keys that were rebalanced during the operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from chaos.checker.readers.history import SHARE, HistoryOp, HistoryTrace, ReaderError
from chaos.trace.schema import OpType

#: Position of the polls of an operation among its parts.
POLLS = SHARE - 1


class _KafkaOp(HistoryOp, Protocol):
    @property
    def value(self) -> Any: ...
    @property
    def about(self) -> Mapping[str, Any]: ...


class _Epochs:
    """Epochs of one process, by key."""

    def __init__(self) -> None:
        self._since: dict[str, int] = defaultdict(int)
        self._all = 0

    def of(self, key: str) -> int:
        return self._since[key] + self._all

    def keep(self, keys: set[str]) -> None:
        """Start a new epoch for all keys except these."""
        for key in self._since:
            self._since[key] += key not in keys

    def renew(self) -> None:
        self._all += 1


class _Process:
    def __init__(self) -> None:
        self.sends = _Epochs()
        self.polls = _Epochs()
        self.subscribes = False
        #: Pending operation: keys and values of its sends, and whether it polls.
        self.sent: list[tuple[str, Any]] | None = None
        self.has_polls = False


class KafkaHistoryReader:
    """Reader for the events of a history. `rebalances`: operations list the keys that were rebalanced."""

    def __init__(self, trace: HistoryTrace, *, rebalances: bool) -> None:
        self._trace = trace
        self._rebalances = rebalances
        self._processes: dict[str, _Process] = defaultdict(_Process)
        self._acked: dict[str, int] = {}

    def add_event(self, op: _KafkaOp) -> None:
        if op.f in ("assign", "subscribe"):
            self._assign(op, self._processes[op.process])
        elif op.f in ("send", "poll", "txn"):
            if op.type is OpType.INVOKE:
                self._invoke(op, self._processes[op.process])
            else:
                self._complete(op, self._processes[op.process])

    def _assign(self, op: _KafkaOp, process: _Process) -> None:
        if op.type in (OpType.INVOKE, OpType.FAIL):
            return
        keys = {str(key) for key in op.value or ()}
        process.sends.keep(keys)
        process.polls.keep(keys)
        if process.subscribes or op.f == "subscribe" or op.about.get("seek-to-beginning?"):
            process.polls.renew()
        process.subscribes = op.f == "subscribe"

    def _invoke(self, op: _KafkaOp, process: _Process) -> None:
        parts = _parts(op)
        sends = [(str(part[1]), _value(part[2])) for part in parts if part[0] == "send"]
        if len(sends) >= POLLS:
            raise ReaderError(f"an operation has {len(sends)} sends; the limit is {POLLS - 1}")
        # The invocation of a poll may leave its value out.
        process.sent, process.has_polls = sends, op.f == "poll" or any(part[0] == "poll" for part in parts)
        for i, (key, value) in enumerate(sends):
            number, name = op.line * SHARE + i, f"{op.process}.{i}"
            epoch = process.sends.of(key)
            self._trace.invoke_append(number, name, key, value, consumer=op.process, epoch=epoch)
        if process.has_polls:
            self._trace.invoke_read(op.line * SHARE + POLLS, f"{op.process}.poll", "pull", None)

    def _complete(self, op: _KafkaOp, process: _Process) -> None:
        if process.sent is None:
            self._trace.orphan(op.process, "append" if op.f == "send" else "pull", op.type)
            return
        sends, process.sent = process.sent, None
        parts = _parts(op)
        answers = [part for part in parts if part[0] == "send"]
        if answers and [(str(part[1]), _value(part[2])) for part in answers] != sends:
            raise ReaderError(
                f"process {op.process} completes an operation with sends that differ from those it invoked"
            )
        for i, (key, _) in enumerate(sends):
            answer = answers[i][2] if answers else None
            results: dict[str, Any] = {}
            if isinstance(answer, list) and isinstance(offset := answer[0], int):
                results = {"lidx": offset, "ledger": key}
                if op.type is OpType.OK:
                    self._acked[key] = max(self._acked.get(key, -1), offset)
            self._trace.complete(f"{op.process}.{i}", op.type, **results)
        if process.has_polls:
            self._polled(op, process, parts)
        elif any(_shown(parts)):
            raise ReaderError(
                f"process {op.process} completes an operation with polls that it did not invoke"
            )

    def _polled(self, op: _KafkaOp, process: _Process, parts: list[list[Any]]) -> None:
        """Write the results of polls, regardless of the outcome of the operation."""
        moved = {str(key) for entry in op.about.get("rebalance-log") or () for key in entry.get("keys") or ()}
        name = f"{op.process}.poll"
        if process.subscribes:
            process.polls.renew()
        for i, (key, offset, value) in enumerate(_shown(parts)):
            # Without a rebalance log, any poll of a subscription may have seen a rebalance.
            is_moved = key in moved or (process.subscribes and not self._rebalances)
            about: dict[str, Any] = {"consumer": op.process, "epoch": process.polls.of(key)}
            about |= {"attempt": 1} if is_moved else {}
            about |= {} if offset is None else {"lidx": offset}
            self._trace.add_result(name, key, value, i, **about)
        self._trace.complete(name, op.type)

    def targets(self) -> dict[str, int] | None:
        """Return the last acknowledged offset of each log."""
        return self._acked


def _parts(op: _KafkaOp) -> list[list[Any]]:
    parts = op.value or []
    for part in parts:
        if not isinstance(part, list) or part[0] not in ("send", "poll"):
            raise ReaderError(f"{part!r} is neither a send nor a poll")
    return list(parts)


def _value(answer: Any) -> Any:
    """Return the value of a send. The history contains it as a value or as [offset value]."""
    return answer[1] if isinstance(answer, list) else answer


def _shown(parts: list[list[Any]]) -> Iterator[tuple[str, int | None, Any]]:
    """Yield key, offset and value of the messages that polls returned."""
    for part in parts:
        if part[0] == "poll" and len(part) > 1 and part[1]:
            for key, pairs in part[1].items():
                for offset, value in pairs:
                    if offset is not None and not isinstance(offset, int):
                        raise ReaderError(f"offset {offset!r} of key {key} is not a number")
                    yield str(key), offset, value
