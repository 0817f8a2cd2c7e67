"""Logs as Porcupine's examples have them: of a register, and of a store of keys and values.

Two notations, one event a line; lines that are neither are passed over. They have no times: the order of the
lines is that of the events.

    INFO  jepsen.util - 3	:invoke	:write	4
    {:process 0, :type :invoke, :f :append, :key "7", :value "x 0 11 y"}
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checker.readers.edn import EdnError, forms
from chaos.checker.readers.history import SHARE, HistoryTrace, Model, ReaderError
from chaos.trace.schema import OpType

_UTIL = re.compile(r"INFO\s+jepsen\.util\s+-\s+(\S+)\s+:(invoke|ok|fail|info)\s+:(read|write|cas)\s*(.*)")
_KV = re.compile(r"\{:process\s")
_NAMES = {"get": "read", "put": "write"}


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `f`: read, write, append or cas. `value` of a completion: of reads only."""

    line: int
    process: str
    type: OpType
    f: str
    key: str
    value: Any


@dataclass(slots=True)
class _Key:
    """What the first reading of a log finds about a key. `shown`: by element, where reads show it."""

    writes: int = 0
    appends: list[str] = field(default_factory=list)
    shown: dict[str, int] = field(default_factory=dict)


def is_line(text: str) -> bool:
    """Whether a line is one of such a log."""
    return bool(_UTIL.match(text) or (_KV.match(text) and re.search(r":f :(get|put|append)\b", text)))


def convert(source: Path, run_dir: Path, run: str) -> None:
    """Write a log as a trace: read twice, because where reads show an append is its position.

    Raises:
        ReaderError: it is none.
    """
    keys = _survey(source)
    model = _model_of(keys)
    with HistoryTrace(run_dir, run, model) as trace:
        reader = _Writer(trace, keys, model)
        for event in events(source):
            trace.tick(None)
            try:
                reader.take(event)
            except ReaderError as error:
                raise ReaderError(f"{source}:{event.line}: {error}") from None
        trace.finish(None)


def events(source: Path) -> Iterator[Event]:
    """ReaderError."""
    # Lines of others are passed over, whatever is in them.
    with source.open(encoding="utf-8", errors="replace") as file:
        for line, text in enumerate(file, 1):
            if match := _UTIL.match(text):
                process, how, f, value = match.groups()
                yield Event(line, process, OpType(how), f, "register", _form(source, line, value))
            elif _KV.match(text):
                form = _form(source, line, text)
                try:
                    f = str(form["f"])
                    how = OpType(form["type"])
                    yield Event(
                        line, str(form["process"]), how, _NAMES.get(f, f), str(form["key"]), form["value"]
                    )
                except (KeyError, ValueError, TypeError) as error:
                    raise ReaderError(f"{source}:{line}: no operation: {error!r}") from None


def _form(source: Path, line: int, text: str) -> Any:
    try:
        # A list around it, so that one around the value is not looked through.
        return next(value for _, value in forms([f"({text.strip()})"]))
    except (EdnError, StopIteration) as error:
        raise ReaderError(f"{source}:{line}: cannot read {text.strip()!r}: {error}") from None


def _survey(source: Path) -> dict[str, _Key]:
    keys: dict[str, _Key] = defaultdict(_Key)
    for event in events(source):
        key = keys[event.key]
        if event.type is OpType.INVOKE and event.f in ("write", "cas"):
            # A store's keys may be created as empty, before anything is appended.
            key.writes += not (event.value == "" and not key.appends)
        elif event.type is OpType.INVOKE and event.f == "append":
            key.appends.append(str(event.value))
    for event in events(source):
        key = keys[event.key]
        if key.appends and event.type is OpType.OK and event.f == "read":
            for position, element in enumerate(_elements(str(event.value or ""), key)):
                key.shown.setdefault(element, position)
    if not keys:
        raise ReaderError(f"{source} holds no line of a register's or a store's log")
    return keys


def _model_of(keys: dict[str, _Key]) -> Model:
    overwritten = any(key.writes for key in keys.values())
    appended = any(key.appends for key in keys.values())
    if overwritten and appended:
        return Model.MIXED
    return Model.LIST if appended else Model.REGISTER


def _elements(text: str, key: _Key) -> list[str]:
    """The appended texts that a value is made of, the longest that fits first; a rest that none fits, as
    one."""
    known = set(key.appends)
    lengths = sorted({len(element) for element in known if element}, reverse=True)
    found, at = [], 0
    while at < len(text):
        length = next((n for n in lengths if text[at : at + n] in known), len(text) - at)
        found.append(text[at : at + length])
        at += length
    return found


class _Writer:
    def __init__(self, trace: HistoryTrace, keys: dict[str, _Key], model: Model) -> None:
        self._trace = trace
        self._keys = keys
        self._model = model
        self._sent: dict[str, str] = {}

    def take(self, event: Event) -> None:
        trace, number = self._trace, event.line * SHARE
        if event.type is not OpType.INVOKE:
            if trace.is_busy(event.process):
                self._complete(event)
        elif event.f == "read":
            trace.ask(number, event.process, "get", event.key)
        elif event.value != "" or event.f == "append":
            value = event.value[1] if event.f == "cas" else event.value
            trace.send(number, event.process, event.key, value)
            self._sent[event.process] = str(value)

    def _complete(self, event: Event) -> None:
        trace, key = self._trace, self._keys[event.key]
        results: dict[str, Any] = {}
        if event.type is OpType.OK and event.f == "read":
            results = self._tell(event, key)
        elif event.type is OpType.OK and self._model is Model.LIST:
            position = key.shown.get(self._sent[event.process])
            results = {} if position is None else {"lidx": position, "ledger": event.key}
        trace.complete(event.process, event.type, **results)

    def _tell(self, event: Event, key: _Key) -> dict[str, Any]:
        if not key.appends:
            if event.value not in (None, ""):
                self._trace.tell(event.process, event.key, event.value)
            return {}
        elements = _elements(str(event.value or ""), key)
        for i, element in enumerate(elements):
            place = {"lidx": i} if self._model is Model.LIST else {}
            self._trace.tell(event.process, event.key, element, i, **place)
        return {"end_claim": True, "max_off": len(elements), "next_off": len(elements)}
