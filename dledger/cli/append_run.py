"""Append the lines of a stream: several batches in flight, every line accounted for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dledger.cli.line_source import LineBatch, LineBatches
from dledger.client.values import AppendResult
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest


class Appender(Protocol):
    """What a client offers, as far as it matters here."""

    async def append_many(self, bodies: Sequence[bytes], /) -> list[AppendResult]: ...


@dataclass(slots=True)
class Tally:
    """What became of the lines that were read. Lines after the first failure are not read any more."""

    acknowledged: int = 0
    failed: int = 0  # certainly not stored
    indeterminate: int = 0  # perhaps stored
    bytes: int = 0  # of the acknowledged
    first_index: int = -1
    last_index: int = -1
    started: float = field(default_factory=time.monotonic)
    #: The failure with the lowest line number, as others often follow from it.
    error: DLedgerError | None = None
    error_line: int = 0

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-6)

    def succeed(self, batch: LineBatch, results: Sequence[AppendResult]) -> None:
        self.acknowledged += len(batch.bodies)
        self.bytes += batch.size
        # -1: stored, but the cluster does not know any more where.
        indexes = [result.index for result in results if result.index >= 0]
        if indexes:
            self.last_index = max(self.last_index, indexes[-1])
            self.first_index = indexes[0] if self.first_index < 0 else min(self.first_index, indexes[0])

    def fail(self, batch: LineBatch, error: DLedgerError) -> None:
        if isinstance(error, Indeterminate):
            self.indeterminate += len(batch.bodies)
        else:
            self.failed += len(batch.bodies)
        if self.error is None or batch.first_line < self.error_line:
            self.error, self.error_line = error, batch.first_line

    def reject_line(self, line: int, limit: int) -> None:
        self.failed += 1
        if self.error is None:
            self.error_line = line
            self.error = InvalidRequest(
                f"line {line} is longer than {limit} bytes; nothing from that line on was appended "
                "(--max-line-bytes is the limit here, the servers have their own)",
                code=Code.BODY_TOO_LARGE,
            )


class AppendRun:
    """One pass over `batches`. `tally` is right at every moment, also after a cancellation."""

    def __init__(
        self,
        appender: Appender,
        batches: LineBatches,
        *,
        in_flight: int,
        on_progress: Callable[[Tally], None] | None = None,
    ) -> None:
        self.tally = Tally()
        self._appender = appender
        self._batches = batches
        self._slots = asyncio.Semaphore(in_flight)
        self._on_progress = on_progress
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeder: asyncio.Task[None] | None = None

    async def run(self) -> Tally:
        """To the end of the stream or the first failure. Errors of appends are in the tally, not raised."""
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
        if splitter.too_long is not None:
            self.tally.reject_line(splitter.too_long, splitter.max_line_bytes)
        return self.tally

    async def _feed(self) -> None:
        async for batch in self._batches:
            await self._slots.acquire()
            if self.tally.error is not None:
                return
            task = asyncio.create_task(self._append(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _append(self, batch: LineBatch) -> None:
        try:
            results = await self._appender.append_many(batch.bodies)
        except DLedgerError as error:
            self.tally.fail(batch, error)
            # It may be waiting for a pipe that stays silent.
            if self._feeder is not None:
                self._feeder.cancel()
        except asyncio.CancelledError:
            self.tally.fail(batch, Indeterminate("interrupted before the answer came", code=Code.TIMEOUT))
            raise
        else:
            self.tally.succeed(batch, results)
        finally:
            self._slots.release()
        if self._on_progress is not None:
            self._on_progress(self.tally)
