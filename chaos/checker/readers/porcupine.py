"""Logs as Porcupine's examples have them: of a register, and of a store of keys and values.

Two notations, one event a line; lines that are neither are passed over. They have no times: the order of the
lines is that of the events. As in Porcupine, keys have no value in the beginning, and a compare-and-set that
failed says that the value was another one.

    INFO  jepsen.util - 3	:invoke	:write	4
    {:process 0, :type :invoke, :f :append, :key "7", :value "x 0 11 y"}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.checker.readers.edn import EdnError, forms
from chaos.checker.readers.history import MALFORMED, HistoryTrace, Model, ReaderError
from chaos.checker.readers.register import RegisterWriter, text_of
from chaos.trace.schema import OpType

_UTIL = re.compile(r"INFO\s+jepsen\.util\s+-\s+(\S+)\s+:(invoke|ok|fail|info)\s+:(read|write|cas)\s*(.*)")
_KV = re.compile(r"\{:process\s")
_NAMES = {"get": "read", "put": "write", "append": "append"}


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `f`: read, write, append or cas. `value`: as text; of a completion, of reads only."""

    line: int
    process: str
    type: OpType
    f: str
    key: str
    value: Any


def is_line(text: str) -> bool:
    """Whether a line is one of such a log."""
    return bool(_UTIL.match(text) or (_KV.match(text) and re.search(r":f :(get|put|append)\b", text)))


def convert(source: Path, run_dir: Path, run: str) -> None:
    """Write a log as a trace.

    Raises:
        ReaderError: it is none.
    """
    with HistoryTrace(run_dir, run, Model.STORE, source) as trace:
        writer, line = RegisterWriter(trace, says_why=True), 0
        for event in events(source):
            line = event.line
            trace.tick(line, None)
            try:
                writer.take(event, event.key, event.value)
            except MALFORMED as error:
                raise ReaderError(f"{source}:{line}: {error}") from error
        if not line:
            raise ReaderError(f"{source} holds no line of a register's or a store's log")
        trace.finish(None)


def events(source: Path) -> Iterator[Event]:
    """ReaderError."""
    # Lines of others are passed over, whatever is in them.
    with source.open(encoding="utf-8", errors="replace") as file:
        for line, text in enumerate(file, 1):
            if match := _UTIL.match(text):
                yield _of_register(source, line, *match.groups())
            elif _KV.match(text):
                yield _of_store(source, line, _form(source, line, text))


def _of_register(source: Path, line: int, process: str, how: str, f: str, text: str) -> Event:
    # What a write or a read that did not end well has instead of a value, as :timed-out, is no value.
    value = _form(source, line, text) if how in ("invoke", "ok") else None
    texts = [text_of(one) for one in value] if f == "cas" and isinstance(value, list) else text_of(value)
    return Event(line, process, OpType(how), f, "register", texts)


def _of_store(source: Path, line: int, form: Any) -> Event:
    try:
        f, how = _NAMES[form["f"]], OpType(form["type"])
        process, key, value = str(form["process"]), str(form["key"]), form["value"]
    except (KeyError, ValueError, TypeError) as error:
        raise ReaderError(f"{source}:{line}: no operation: {error!r}") from None
    # A key without a value is one with an empty one.
    return Event(line, process, how, f, key, None if value in (None, "") else str(value))


def _form(source: Path, line: int, text: str) -> Any:
    try:
        # A list around it, so that one around the value is not looked through.
        return next(value for _, value in forms([f"({text.strip()})"]))
    except (EdnError, StopIteration) as error:
        raise ReaderError(f"{source}:{line}: cannot read {text.strip()!r}: {error}") from None
