"""Writes a history of another system as a trace.

All lines have the same writer, `client:history`, because a single recorder wrote the history in order. The
number of an operation is the line of its invocation in the source times `SHARE`, plus its position in that
line. The `text` of `run_begin` names the model of the history, `history:<model>`, and its `config` states if
the history has no times. A file next to the trace maps its lines to the lines of the source
(`chaos.checker.readers.lines`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from chaos.checker.readers.lines import LineMap
from chaos.trace.schema import RAW_DIR, VERSION, Ev, OpType, file_name

#: Maximum number of operations per line of a history.
SHARE = 1_000
_CLIENT, _NEMESIS, _ADMIN = "client:history", "nemesis", "admin"
#: Distance of the stamps of two lines in a history without times; ns.
_STEP_NS = 1_000
_HASHED = 1 << 62
#: `config` of `run_begin` if stamps are not times.
UNTIMED = "untimed"
_ENDS = {"stop": ("start",), "resume": ("pause",), "start": ("kill",), "heal": ("",)}

#: Converts a source file into a run directory, with the given name of the run.
Convert = Callable[[Path, Path, str], None]


class ReaderError(Exception):
    """Raised if the file is not a readable history. The text states the reason and the location."""


#: Exceptions from processing an operation of the right form with unexpected values.
MALFORMED = (
    ReaderError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class Model(StrEnum):
    """Type of the object of a history, which selects the checks."""

    #: A set: adds, and reads of all elements.
    SET = "set"
    #: A queue: enqueues and dequeues.
    QUEUE = "queue"
    #: Logs whose sends and polls name offsets (Jepsen: kafka).
    KAFKA = "kafka"
    #: Keys with one value each and an unknown initial value (Jepsen: register).
    REGISTER = "register"
    #: Keys with one value each, initially without a value (Porcupine).
    STORE = "store"


class HistoryOp(Protocol):
    """One event of a client in a history, common to all formats."""

    @property
    def line(self) -> int: ...
    @property
    def process(self) -> str: ...
    @property
    def type(self) -> OpType: ...
    @property
    def f(self) -> str: ...


class HistoryTrace:
    """Writes a run directory. `finish` writes the description of the run, without which the trace is
    incomplete."""

    def __init__(self, run_dir: Path, run: str, model: Model, source: Path) -> None:
        self._run = run
        self._model = model
        self._lines = LineMap(run_dir, source)
        self._line = 1
        self._timed = True
        folder = run_dir / RAW_DIR
        folder.mkdir(parents=True)
        self._files: dict[str, TextIOWrapper] = {
            src: (folder / file_name(src, 0)).open("w", encoding="utf-8")
            for src in (_ADMIN, _CLIENT, _NEMESIS)
        }
        self._seq = dict.fromkeys(self._files, 0)
        self._now = 0
        self._logs: dict[str, int] = {}
        self._open: dict[str, tuple[int, str]] = {}
        self._faults: list[tuple[int, str]] = []
        self._fault = 0
        self._announced: dict[str, int] = {}
        for src in (_CLIENT, _NEMESIS):
            self._write(src, Ev.META, e="writer_begin", boot_id="history")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._lines.close()

    @property
    def now(self) -> int:
        """Stamp of the last event, in ns."""
        return self._now

    def tick(self, line: int, time: int | None) -> None:
        """Set the line and time (ns) of the next event. `time` is None in a history without times. Stamps
        strictly increase, because the order of the history is decisive."""
        self._line = line
        self._timed &= time is not None
        self._now = max(self._now + (_STEP_NS if time is None else 1), time or 0)

    def mid(self, log: str, value: object) -> int:
        """Return the number for a value of a log. For an integer in the first log, this is the value
        itself."""
        place = self._logs.setdefault(log, len(self._logs))
        if place == 0 and type(value) is int and 0 <= value < _HASHED:
            return value
        text = json.dumps([log, value], sort_keys=True, default=str)
        return _HASHED | int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 2

    # -- operations -----------------------------------------------------------------------------------------

    def invoke_append(
        self, op: int, process: str, log: str, value: object, mid: int | None = None, **about: Any
    ) -> None:
        """Write the invocation of an append of `value`. `mid`: a unique number, required if values may
        repeat."""
        number = self.mid(log, value) if mid is None else mid
        self._invoke(op, process, "append", ledger=log, mid=number, digest=_text(value), **about)

    def invoke_read(self, op: int, process: str, f: str, log: str | None) -> None:
        """Write the invocation of a read of a log, or of several logs (None). `f`: get, pull or drain."""
        self._invoke(op, process, f, **({} if log is None else {"ledger": log}))

    def add_result(self, process: str, log: str, value: object, i: int = 0, **about: Any) -> None:
        """Write a value that the pending read of a process returned, before the completion of the read."""
        op, _ = self._under_way(process)
        fields = {"op": op, "i": i, "mid": self.mid(log, value), "digest": _text(value), "ledger": log}
        self._write(_CLIENT, Ev.DLV, **fields, **about)

    def complete(self, process: str, how: OpType, **results: Any) -> None:
        """Write the completion of the operation of a process."""
        op, f = self._under_way(process)
        del self._open[process]
        self._write(_CLIENT, Ev.OP, type=how, op=op, proc=process, f=f, **results)

    def orphan(self, process: str, f: str, how: OpType) -> None:
        """Write a completion without an invocation, which shows that a line is missing."""
        self._write(_CLIENT, Ev.OP, type=how, op=self._line * SHARE, proc=process, f=f)

    def is_busy(self, process: str) -> bool:
        return process in self._open

    def _invoke(self, op: int, process: str, f: str, **fields: Any) -> None:
        # An operation without a completion stays open; the checks of processes report it.
        self._open[process] = (op, f)
        self._write(_CLIENT, Ev.OP, type=OpType.INVOKE, op=op, proc=process, f=f, **fields)

    def _under_way(self, process: str) -> tuple[int, str]:
        try:
            return self._open[process]
        except KeyError:
            raise ReaderError(f"process {process} completes an operation that it has not invoked") from None

    # -- faults and the run ---------------------------------------------------------------------------------

    def nemesis(self, name: str, targets: object) -> None:
        """Process an event of Jepsen's nemesis, which is recorded twice: at its start and at its
        completion."""
        if not self._announced.pop(name, 0):
            self._announced[name] = 1
            return
        word, _, what = name.partition("-")
        ended = [
            (number, f)
            for number, f in self._faults
            if any(f.startswith(begin) and f.endswith(what) for begin in _ENDS.get(word, ()))
        ]
        for number, f in ended:
            self._faults.remove((number, f))
            self._write(_NEMESIS, Ev.FAULT, e="end", fault=number, f=f, effective=True)
        if not ended and word not in ("stop", "resume", "heal"):
            self._faults.append((self._fault, name))
            about = {"e": "begin", "fault": self._fault, "f": name, "targets": _text(targets)}
            self._write(_NEMESIS, Ev.FAULT, **about, effective=True)
            self._fault += 1

    def finish(self, targets: dict[str, int] | None) -> None:
        """Write the last lines. `targets`: the offset that the last reads must reach in each log, or -1 for
        logs without offsets. It is None if there were no last reads."""
        self._write(_NEMESIS, Ev.META, e="healed")
        for log, off in (targets or {}).items():
            self._write(_NEMESIS, Ev.META, e="drain_target", ledger=log, off=off)
        if targets is not None:
            self._write(_NEMESIS, Ev.META, e="drain_end")
        text = f"history:{self._model}"
        begin: dict[str, Any] = {"e": "run_begin", "nodes": 0, "seed": 0, "planned_faults": self._fault}
        begin |= {} if self._timed else {"config": UNTIMED}
        self._write(_ADMIN, Ev.META, **begin, text=text)
        for src in (_CLIENT, _NEMESIS):
            self._write(_ADMIN, Ev.META, e="expect", member=src)
            self._write(src, Ev.META, e="trace_end")

    def _write(self, src: str, ev: Ev, **fields: Any) -> None:
        line: dict[str, Any] = {"v": VERSION, "run": self._run, "src": src, "inc": 0, "seq": self._seq[src]}
        line |= {"host": "history", "mono": self._now, "wall": 0, "ev": ev, **fields}
        self._lines.add(file_name(src, 0), self._line)
        self._seq[src] += 1
        self._files[src].write(json.dumps(line, separators=(",", ":")) + "\n")


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:160]}#{blake2b(text.encode(), digest_size=8).hexdigest()}"
