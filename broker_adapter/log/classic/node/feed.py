"""Applies the log to the state machine in order, on one thread (RocketMQ's ReputMessageService)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

from broker_adapter.log.classic.node.records import (
    ReadableFiles,
    RecordPiece,
    RecordRun,
    size_at,
    whole_appends,
    whole_units,
)
from broker_adapter.log.classic.shipped_units import UnitRun
from dledger import Applied, AppliedEntry, Code, ReadFailed

_PIECE_BYTES = 1 << 20
# Called with True if the machine starts empty.
Adopt = Callable[[bool], tuple[int, Callable[[], None]] | None]


class Machine(Protocol):
    """The part of `dledger.DurableStateMachine` that a classic log uses. It has no state images."""

    def recover(self) -> Applied | None: ...

    def rebuild_from(self, physical_offset: int) -> None: ...

    def apply(self, entries: Sequence[AppliedEntry]) -> None: ...

    def close(self) -> None: ...


class DispatchFeed:
    """Applies the log to the state machine.

    Call `start` once, `advance` whenever the log grows, and `stop` once, on the event loop. `thread` is the
    only thread that calls the machine.
    """

    def __init__(
        self,
        log: ReadableFiles,
        machine: Machine,
        thread: Executor,
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Create a feed.

        `on_failure` receives an error of the machine or of the log. Afterwards no further records are
        applied.
        """
        # End of the applied log. Read from any thread.
        self.position = 0
        self._log = log
        self._machine = machine
        self._thread = thread
        self._on_failure = on_failure
        self._limit = 0
        self._work: asyncio.Future[int] | None = None
        self._is_started = self._is_running = False
        self._adopt: Adopt = lambda is_new: None
        self._mark: tuple[int, Callable[[], None]] | None = None
        self._settle: Callable[[], None] | None = None
        self._begun_end = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.is_failed = False

    async def start(self, adopt: Adopt, settle: Callable[[], None] = lambda: None) -> None:
        """Recover the machine, or rebuild it from the start of the log.

        Both callbacks run on the machine's thread. `adopt` receives True after a rebuild. It may return a log
        position, and a function that is called when the log has been applied up to that position. `settle` is
        called when the log has been applied up to its current end, before any later record is applied.
        """
        loop = asyncio.get_running_loop()
        self._adopt, self._settle, self._begun_end = adopt, settle, self._log.end_offset
        self.position = await loop.run_in_executor(self._thread, self._recover)
        self._is_running = self._is_started = True
        self._dispatch()

    def advance(self, limit: int) -> None:
        """Permit applying the log up to `limit`, the end of an append."""
        if limit > self._limit:
            self._limit = limit
            self._dispatch()

    async def wait(self, offset: int, timeout_ms: int) -> None:
        """Wait until the log has been applied up to `offset`.

        Raises ReadFailed after `timeout_ms`, or if the broker stops.
        """
        if self.position >= offset:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, done))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await done
        except TimeoutError:
            text = f"dispatched up to {self.position} instead of {offset} after {timeout_ms} ms"
            raise ReadFailed(text, code=Code.READ_NOT_CONFIRMED) from None
        finally:
            self._waiting = [waiter for waiter in self._waiting if waiter[1] is not done]

    async def run(self, work: Callable[[], None]) -> None:
        """Run `work` on the machine's thread, between two pieces."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def stop(self) -> None:
        """Stop applying the log. Close the machine unless it has failed."""
        if not self._is_started:
            return
        self._is_running = False
        if self._work is not None:
            await asyncio.wait([self._work])
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(ReadFailed("the broker is stopping", code=Code.READ_NOT_CONFIRMED))
        if not self.is_failed:
            await self.run(self._machine.close)

    # -- internals

    def _recover(self) -> int:
        log, applied = self._log, self._machine.recover()
        if applied is not None and log.begin_offset <= applied.end_pos <= log.end_offset:
            self._mark = self._adopt(False)
            return self._reached(applied.end_pos)
        return self._reached(self._rebuild())

    def _reached(self, position: int) -> int:
        if self._mark is not None and position >= min(self._mark[0], self._begun_end):
            self._mark[1]()
            self._mark = None
        if self._settle is not None and position >= self._begun_end:
            self._settle()
            self._settle = None
        return position

    def _rebuild(self) -> int:
        self._machine.rebuild_from(self._log.begin_offset)
        self._mark = self._adopt(True)
        return self._log.begin_offset

    def _dispatch(self) -> None:
        """Apply the next piece, unless a piece is being applied."""
        if self._is_running and self._work is None and self.position < self._limit:
            loop = asyncio.get_running_loop()
            self._work = loop.run_in_executor(self._thread, self._apply, self.position, self._limit)
            self._work.add_done_callback(self._on_applied)

    def _on_applied(self, work: asyncio.Future[int]) -> None:
        self._work = None
        if work.cancelled():
            return
        try:
            self.position = work.result()
        except Exception as error:
            self.is_failed, self._is_running = True, False
            self._on_failure(error)
            return
        self._wake_waiters()
        self._dispatch()

    def _apply(self, begin: int, limit: int) -> int:
        """Apply a piece. Return the start of the next one."""
        log = self._log
        if begin < log.begin_offset:  # an empty slave's log starts at its master's first transferred file
            return self._rebuild()
        if self._settle is not None:
            limit = min(limit, self._begun_end)
        if self._mark is not None and begin < self._mark[0]:
            limit = min(limit, self._mark[0])
        piece = self._piece(begin, limit)
        if not piece:
            raise ReadFailed(f"no complete record at offset {begin} of the log", code=Code.DATA_DAMAGED)
        self._machine.apply(RecordRun(RecordPiece(begin, piece)))
        return self._reached(begin + len(piece))

    def _piece(self, begin: int, limit: int) -> bytes:
        """Read whole appends from a range of the log. `limit` is the end of an append.

        Suppose that a piece ended within an append whose last records are not durable yet, and that a
        checkpoint of the derived files were written at that position. After a crash the log would end before
        the checkpoint.
        """
        log = self._log
        data, units, whole = self._read_units(begin, min(_PIECE_BYTES, limit - begin))
        if not whole and data:
            data, units, whole = self._read_units(begin, size_at(log, begin))
        if begin + whole >= limit:
            return data[:whole]
        complete, size = whole_appends(data, units)
        if complete or size <= len(data):
            return data[: complete or whole]
        data, _, whole = self._read_units(begin, min(size, limit - begin))
        return data[:whole]

    def _read_units(self, begin: int, limit: int) -> tuple[bytes, list[UnitRun], int]:
        """Read at most `limit` bytes. Return them, their whole units, and the total size of these."""
        data = self._log.read(begin, limit)
        units = whole_units(data, begin, self._log.file_size)
        return data, units, sum(unit.total_bytes for unit in units)

    def _wake_waiters(self) -> None:
        for offset, done in self._waiting:
            if offset <= self.position and not done.done():
                done.set_result(None)
