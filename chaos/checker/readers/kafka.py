"""Jepsen's kafka workload: sends that are answered with offsets, polls that show values at offsets.

A key is a partition, and becomes a log. One operation may hold several sends and polls (`txn`), and is
atomic. Each of its sends becomes an append whose number is that of the operation plus its place, and all of
its polls become one pull with the highest such number: without its last three digits the number tells what
belongs together. Each of them gets a process of its own (`3.0`, `3.1`, ..., `3.poll`); the process of the
operation is told as `consumer`.

`epoch`, of a key and a process, changes where a process need not go on with a key where it was: of sends and
polls when it is given keys without this one; of polls also when it begins anew, and all the time that it
subscribes, as keys then come and go. `attempt` is 1 for keys that were rebalanced during the operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from chaos.checker.readers.history import SHARE, HistoryOp, HistoryTrace, ReaderError
from chaos.trace.schema import OpType

#: The place of the polls of an operation among its parts.
POLLS = SHARE - 1


class _Op(HistoryOp, Protocol):
    @property
    def value(self) -> Any: ...
    @property
    def about(self) -> Mapping[str, Any]: ...


class _Epochs:
    """Of one process: by key, how often it need not have gone on."""

    def __init__(self) -> None:
        self._since: dict[str, int] = defaultdict(int)
        self._all = 0

    def of(self, key: str) -> int:
        return self._since[key] + self._all

    def keep(self, keys: set[str]) -> None:
        """All keys but these begin anew."""
        for key in self._since:
            self._since[key] += key not in keys

    def renew(self) -> None:
        self._all += 1


class _Process:
    def __init__(self) -> None:
        self.sends = _Epochs()
        self.polls = _Epochs()
        self.subscribes = False
        #: What is under way: keys and values of its sends, and whether it polls.
        self.sent: list[tuple[str, Any]] | None = None
        self.has_polls = False


class KafkaReader:
    """`rebalances`: operations say which keys were rebalanced while they went on."""

    def __init__(self, trace: HistoryTrace, *, rebalances: bool) -> None:
        self._trace = trace
        self._rebalances = rebalances
        self._processes: dict[str, _Process] = defaultdict(_Process)
        self._acked: dict[str, int] = {}

    def take(self, op: _Op) -> None:
        if op.f in ("assign", "subscribe"):
            self._assign(op, self._processes[op.process])
        elif op.f in ("send", "poll", "txn"):
            if op.type is OpType.INVOKE:
                self._begin(op, self._processes[op.process])
            else:
                self._end(op, self._processes[op.process])

    def _assign(self, op: _Op, process: _Process) -> None:
        if op.type in (OpType.INVOKE, OpType.FAIL):
            return
        keys = {str(key) for key in op.value or ()}
        process.sends.keep(keys)
        process.polls.keep(keys)
        if process.subscribes or op.f == "subscribe" or op.about.get("seek-to-beginning?"):
            process.polls.renew()
        process.subscribes = op.f == "subscribe"

    def _begin(self, op: _Op, process: _Process) -> None:
        parts = _parts(op)
        sends = [(str(part[1]), _value(part[2])) for part in parts if part[0] == "send"]
        if len(sends) >= POLLS:
            raise ReaderError(f"an operation with {len(sends)} sends, more than {POLLS - 1}")
        process.sent, process.has_polls = sends, any(part[0] == "poll" for part in parts)
        for i, (key, value) in enumerate(sends):
            number, name = op.line * SHARE + i, f"{op.process}.{i}"
            epoch = process.sends.of(key)
            self._trace.send(number, name, key, value, consumer=op.process, epoch=epoch)
        if process.has_polls:
            self._trace.ask(op.line * SHARE + POLLS, f"{op.process}.poll", "pull", None)

    def _end(self, op: _Op, process: _Process) -> None:
        if process.sent is None:
            self._trace.orphan(op.process, "append" if op.f == "send" else "pull", op.type)
            return
        sends, process.sent = process.sent, None
        parts = _parts(op)
        answers = [part for part in parts if part[0] == "send"]
        if answers and [(str(part[1]), _value(part[2])) for part in answers] != sends:
            raise ReaderError(
                f"process {op.process} ends an operation with other sends than it began it with"
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
            raise ReaderError(f"process {op.process} ends an operation with polls that it began without")

    def _polled(self, op: _Op, process: _Process, parts: list[list[Any]]) -> None:
        """What a poll showed is told whatever became of its operation."""
        moved = {str(key) for entry in op.about.get("rebalance-log") or () for key in entry.get("keys") or ()}
        name = f"{op.process}.poll"
        if process.subscribes:
            process.polls.renew()
        for i, (key, offset, value) in enumerate(_shown(parts)):
            # Without a log of rebalances each poll of a subscription may have had one.
            is_moved = key in moved or (process.subscribes and not self._rebalances)
            about: dict[str, Any] = {"consumer": op.process, "epoch": process.polls.of(key)}
            about |= {"attempt": 1} if is_moved else {}
            about |= {} if offset is None else {"lidx": offset}
            self._trace.tell(name, key, value, i, **about)
        self._trace.complete(name, op.type)

    def targets(self) -> dict[str, int] | None:
        """The last offset of each log that was acknowledged."""
        return self._acked


def _parts(op: _Op) -> list[list[Any]]:
    parts = op.value or []
    for part in parts:
        if not isinstance(part, list) or part[0] not in ("send", "poll"):
            raise ReaderError(f"{part!r} is neither a send nor a poll")
    return list(parts)


def _value(answer: Any) -> Any:
    """Of a send: a value, or [offset value]."""
    return answer[1] if isinstance(answer, list) else answer


def _shown(parts: list[list[Any]]) -> Iterator[tuple[str, int | None, Any]]:
    """Key, offset and value of what polls showed."""
    for part in parts:
        if part[0] == "poll" and len(part) > 1 and part[1]:
            for key, pairs in part[1].items():
                for offset, value in pairs:
                    if offset is not None and not isinstance(offset, int):
                        raise ReaderError(f"offset {offset!r} of key {key} is no number")
                    yield str(key), offset, value
