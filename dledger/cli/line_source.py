"""Lines of a stream of any length, grouped into batches, in bounded memory.

A thread reads, because reading a pipe blocks. The input that arrives while earlier batches are in flight
forms the next batch: a fast file yields full batches, and a slow pipe never waits for one to fill up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Protocol

from dledger.core.values import ENTRY_HEADER_SIZE

_CHUNK_BYTES = 64 * 1024
_CHUNKS_AHEAD = 16
#: How often the reader checks whether the loop still runs, in seconds.
_CHECK_S = 0.5


class ByteSource(Protocol):
    """A binary stream that returns available data without buffering: an unbuffered file or pipe.

    A buffered stream would not work: the thread that waits for a silent pipe would hold its lock, and Python
    could neither close it nor exit until the pipe delivers data.
    """

    def read(self, size: int, /) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Consecutive lines without their newlines. `first_line` counts from 1."""

    first_line: int
    bodies: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.bodies))

    @property
    def last_line(self) -> int:
        return self.first_line + len(self.bodies) - 1


class LineSplitter:
    """Splits bytes into complete lines. Buffers at most one partial line, of up to `max_line_bytes`."""

    def __init__(self, max_line_bytes: int) -> None:
        self.max_line_bytes = max_line_bytes
        #: Number of the first line over the limit; no lines are returned from there on.
        self.too_long: int | None = None
        self.lines = 0
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self.too_long is not None:
            return []
        *lines, self._partial = (self._partial + data).split(b"\n")
        lines = self._cut_at_limit(lines)
        if self.too_long is None and len(self._partial) > self.max_line_bytes:
            self._stop_at(self.lines + 1)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line, if it had no newline."""
        last = [self._partial] if self._partial else []
        self._partial = b""
        return self._cut_at_limit(last)

    def _cut_at_limit(self, lines: list[bytes]) -> list[bytes]:
        for position, line in enumerate(lines):
            if len(line) > self.max_line_bytes:
                self.lines += position
                self._stop_at(self.lines + 1)
                return lines[:position]
        self.lines += len(lines)
        return lines

    def _stop_at(self, line: int) -> None:
        self.too_long = line
        self._partial = b""


class LineBatches:
    """Reads `source` to its end and yields its lines in batches. Iterate once; `close` ends it early."""

    def __init__(
        self, source: ByteSource, *, batch_bytes: int, batch_entries: int, max_line_bytes: int
    ) -> None:
        self._source = source
        self._batch_bytes = batch_bytes
        self._batch_entries = batch_entries
        self.splitter = LineSplitter(max_line_bytes)
        self.bytes_read = 0
        self._chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue(_CHUNKS_AHEAD)
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    async def __aiter__(self) -> AsyncIterator[LineBatch]:
        loop = asyncio.get_running_loop()
        # A daemon thread: reading a silent pipe must not prevent the exit.
        threading.Thread(target=self._read_all, args=(loop,), name="read-lines", daemon=True).start()
        waiting: list[bytes] = []
        first_line = 1
        ended = False
        while not ended:
            ended = self._add_chunk(await self._chunks.get(), waiting)
            while not ended and not self._is_full(waiting) and not self._chunks.empty():
                ended = self._add_chunk(self._chunks.get_nowait(), waiting)
            while waiting:
                bodies = self._cut(waiting)
                yield LineBatch(first_line, bodies)
                first_line += len(bodies)
        self.close()

    def _add_chunk(self, chunk: bytes | Exception, waiting: list[bytes]) -> bool:
        """Split one chunk into `waiting`. Returns True for the last chunk."""
        if isinstance(chunk, Exception):
            raise chunk
        self.bytes_read += len(chunk)
        waiting += self.splitter.feed(chunk) if chunk else self.splitter.finish()
        return not chunk or self.splitter.too_long is not None

    def _is_full(self, waiting: list[bytes]) -> bool:
        if len(waiting) >= self._batch_entries:
            return True
        return sum(map(len, waiting)) + ENTRY_HEADER_SIZE * len(waiting) >= self._batch_bytes

    def _cut(self, waiting: list[bytes]) -> list[bytes]:
        """Remove one batch from the front of `waiting`. It has at least one line and otherwise respects both
        limits."""
        size = 0
        count = 0
        for line in waiting[: self._batch_entries]:
            size += len(line) + ENTRY_HEADER_SIZE
            if count and size > self._batch_bytes:
                break
            count += 1
        bodies = waiting[:count]
        del waiting[:count]
        return bodies

    def _read_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the source, on its own thread. A full queue blocks it, which bounds the memory."""
        try:
            while not self._closed.is_set():
                try:
                    chunk: bytes | Exception = self._source.read(_CHUNK_BYTES) or b""
                except (OSError, ValueError) as error:
                    chunk = error
                if self._closed.is_set():
                    return
                put = self._chunks.put(chunk)
                try:
                    _wait(asyncio.run_coroutine_threadsafe(put, loop), loop)
                finally:
                    put.close()  # never started if the loop is closed
                if not chunk or isinstance(chunk, Exception):
                    return
        except (RuntimeError, CancelledError):
            # The loop has ended, for example after Ctrl-C: the lines are no longer needed.
            return


def _wait(done: Future[None], loop: asyncio.AbstractEventLoop) -> None:
    """Wait for a coroutine. Raises RuntimeError if the loop ended before it started the coroutine."""
    while True:
        try:
            return done.result(_CHECK_S)
        except TimeoutError:
            if loop.is_closed():
                raise RuntimeError("the loop has ended") from None
