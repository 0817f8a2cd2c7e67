"""Send the lines of a stream as messages: many under way, every line accounted for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_adapter.errors import BrokerError, IllegalMessage, PutIndeterminate, Status
from dledger.cli.line_source import LineBatch, LineBatches

#: Sends under way at once, and their bytes: below what the producer itself refuses.
MAX_SENDS = 1024
MAX_BYTES = 32 << 20


class Stored(NamedTuple):
    """Where some lines are: side by side in one queue."""

    queue_id: int
    last_offset: int


#: Sends some lines as one atomic batch; in the order of the calls.
Send = Callable[[Sequence[bytes]], Awaitable[Stored]]


@dataclass(slots=True)
class Tally:
    """What became of the lines that were read. Lines after the first failure are not read any more."""

    acknowledged: int = 0
    failed: int = 0  # certainly not stored
    indeterminate: int = 0  # perhaps stored
    bytes: int = 0  # of the acknowledged
    started: float = field(default_factory=time.monotonic)
    #: The greatest acknowledged offset of every queue.
    last_offsets: dict[int, int] = field(default_factory=dict)
    #: The failure with the lowest line number, as others often follow from it.
    error: BrokerError | None = None
    error_line: int = 0

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-6)

    def succeed(self, lines: LineBatch, stored: Stored) -> None:
        self.acknowledged += len(lines.bodies)
        self.bytes += lines.size
        last = self.last_offsets.get(stored.queue_id, -1)
        self.last_offsets[stored.queue_id] = max(last, stored.last_offset)

    def fail(self, lines: LineBatch, error: BrokerError) -> None:
        if isinstance(error, PutIndeterminate):
            self.indeterminate += len(lines.bodies)
        else:
            self.failed += len(lines.bodies)
        if self.error is None or lines.first_line < self.error_line:
            self.error, self.error_line = error, lines.first_line

    def reject_line(self, line: int, limit: int) -> None:
        self.failed += 1
        if self.error is None:
            text = f"line {line} is longer than {limit} bytes; nothing from that line on was sent"
            self.error, self.error_line = IllegalMessage(Status.BODY_TOO_LARGE, text), line


class ProduceRun:
    """One pass over `batches`, `lines_per_send` lines in a send. `tally` is right at every moment, also after
    a cancellation."""

    def __init__(
        self,
        send: Send,
        batches: LineBatches,
        *,
        lines_per_send: int = 1,
        on_progress: Callable[[Tally], None] | None = None,
    ) -> None:
        self.tally = Tally()
        self._send = send
        self._batches = batches
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
            # Only a cancellation comes here with anything left to do: what is under way is then in doubt.
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
            for lines in _parts(batch, self._lines_per_send):
                while self._tasks and (len(self._tasks) >= MAX_SENDS or self._bytes + lines.size > MAX_BYTES):
                    self._room.clear()
                    await self._room.wait()
                if self.tally.error is not None:
                    return
                self._bytes += lines.size
                task = asyncio.create_task(self._deliver(lines))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _deliver(self, lines: LineBatch) -> None:
        try:
            stored = await self._send(lines.bodies)
        except BrokerError as error:
            self.tally.fail(lines, error)
            # It may be waiting for a pipe that stays silent.
            if self._feeder is not None:
                self._feeder.cancel()
        except asyncio.CancelledError:
            unknown = PutIndeterminate(Status.OUTCOME_UNKNOWN, "interrupted before the answer came")
            self.tally.fail(lines, unknown)
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
