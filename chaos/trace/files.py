"""The files that traces are written to: gathered in buffers, or, on nodes, each line at once."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Protocol

#: Lines wait for each other until there is so much of them, or somebody calls flush().
BUFFER_BYTES = 64 << 10
#: So much of a mapped file is reserved and mapped at a time.
WINDOW_BYTES = 1 << 20
_LOOK_BYTES = 64 << 10


class TraceFile(Protocol):
    """Lines one after the other; not for several threads at once. OSError, also of an earlier line."""

    def write(self, line: bytes) -> None: ...

    def flush(self) -> None:
        """All that was written survives the death of this process."""

    def close(self) -> None: ...


class BufferedFile:
    """Lines reach the file in whole buffers, in order. A process that is killed loses what is buffered, and
    may leave half a line at the end."""

    def __init__(self, path: Path) -> None:
        """FileExistsError if there is one already."""
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
    """Each line is in the file when `write` returns, at the price of a copy: a process that is killed loses
    none, and may leave half a line. What is reserved behind the last line are zeros until `close`, or until
    somebody calls `seal`."""

    def __init__(self, path: Path) -> None:
        """FileExistsError if there is one already."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._begin = -WINDOW_BYTES  # of the window, in the file
        self._at = WINDOW_BYTES  # where the next line goes, in the window
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
        # Reserved: a page for which the disk has no room would kill the process.
        os.posix_fallocate(self._file, begin, WINDOW_BYTES)
        if self._window is not None:
            self._window.close()
        self._window = mmap.mmap(self._file, WINDOW_BYTES, offset=begin)
        self._begin, self._at = begin, 0


def seal(path: Path) -> None:
    """Cut off the zeros that a killed writer has left behind its last line. Nobody may write any more."""
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
