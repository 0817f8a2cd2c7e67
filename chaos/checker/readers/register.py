"""Histories of keys with one value each, with writes, appends, and compare-and-set.

`tag` contains the operation as JSON, for the search (`chaos.checker.histories.linearize`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chaos.checker.histories.linearize import UseKind
from chaos.checker.readers.history import SHARE, HistoryOp, HistoryTrace, ReaderError
from chaos.trace.schema import OpType


class RegisterWriter:
    """Writes the events of such a history. `says_why`: a failed compare-and-set means that the value
    differed; otherwise the cause of a failure is unknown."""

    def __init__(self, trace: HistoryTrace, *, says_why: bool) -> None:
        self._trace = trace
        self._says_why = says_why

    def add_event(self, op: HistoryOp, key: str, value: Any) -> None:
        """Write one event of a client. `value`: for a completed read, its result in the form of `text_of`."""
        trace = self._trace
        if op.type is OpType.INVOKE:
            if op.f == "read":
                trace.invoke_read(op.line * SHARE, op.process, "get", key)
            else:
                what = [op.f, *_operands(op.f, value)]
                number = op.line * SHARE
                trace.invoke_append(number, op.process, key, what[1:], mid=number, tag=json.dumps(what))
        elif not trace.is_busy(op.process):
            trace.orphan(op.process, "get" if op.f == "read" else "append", op.type)
        else:
            self._complete(op, key, value)

    def _complete(self, op: HistoryOp, key: str, value: Any) -> None:
        if op.f == "read" and op.type is OpType.OK:
            tag = json.dumps([UseKind.READ, value])
            self._trace.add_result(op.process, key, value, tag=tag)
        differs = op.f == "cas" and op.type is OpType.FAIL and self._says_why
        self._trace.complete(op.process, op.type, **({"code": str(UseKind.DIFFERS)} if differs else {}))


def text_of(value: object) -> str | None:
    """Return a canonical text for a value. None stands for a key that has no value."""
    return None if value is None else json.dumps(value, sort_keys=True, default=str)


def _operands(f: str, value: Any) -> Sequence[str | None]:
    if f != "cas":
        return [value]
    if not isinstance(value, list) or len(value) != 2:
        raise ReaderError(
            f"a compare-and-set must have two values, the expected and the new one, not {value!r}"
        )
    return value
