"""Writer of traces: one append-only file of JSON lines per writer and incarnation.

Every line has the envelope and the fields of its event (`chaos.trace.schema`). `seq` counts from 0 without
gaps, `mono` is CLOCK_MONOTONIC in ns (one clock for all processes of one machine). A killed writer may leave
an incomplete last line, and no other defect, because lines reach the file in order. `chaos.trace.files`
describes the lines that it may lose.
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

#: Encoded once, because formatting an enumeration member takes longer than the rest of the line's head.
_KIND = {ev: f'"ev":"{ev}",'.encode() for ev in Ev}


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks in nanoseconds."""

    mono_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns


class TraceWriter:
    """One writer. `src`: "client:p3", "node:n1", "nemesis", "admin", ...; `incarnation`: of its process.

    Raises FileExistsError if this writer and incarnation already has a file. Must not be used by several
    threads at the same time.
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
        used_clocks = clocks or Clocks()
        self._mono_ns, self._wall_ns = used_clocks.mono_ns, used_clocks.wall_ns
        fixed = {"v": VERSION, "run": run, "src": src, "inc": incarnation, "host": socket.gethostname()}
        # Encoded once, because it is the same in every line.
        self._head = dumps(fixed)[:-1]
        self._seq = 0
        self._last = 0
        self._file: TraceFile | None = file(self.path)
        self.write(Ev.META, {"e": "writer_begin", "boot_id": boot_id(), "pid": os.getpid()})

    @property
    def lines(self) -> int:
        """Return the number of lines written so far."""
        return self._seq

    def now(self) -> int:
        """Return the monotonic time in ns, for `at`."""
        return self._mono_ns()

    def write(self, ev: Ev, fields: dict[str, Any], *, at: int | None = None) -> None:
        """Write one event with at least one field.

        `at`: the time of the event (`now()`), if it is not the present; stamps never decrease. Raises
        orjson.JSONEncodeError for a value that JSON does not support.
        """
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
        """Pass all lines to the operating system, so that they survive the death of this process."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write the last line and close the file. Idempotent."""
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
    """Return an id of the boot, or "none" if it is unavailable. Monotonic clocks are comparable if this id is
    equal."""
    try:
        return _BOOT_ID.read_text().strip()
    except FileNotFoundError:
        return "none"
