"""Hands the log to the state machine, in order and on one thread (RocketMQ's ReputMessageService)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

from broker_adapter.classic_node.records import (
    ReadableFiles,
    RecordPiece,
    RecordRun,
    size_at,
    whole_records,
)
from dledger import Applied, AppliedEntry, Code, ReadFailed

_PIECE_BYTES = 1 << 20


class Machine(Protocol):
    """What of `dledger.DurableStateMachine` a classic log drives: it has no state images."""

    def recover(self) -> Applied | None: ...

    def begin_anew(self, physical_offset: int) -> None: ...

    def apply(self, entries: Sequence[AppliedEntry]) -> None: ...

    def close(self) -> None: ...


class DispatchFeed:
    """`begin` once, then `advance` as often as there is more, `stop` once; on the event loop. `thread`: the
    one thread of the machine."""

    def __init__(
        self,
        log: ReadableFiles,
        machine: Machine,
        thread: Executor,
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`on_failure`: what the machine or the log raised; nothing is handed on after it."""
        #: All before it is applied. Any thread.
        self.position = 0
        self._log = log
        self._machine = machine
        self._thread = thread
        self._on_failure = on_failure
        self._limit = 0
        self._more = asyncio.Event()
        self._adopt: Callable[[bool], None] = lambda is_new: None
        self._settle: Callable[[], None] | None = None
        self._begun_end = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self.is_failed = False

    async def begin(self, adopt: Callable[[bool], None], settle: Callable[[], None] = lambda: None) -> None:
        """Recover the machine, or begin anew where the log begins; `adopt` is told which, on the machine's
        thread. So is `settle`, when all is applied that the log has now, and nothing else."""
        loop = asyncio.get_running_loop()
        self._adopt, self._settle, self._begun_end = adopt, settle, self._log.end_offset
        self.position = await loop.run_in_executor(self._thread, self._recover)
        self._task = loop.create_task(self._run(), name="dispatch")

    def advance(self, limit: int) -> None:
        """All before `limit`, where a record ends, may be applied."""
        if limit > self._limit:
            self._limit = limit
            self._more.set()

    async def wait(self, offset: int, timeout_ms: int) -> None:
        """Until all before `offset` is applied. ReadFailed."""
        if self.position >= offset:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, done))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await done
        except TimeoutError:
            text = f"dispatched up to {self.position}, not to {offset}, after {timeout_ms} ms"
            raise ReadFailed(text, code=Code.READ_NOT_CONFIRMED) from None
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not done]

    async def run(self, work: Callable[[], None]) -> None:
        """On the machine's thread, between two pieces."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def stop(self) -> None:
        """When it returns nothing is applied any more, and the machine is closed unless it has failed."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(ReadFailed("the broker is stopping", code=Code.READ_NOT_CONFIRMED))
        if not self.is_failed:
            await self.run(self._machine.close)

    # -- inside

    def _recover(self) -> int:
        log, found = self._log, self._machine.recover()
        if found is not None and log.begin_offset <= found.end_pos <= log.end_offset:
            self._adopt(False)
            return self._reached(found.end_pos)
        return self._reached(self._begin_anew())

    def _reached(self, position: int) -> int:
        if self._settle is not None and position >= self._begun_end:
            self._settle()
            self._settle = None
        return position

    def _begin_anew(self) -> int:
        self._machine.begin_anew(self._log.begin_offset)
        self._adopt(True)
        return self._log.begin_offset

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                while self.position < self._limit:
                    work = loop.run_in_executor(self._thread, self._apply, self.position, self._limit)
                    try:
                        self.position = await asyncio.shield(work)
                    except asyncio.CancelledError:
                        await asyncio.wait([work])
                        raise
                    self._tell()
        except Exception as error:
            self.is_failed = True
            self._on_failure(error)

    def _apply(self, begin: int, limit: int) -> int:
        """Where the next piece begins."""
        log = self._log
        if begin < log.begin_offset:  # an empty slave begins where its master does
            return self._begin_anew()
        if self._settle is not None:
            limit = min(limit, self._begun_end)
        most = min(_PIECE_BYTES, limit - begin)
        data = log.read(begin, most)
        whole = whole_records(data, begin, log.file_size)
        if not whole and data:
            data = log.read(begin, size_at(log, begin))
            whole = whole_records(data, begin, log.file_size)
        if not whole:
            raise ReadFailed(f"nothing whole is at {begin} of the log", code=Code.DATA_DAMAGED)
        self._machine.apply(RecordRun(RecordPiece(begin, data[:whole])))
        return self._reached(begin + whole)

    def _tell(self) -> None:
        for offset, done in self._waiting:
            if offset <= self.position and not done.done():
                done.set_result(None)
