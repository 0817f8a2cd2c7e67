"""Histories of keys with one value each, which is written, appended to, or compared and set.

What an operation does stands as JSON in `tag`, for the search (`chaos.checker.histories.linearize`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chaos.checker.histories.linearize import Kind
from chaos.checker.readers.history import SHARE, HistoryOp, HistoryTrace, ReaderError
from chaos.trace.schema import OpType


class RegisterWriter:
    """Writes the events of such a history. `says_why`: a compare-and-set that failed says that the value
    was another one; else nobody knows why it did."""

    def __init__(self, trace: HistoryTrace, *, says_why: bool) -> None:
        self._trace = trace
        self._says_why = says_why

    def take(self, op: HistoryOp, key: str, value: Any) -> None:
        """One event of a client. `value`: of a read that ended, what it showed, by `text_of`."""
        trace = self._trace
        if op.type is OpType.INVOKE:
            if op.f == "read":
                trace.ask(op.line * SHARE, op.process, "get", key)
            else:
                what = [op.f, *_operands(op.f, value)]
                number = op.line * SHARE
                trace.send(number, op.process, key, what[1:], mid=number, tag=json.dumps(what))
        elif not trace.is_busy(op.process):
            trace.orphan(op.process, "get" if op.f == "read" else "append", op.type)
        else:
            self._complete(op, key, value)

    def _complete(self, op: HistoryOp, key: str, value: Any) -> None:
        if op.f == "read" and op.type is OpType.OK:
            tag = json.dumps([Kind.READ, value])
            self._trace.tell(op.process, key, value, tag=tag)
        differs = op.f == "cas" and op.type is OpType.FAIL and self._says_why
        self._trace.complete(op.process, op.type, **({"code": str(Kind.DIFFERS)} if differs else {}))


def text_of(value: object) -> str | None:
    """A value as text, one for each value; None for that of a key without one."""
    return None if value is None else json.dumps(value, sort_keys=True, default=str)


def _operands(f: str, value: Any) -> Sequence[str | None]:
    if f != "cas":
        return [value]
    if not isinstance(value, list) or len(value) != 2:
        raise ReaderError(f"a compare-and-set has the value it expects and the one it writes, not {value!r}")
    return value
