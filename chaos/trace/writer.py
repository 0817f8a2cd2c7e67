"""Writing a trace: one append-only file of JSON lines per writer and incarnation.

Every line has the envelope and the fields of its event (`chaos.trace.schema`). `seq` counts from 0 without a
hole, `mono` is CLOCK_MONOTONIC in ns (one clock for all processes of one machine).
A writer that is killed may tear its last line, and nothing else: lines reach the file in order, and the file
is never written in another way. What it loses is said in `chaos.trace.files`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring as _quoted
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos.trace.files import BufferedFile, TraceFile
from chaos.trace.schema import RAW_DIR, VERSION, Ev, file_name

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


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
        folder.mkdir(parents=True, exist_ok=True)
        self.src = src
        self.path = folder / file_name(src, incarnation)
        self._clocks = clocks or Clocks()
        fixed = {"v": VERSION, "run": run, "src": src, "inc": incarnation, "host": socket.gethostname()}
        # The same in every line, so encoded once.
        self._head = _encode(fixed)[:-1]
        self._seq = 0
        self._last = 0
        self._file: TraceFile | None = file(self.path)
        self.write(Ev.META, {"e": "writer_begin", "boot_id": boot_id()})

    @property
    def lines(self) -> int:
        """Written so far."""
        return self._seq

    def now(self) -> int:
        """Monotonic ns, for `at`."""
        return self._clocks.mono_ns()

    def write(self, ev: Ev, fields: dict[str, Any], *, at: int | None = None) -> None:
        """One event. `at`: when it happened (`now()`), if that is not this moment; stamps never fall."""
        mono = self._last = max(self._last, self._clocks.mono_ns() if at is None else at)
        line = (
            f'{self._head},"seq":{self._seq},"mono":{mono},"wall":{self._clocks.wall_ns()},"ev":"{ev}"'
            f"{_members(fields)}}}\n"
        )
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


def _members(fields: dict[str, Any]) -> str:
    """As JSON, each with a comma before it. Fields are flat and their names plain, which makes this nearly
    twice as fast as an encoder that has to be ready for anything."""
    parts = []
    for name, value in fields.items():
        kind = value.__class__
        if kind is int:
            parts.append(f',"{name}":{value}')
        elif kind is bool:
            parts.append(f',"{name}":true' if value else f',"{name}":false')
        else:
            parts.append(f',"{name}":{_quoted(value)}')
    return "".join(parts)


def boot_id() -> str:
    """Tells whether monotonic clocks can be compared. A machine that has none is one that never boots."""
    try:
        return _BOOT_ID.read_text().strip()
    except FileNotFoundError:
        return "none"
