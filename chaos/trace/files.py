"""Files of traces: buffered or, on nodes, memory-mapped so that no line is lost."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Protocol

#: Size at which buffered lines are written.
BUFFER_BYTES = 64 << 10
#: Size of the windows in which a mapped file is allocated and mapped.
WINDOW_BYTES = 1 << 20
_LOOK_BYTES = 64 << 10


class TraceFile(Protocol):
    """A file of lines. Only one thread at a time may use it. Methods raise OSError, possibly because an
    earlier line could not be written."""

    def write(self, line: bytes) -> None: ...

    def flush(self) -> None:
        """Ensure that all written lines survive the death of this process."""

    def close(self) -> None: ...


class BufferedFile:
    """Writes lines in order, in whole buffers. A killed process loses the buffered lines and may leave an
    incomplete last line."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises FileExistsError if it exists."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._buffer: list[bytes] = []
        self._buffered = 0

    def write(self, line: bytes) -> None:
        self._buffer.append(line)
        self._buffered += len(line)
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            data = memoryview(b"".join(self._buffer))
            self._buffer.clear()
            self._buffered = 0
            while data:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        self.flush()
        os.close(self._file)


class MappedFile:
    """Writes each line into a mapping of the file before `write` returns, at the cost of a copy.

    A killed process loses no line, but may leave an incomplete last one. The allocated space after the last
    line contains zeros until `close` or `seal` is called.
    """

    def __init__(self, path: Path) -> None:
        """Create the file. Raises FileExistsError if it exists."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._begin = -WINDOW_BYTES  # offset of the window in the file
        self._at = WINDOW_BYTES  # offset of the next line in the window
        self._window: mmap.mmap | None = None

    def write(self, line: bytes) -> None:
        end = self._at + len(line)
        if self._window is None or end > WINDOW_BYTES:
            self._write_over_the_border(line)
        else:
            self._window[self._at : end] = line
            self._at = end

    def flush(self) -> None:
        return

    def close(self) -> None:
        os.ftruncate(self._file, self._begin + self._at)
        if self._window is not None:
            self._window.close()
            self._window = None
        os.close(self._file)

    def _write_over_the_border(self, data: bytes) -> None:
        while data:
            room = WINDOW_BYTES - self._at
            if not room:
                self._next_window()
                continue
            assert self._window is not None
            part, data = data[:room], data[room:]
            self._window[self._at : self._at + len(part)] = part
            self._at += len(part)

    def _next_window(self) -> None:
        begin = self._begin + WINDOW_BYTES
        # Allocated, because writing to a page without disk space would kill the process.
        os.posix_fallocate(self._file, begin, WINDOW_BYTES)
        if self._window is not None:
            self._window.close()
        self._window = mmap.mmap(self._file, WINDOW_BYTES, offset=begin)
        self._begin, self._at = begin, 0


def seal(path: Path) -> None:
    """Remove the zeros that a killed writer left after its last line. The file must have no writer."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _LOOK_BYTES)
            file.seek(begin)
            rest = file.read(end - begin).rstrip(b"\0")
            if rest:
                file.truncate(begin + len(rest))
                return
            end = begin
        file.truncate(0)
