"""What clients do, as events: every operation is invoked, and then is ok, fail or info, or nothing more.

`invoke` is stamped before anything is sent and the completion after the answer was there: intervals only
grow. After `info` (nobody knows) a process is retired and its client goes on under a new number, because the
old operation may take effect at any later moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from chaos.trace.outcomes import judge
from chaos.trace.schema import Ev, OpType
from chaos.trace.writer import TraceWriter

#: Room for so many operations and messages of each client.
_SHARE = 1 << 40


class Numbers:
    """Unique numbers of one client (`number` 0 and up): of its operations and of its messages."""

    def __init__(self, number: int) -> None:
        self._ops = count(number * _SHARE)
        self._messages = count(number * _SHARE + 1)
        self._processes = (f"p{number}.{n}" for n in count())

    def op(self) -> int:
        return next(self._ops)

    def message(self) -> int:
        return next(self._messages)

    def process(self) -> str:
        return next(self._processes)


class Process:
    """One logical process: one operation at a time."""

    def __init__(self, writer: TraceWriter, numbers: Numbers) -> None:
        self._writer = writer
        self._numbers = numbers
        self._proc = numbers.process()
        self._op: int | None = None
        self._f = ""

    @property
    def writer(self) -> TraceWriter:
        """Where it writes."""
        return self._writer

    def now(self) -> int:
        """Monotonic ns."""
        return self._writer.now()

    def next_op(self) -> int:
        """The number of the operation that is invoked next, for the items of a batch, which come before."""
        if self._op is None:
            self._op = self._numbers.op()
        return self._op

    def item(self, i: int, mid: int, digest: str, **fields: Any) -> None:
        """Message number `i` of the batch that is invoked next."""
        self._writer.write(Ev.ITEM, {"op": self.next_op(), "i": i, "mid": mid, "digest": digest, **fields})

    def invoke(self, f: str, **arguments: Any) -> int:
        """Before it is sent; the number of the operation."""
        assert not self._f, f"{self._proc} does one thing at a time"
        op, self._f = self.next_op(), f
        self._write(OpType.INVOKE, arguments)
        return op

    def again(self, retry_no: int) -> None:
        """What was invoked is sent once more: 1 for the second attempt."""
        assert self._f, "nothing is under way"
        self._writer.write(Ev.ATTEMPT, {"op": self._op, "retry_no": retry_no})

    def ok(self, **results: Any) -> None:
        """It certainly happened."""
        self._complete(OpType.OK, results)

    def failed(self, error: BaseException, **results: Any) -> OpType:
        """It ended with an error, which decides between fail and info."""
        verdict = judge(error, self._f)
        self._complete(verdict.outcome, {"code": verdict.code, "error": verdict.text, **results})
        if verdict.outcome is OpType.INFO:
            self._proc = self._numbers.process()
        return verdict.outcome

    def unsure(self, code: str) -> OpType:
        """It was answered, and the answer promises nothing."""
        self._complete(OpType.INFO, {"code": code})
        self._proc = self._numbers.process()
        return OpType.INFO

    def delivered(self, i: int, mid: int, digest: str, **fields: Any) -> None:
        """Message number `i` of the operation under way was handed to this client."""
        assert self._f, "nothing is under way"
        self._writer.write(Ev.DLV, {"op": self._op, "i": i, "mid": mid, "digest": digest, **fields})

    def _complete(self, outcome: OpType, fields: dict[str, Any]) -> None:
        assert self._f, "nothing is under way"
        self._write(outcome, fields)
        self._op, self._f = None, ""

    def _write(self, what: OpType, fields: dict[str, Any]) -> None:
        self._writer.write(Ev.OP, {"type": what, "op": self._op, "proc": self._proc, "f": self._f, **fields})


class ClientTrace:
    """What one client writes: operations, by its processes, and what is repeated inside of them. `note` is
    the hook that clients of log and brokers tell of attempts; `number_of` reads the number of a message."""

    def __init__(self, writer: TraceWriter, numbers: Numbers, number_of: Callable[[bytes], int]) -> None:
        self.writer = writer
        self.numbers = numbers
        self._number_of = number_of
        self._ops: dict[int, int] = {}  # number of the first message -> operation

    def process(self) -> Process:
        return Process(self.writer, self.numbers)

    def sending(self, mid: int, op: int) -> None:
        """Before an operation is handed to the client: its first message has this number."""
        self._ops[mid] = op

    def over(self, mid: int) -> None:
        """It certainly will not be sent again."""
        self._ops.pop(mid, None)

    def note(self, bodies: Sequence[bytes], number: int) -> None:
        if number > 1 and (op := self._ops.get(mid := self._number_of(bodies[0]))) is not None:
            self.writer.write(Ev.ATTEMPT, {"op": op, "mid": mid, "retry_no": number - 1})
