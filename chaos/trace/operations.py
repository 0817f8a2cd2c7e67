"""What clients do, as events: every operation is invoked, and then is ok, fail or info, or nothing more.

`invoke` is stamped before anything is sent and the completion after the answer was there: intervals only
grow. After `info` (nobody knows) a process is retired and its client goes on under a new number, because the
old operation may take effect at any later moment.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from chaos.outcomes import Outcome, judge
from chaos.trace.writer import TraceWriter

#: Room for so many operations and processes of each client.
_SHARE = 1 << 40
_PROCESSES = 1 << 20


class Numbers:
    """Unique numbers of one client (`number` 0 and up): of its operations and of its messages."""

    def __init__(self, number: int) -> None:
        self._ops = count(number * _SHARE)
        self._messages = count(number * _SHARE + 1)
        self._processes = count(number * _PROCESSES)

    def op(self) -> int:
        return next(self._ops)

    def message(self) -> int:
        return next(self._messages)

    def process(self) -> int:
        return next(self._processes)


class Process:
    """One logical process: one operation at a time."""

    def __init__(self, writer: TraceWriter, numbers: Numbers) -> None:
        self._writer = writer
        self._numbers = numbers
        self._proc = numbers.process()
        self._op: int | None = None
        self._f = ""

    def invoke(self, f: str, **arguments: Any) -> int:
        """Before it is sent; the number of the operation."""
        assert self._op is None, "a process does one thing at a time"
        self._op, self._f = self._numbers.op(), f
        self._writer.write("op", {"type": "invoke", "op": self._op, "proc": self._proc, "f": f, **arguments})
        return self._op

    def ok(self, **results: Any) -> None:
        """It certainly happened."""
        self._complete("ok", results)

    def failed(self, error: BaseException) -> Outcome:
        """It ended with an error, which decides between fail and info."""
        verdict = judge(error, self._f)
        self._complete(verdict.outcome, {"code": verdict.code, "error": verdict.text})
        if verdict.outcome is Outcome.INFO:
            self._proc = self._numbers.process()
        return verdict.outcome

    def delivered(self, i: int, **fields: Any) -> None:
        """Message number `i` of the operation under way was handed to this client."""
        self._writer.write("dlv", {"op": self._op, "i": i, **fields})

    def _complete(self, outcome: str, fields: dict[str, Any]) -> None:
        assert self._op is not None, "nothing is under way"
        self._writer.write(
            "op", {"type": str(outcome), "op": self._op, "proc": self._proc, "f": self._f, **fields}
        )
        self._op = None
