"""Operations of clients, as events: an invoke, followed by at most one completion: ok, fail or info.

`invoke` is stamped before the request is sent, and the completion after the answer arrived, so recorded
intervals can only be too long. After `info` (unknown outcome) the process is retired and its client continues
under a new process number, because the operation may still take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from chaos.trace.outcomes import classify
from chaos.trace.schema import Ev, OpType
from chaos.trace.writer import TraceWriter

#: Size of each client's range of operation and message numbers.
_SHARE = 1 << 40


class Numbers:
    """Unique numbers for the operations and messages of one client (`number` 0 and up)."""

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
    """A logical process, which has one operation at a time."""

    def __init__(self, writer: TraceWriter, numbers: Numbers) -> None:
        self._writer = writer
        self._numbers = numbers
        self._proc = numbers.process()
        self._op: int | None = None
        self._f = ""

    @property
    def writer(self) -> TraceWriter:
        """Return the writer of this process."""
        return self._writer

    def now(self) -> int:
        """Return the monotonic time in ns."""
        return self._writer.now()

    def next_op(self) -> int:
        """Return the number of the next operation. The items of a batch need it, because they precede the
        invoke."""
        if self._op is None:
            self._op = self._numbers.op()
        return self._op

    def item(self, i: int, mid: int, digest: str, **fields: Any) -> None:
        """Write message number `i` of the batch that is invoked next."""
        self._writer.write(Ev.ITEM, {"op": self.next_op(), "i": i, "mid": mid, "digest": digest, **fields})

    def invoke(self, f: str, **arguments: Any) -> int:
        """Write the invoke, before the request is sent, and return the number of the operation."""
        assert not self._f, f"{self._proc} has a pending operation"
        op, self._f = self.next_op(), f
        self._write(OpType.INVOKE, arguments)
        return op

    def again(self, retry_no: int) -> None:
        """Write a retry of the pending operation. The number is 1 for the second attempt."""
        assert self._f, "no operation is pending"
        self._writer.write(Ev.ATTEMPT, {"op": self._op, "retry_no": retry_no})

    def ok(self, **results: Any) -> None:
        """Complete the operation as ok, because it definitely took effect."""
        self._complete(OpType.OK, results)

    def failed(self, error: BaseException, **results: Any) -> OpType:
        """Complete the operation with an error, which decides between fail and info."""
        classification = classify(error, self._f)
        self._complete(
            classification.outcome, {"code": classification.code, "error": classification.text, **results}
        )
        if classification.outcome is OpType.INFO:
            self._proc = self._numbers.process()
        return classification.outcome

    def unsure(self, code: str) -> OpType:
        """Complete the operation as info, because its answer guarantees nothing."""
        self._complete(OpType.INFO, {"code": code})
        self._proc = self._numbers.process()
        return OpType.INFO

    def delivered(self, i: int, mid: int, digest: str, **fields: Any) -> None:
        """Write the delivery of message number `i` of the pending operation."""
        assert self._f, "no operation is pending"
        self._writer.write(Ev.DLV, {"op": self._op, "i": i, "mid": mid, "digest": digest, **fields})

    def _complete(self, outcome: OpType, fields: dict[str, Any]) -> None:
        assert self._f, "no operation is pending"
        self._write(outcome, fields)
        self._op, self._f = None, ""

    def _write(self, what: OpType, fields: dict[str, Any]) -> None:
        self._writer.write(Ev.OP, {"type": what, "op": self._op, "proc": self._proc, "f": self._f, **fields})


class ClientTrace:
    """Trace of one client: the operations of its processes, and their retries.

    `note` is the hook to which clients of the log and of brokers report attempts. `number_of` returns the
    number of a message.
    """

    def __init__(self, writer: TraceWriter, numbers: Numbers, number_of: Callable[[bytes], int]) -> None:
        self.writer = writer
        self.numbers = numbers
        self._number_of = number_of
        self._ops: dict[int, int] = {}  # number of the first message -> operation

    def process(self) -> Process:
        return Process(self.writer, self.numbers)

    def sending(self, mid: int, op: int) -> None:
        """Register an operation before it is passed to the client. `mid`: its first message."""
        self._ops[mid] = op

    def over(self, mid: int) -> None:
        """Unregister an operation that definitely will not be retried."""
        self._ops.pop(mid, None)

    def note(self, bodies: Sequence[bytes], number: int) -> None:
        if number > 1 and (op := self._ops.get(mid := self._number_of(bodies[0]))) is not None:
            self.writer.write(Ev.ATTEMPT, {"op": op, "mid": mid, "retry_no": number - 1})
