"""Send the lines of a stream: several batches in flight, every line accounted for."""

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
    """What became of the lines that were read. Lines after the first failure are not read any more."""

    acknowledged: int = 0
    failed: int = 0  # certainly not stored
    indeterminate: int = 0  # perhaps stored
    bytes: int = 0  # of the acknowledged
    started: float = field(default_factory=time.monotonic)
    #: The failure with the lowest line number, as others often follow from it.
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
        """Take note of where some lines are."""

    def fail(self, lines: LineBatch, error: Error, *, is_indeterminate: bool) -> None:
        if is_indeterminate:
            self.indeterminate += len(lines.bodies)
        else:
            self.failed += len(lines.bodies)
        if self.error is None or lines.first_line < self.error_line:
            self.error, self.error_line = error, lines.first_line

    def reject_line(self, line: int, error: Error) -> None:
        """A line that was not sent; none after it is."""
        self.failed += 1
        if self.error is None:
            self.error, self.error_line = error, line


@dataclass(frozen=True, slots=True)
class ErrorKinds(Generic[Error]):
    """How a protocol says what went wrong."""

    caught: type[Error]
    indeterminate: type[Error]
    #: What a send is that was cancelled before its answer came.
    interrupted: Callable[[], Error]
    #: A line of the stream is longer than it may be: this text says which, and what was not sent.
    too_long: Callable[[str], Error]


class LineRun(Generic[Tally, Stored, Error]):
    """One pass over `batches`, at most `lines_per_send` lines in a send.

    `tally` is right at every moment, also after a cancellation.
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
        """`send` is called in the order of the lines. At most `max_sends` sends are in flight, and more than
        `max_bytes` only if it is one."""
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
        self._room = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None

    async def run(self) -> Tally:
        """To the end of the stream or the first failure. Errors of sends are in the tally, not raised."""
        self._feeder = asyncio.create_task(self._feed())
        try:
            await asyncio.wait([self._feeder])
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            # Only a cancellation comes here with anything left to do: what is in flight is then in doubt.
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
                    self._room.clear()
                    await self._room.wait()
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
            # It may be waiting for a pipe that stays silent.
            if self._feeder is not None:
                self._feeder.cancel()
        except asyncio.CancelledError:
            self.tally.fail(lines, self._errors.interrupted(), is_indeterminate=True)
            raise
        else:
            self.tally.succeed(lines, stored)
        finally:
            self._bytes -= lines.size
            # The task itself is still counted: whoever waits looks again when it is gone.
            asyncio.get_running_loop().call_soon(self._room.set)
        if self._on_progress is not None:
            self._on_progress(self.tally)


def _parts(batch: LineBatch, size: int) -> Iterator[LineBatch]:
    for at in range(0, len(batch.bodies), size):
        yield LineBatch(batch.first_line + at, batch.bodies[at : at + size])
