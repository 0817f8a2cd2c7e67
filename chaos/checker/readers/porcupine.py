"""Reader for the logs of Porcupine's examples: a register, and a key-value store.

There are two notations, both with one event per line; other lines are ignored. The logs contain no times, so
events are in the order of the lines. As in Porcupine, keys initially have no value, and a failed
compare-and-set means that the value differed.

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
class PorcupineEvent:
    """One line. `f`: read, write, append or cas. `value`: text; in completions, only of reads."""

    line: int
    process: str
    type: OpType
    f: str
    key: str
    value: Any


def is_line(text: str) -> bool:
    """Return True for a line of such a log."""
    return bool(_UTIL.match(text) or (_KV.match(text) and re.search(r":f :(get|put|append)\b", text)))


def convert(source: Path, run_dir: Path, run: str) -> None:
    """Convert a log to a trace.

    Raises:
        ReaderError: the file is not such a log.
    """
    with HistoryTrace(run_dir, run, Model.STORE, source) as trace:
        writer, line = RegisterWriter(trace, says_why=True), 0
        for event in events(source):
            line = event.line
            trace.tick(line, None)
            try:
                writer.add_event(event, event.key, event.value)
            except MALFORMED as error:
                raise ReaderError(f"{source}:{line}: {error}") from error
        if not line:
            raise ReaderError(f"{source} contains no line of a register log or store log")
        trace.finish(None)


def events(source: Path) -> Iterator[PorcupineEvent]:
    """Yield the events of a log.

    Raises:
        ReaderError: a line of an event is malformed.
    """
    # Ignore undecodable bytes, which may be in unrelated lines.
    with source.open(encoding="utf-8", errors="replace") as file:
        for line, text in enumerate(file, 1):
            if match := _UTIL.match(text):
                yield _of_register(source, line, *match.groups())
            elif _KV.match(text):
                yield _of_store(source, line, _form(source, line, text))


def _of_register(source: Path, line: int, process: str, how: str, f: str, text: str) -> PorcupineEvent:
    # In failed reads and writes, the value may be replaced with a reason such as :timed-out.
    value = _form(source, line, text) if how in ("invoke", "ok") else None
    texts = (
        [text_of(operand) for operand in value] if f == "cas" and isinstance(value, list) else text_of(value)
    )
    return PorcupineEvent(line, process, OpType(how), f, "register", texts)


def _of_store(source: Path, line: int, form: Any) -> PorcupineEvent:
    try:
        f, how = _NAMES[form["f"]], OpType(form["type"])
        process, key, value = str(form["process"]), str(form["key"]), form["value"]
    except (KeyError, ValueError, TypeError) as error:
        raise ReaderError(f"{source}:{line}: not a valid operation: {error!r}") from None
    # A missing key and an empty value are equivalent.
    return PorcupineEvent(line, process, how, f, key, None if value in (None, "") else str(value))


def _form(source: Path, line: int, text: str) -> Any:
    try:
        # The reader ignores one list around everything, so add one to preserve a list value.
        return next(value for _, value in forms([f"({text.strip()})"]))
    except (EdnError, StopIteration) as error:
        raise ReaderError(f"{source}:{line}: cannot read {text.strip()!r}: {error}") from None
