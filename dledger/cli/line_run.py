"""Sends the lines of a stream, with several batches in flight, and counts the outcome of every line."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from dledger.cli.line_source import LineBatch, LineBatches

Stored = TypeVar("Stored")
Error = TypeVar("Error", bound=Exception)
Tally = TypeVar("Tally", bound="LineTally[Any, Any]")


@dataclass(slots=True)
class LineTally(ABC, Generic[Stored, Error]):
    """The outcome of the lines read so far. Reading stops at the first failure."""

    acknowledged: int = 0
    failed: int = 0  # certainly not stored
    indeterminate: int = 0  # perhaps stored
    bytes: int = 0  # of acknowledged lines
    started: float = field(default_factory=time.monotonic)
    #: The failure with the lowest line number, which often caused the others.
    error: Error | None = None
    error_line: int = 0

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-6)

    def succeed(self, lines: LineBatch, stored: Stored) -> None:
        self.acknowledged += len(lines.bodies)
        self.bytes += lines.size
        self.place(stored)

    @abstractmethod
    def place(self, stored: Stored) -> None:
        """Record the position of stored lines."""

    def fail(self, lines: LineBatch, error: Error, *, is_indeterminate: bool) -> None:
        if is_indeterminate:
            self.indeterminate += len(lines.bodies)
        else:
            self.failed += len(lines.bodies)
        if self.error is None or lines.first_line < self.error_line:
            self.error, self.error_line = error, lines.first_line

    def reject_line(self, line: int, error: Error) -> None:
        """Count a line that was not sent. No later line is sent either."""
        self.failed += 1
        if self.error is None:
            self.error, self.error_line = error, line


@dataclass(frozen=True, slots=True)
class ErrorKinds(Generic[Error]):
    """The errors of a protocol."""

    caught: type[Error]
    indeterminate: type[Error]
    #: Error of a send that was cancelled before its answer arrived.
    interrupted: Callable[[], Error]
    #: Creates the error for a line over the limit, from a text that names the line and the part that was not
    #: sent.
    too_long: Callable[[str], Error]


class LineRun(Generic[Tally, Stored, Error]):
    """Sends the lines of `batches` once, at most `lines_per_send` lines per send.

    `tally` is accurate at any time, also after a cancellation.
    """

    def __init__(
        self,
        send: Callable[[Sequence[bytes]], Awaitable[Stored]],
        batches: LineBatches,
        tally: Tally,
        errors: ErrorKinds[Error],
        *,
        max_sends: int,
        max_bytes: float = inf,
        lines_per_send: int | None = None,
        on_progress: Callable[[Tally], None] | None = None,
    ) -> None:
        """`send` is called in the order of the lines. At most `max_sends` sends with `max_bytes` in total are
        in flight; a single send may exceed `max_bytes`."""
        self._send = send
        self._batches = batches
        self.tally = tally
        self._errors = errors
        self._max_sends = max_sends
        self._max_bytes = max_bytes
        self._lines_per_send = lines_per_send
        self._on_progress = on_progress
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._capacity_freed = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None

    async def run(self) -> Tally:
        """Run until the stream ends or a send fails. Errors of sends are recorded in the tally and not
        raised."""
        self._feeder = asyncio.create_task(self._feed())
        try:
            await asyncio.wait([self._feeder])
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            # Sends remain only after a cancellation. The lines in flight are then in doubt.
            for task in (self._feeder, *self._tasks):
                task.cancel()
            await asyncio.gather(self._feeder, *self._tasks, return_exceptions=True)
            self._batches.close()
        if not self._feeder.cancelled() and (error := self._feeder.exception()) is not None:
            raise error
        splitter = self._batches.splitter
        if (line := splitter.too_long) is not None:
            limit = splitter.max_line_bytes
            text = f"line {line} is longer than {limit} bytes; nothing from that line on was sent"
            self.tally.reject_line(line, self._errors.too_long(text))
        return self.tally

    async def _feed(self) -> None:
        async for batch in self._batches:
            for lines in _parts(batch, self._lines_per_send or len(batch.bodies)):
                while self._tasks and self._is_full(lines):
                    self._capacity_freed.clear()
                    await self._capacity_freed.wait()
                if self.tally.error is not None:
                    return
                self._bytes += lines.size
                task = asyncio.create_task(self._deliver(lines))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _is_full(self, lines: LineBatch) -> bool:
        return len(self._tasks) >= self._max_sends or self._bytes + lines.size > self._max_bytes

    async def _deliver(self, lines: LineBatch) -> None:
        try:
            stored = await self._send(lines.bodies)
        except self._errors.caught as error:
            is_indeterminate = isinstance(error, self._errors.indeterminate)
            self.tally.fail(lines, error, is_indeterminate=is_indeterminate)
            # The feeder may be waiting for a silent pipe.
            if self._feeder is not None:
                self._feeder.cancel()
        except asyncio.CancelledError:
            self.tally.fail(lines, self._errors.interrupted(), is_indeterminate=True)
            raise
        else:
            self.tally.succeed(lines, stored)
        finally:
            self._bytes -= lines.size
            # The task still counts itself as running: waiters check again after its end.
            asyncio.get_running_loop().call_soon(self._capacity_freed.set)
        if self._on_progress is not None:
            self._on_progress(self.tally)


def _parts(batch: LineBatch, size: int) -> Iterator[LineBatch]:
    for at in range(0, len(batch.bodies), size):
        yield LineBatch(batch.first_line + at, batch.bodies[at : at + size])
