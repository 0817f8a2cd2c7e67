"""Writing a trace: one append-only file of JSON lines per writer and incarnation.

Every line has the envelope and the fields of its event (`chaos.trace.schema`). `seq` counts from 0 without a
hole, `mono` is CLOCK_MONOTONIC in ns (one clock for all processes of one machine).
A writer that is killed may tear its last line, and nothing else: lines reach the file in order, and the file
is never written in another way. What it loses is said in `chaos.trace.files`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orjson import dumps

from chaos.trace.files import BufferedFile, TraceFile
from chaos.trace.schema import RAW_DIR, VERSION, Ev, file_name

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: The formatting of a member of an enumeration takes longer than all of its field.
_KIND = {ev: f'"ev":"{ev}",'.encode() for ev in Ev}


@dataclass(frozen=True, slots=True)
class Clocks:
    """Nanoseconds."""

    mono_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns


class TraceWriter:
    """One writer. `src`: "client:p3", "node:n1", "nemesis", "admin", ...; `incarnation`: of its process.

    Raises FileExistsError if this writer and incarnation has a file already. Not for several threads at once.
    """

    def __init__(
        self,
        run_directory: Path,
        run: str,
        src: str,
        incarnation: int = 0,
        clocks: Clocks | None = None,
        file: Callable[[Path], TraceFile] = BufferedFile,
    ) -> None:
        folder = run_directory / RAW_DIR
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self.src = src
        self.path = folder / file_name(src, incarnation)
        given = clocks or Clocks()
        self._mono_ns, self._wall_ns = given.mono_ns, given.wall_ns
        fixed = {"v": VERSION, "run": run, "src": src, "inc": incarnation, "host": socket.gethostname()}
        # The same in every line, so encoded once.
        self._head = dumps(fixed)[:-1]
        self._seq = 0
        self._last = 0
        self._file: TraceFile | None = file(self.path)
        self.write(Ev.META, {"e": "writer_begin", "boot_id": boot_id(), "pid": os.getpid()})

    @property
    def lines(self) -> int:
        """Written so far."""
        return self._seq

    def now(self) -> int:
        """Monotonic ns, for `at`."""
        return self._mono_ns()

    def write(self, ev: Ev, fields: dict[str, Any], *, at: int | None = None) -> None:
        """One event, with at least one field; orjson.JSONEncodeError if one is nothing that JSON has. `at`:
        when it happened (`now()`), if that is not this moment; stamps never fall."""
        mono = self._mono_ns() if at is None else at
        if mono < self._last:
            mono = self._last
        self._last = mono
        moment = b',"seq":%d,"mono":%d,"wall":%d,' % (self._seq, mono, self._wall_ns())
        line = self._head + moment + _KIND[ev] + dumps(fields)[1:] + b"\n"
        assert self._file is not None, f"{self.path} is closed"
        self._seq += 1
        self._file.write(line)

    def flush(self) -> None:
        """Hand everything to the operating system: it survives the death of this process."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Say that this is the end, and close. Idempotent."""
        if self._file is not None:
            self.write(Ev.META, {"e": "trace_end"})
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def boot_id() -> str:
    """Tells whether monotonic clocks can be compared. A machine that has none is one that never boots."""
    try:
        return _BOOT_ID.read_text().strip()
    except FileNotFoundError:
        return "none"
