"""Answers of appends: once a record is durable; and whether a slave has it, for those who promise that.

SYNC_FLUSH is self-clocked: what is appended while the disk syncs is synced by the next one, so groups need no
timer and a lone append does not wait for company. ASYNC_FLUSH answers at once and syncs as RocketMQ's
FlushRealTimeService does. RocketMQ's deadline counts from the append and ends with FLUSH_DISK_TIMEOUT, which
producers count as sent: the message may be durable later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple, Protocol

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import BrokerError, Status, error_for
from dledger import AppendOutcome, Code, Indeterminate
from dledger.platform import NodeMetrics

_PAGE = 4096


@dataclass(slots=True)
class ClassicOutcome(AppendOutcome):
    """`shortfall`: what could not be done in time, though the records are in the log. `copied`: the same of a
    slave, which is still waited for; Indeterminate if the broker stops before."""

    shortfall: Status | None = None
    copied: asyncio.Future[Status | None] | None = None


class FlushedFiles(Protocol):
    """What of `CommitLogFiles` group commit needs."""

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    def flush(self) -> int: ...


class AsyncRule(NamedTuple):
    """When ASYNC_FLUSH syncs: RocketMQ's flushIntervalCommitLog, flushCommitLogLeastPages (of 4 KiB) and
    flushCommitLogThoroughInterval."""

    interval_s: float = 0.5
    least_pages: int = 4
    thorough_s: float = 10.0

    def is_due(self, flushed: int, end: int, waited_s: float) -> bool:
        """Whether enough is dirty, or it has waited for long enough since the sync before (seconds)."""
        if waited_s >= self.thorough_s:
            return end > flushed
        return end // _PAGE - flushed // _PAGE >= self.least_pages


def async_rule(settings: ClassicSettings) -> AsyncRule | None:
    """None: SYNC_FLUSH."""
    if settings.flush == "SYNC_FLUSH":
        return None
    return AsyncRule(
        settings.flush_interval_ms / 1000,
        settings.flush_least_pages,
        settings.flush_thorough_interval_ms / 1000,
    )


class _Append:
    __slots__ = ("begun", "copied", "deadline", "end", "future", "outcome", "size", "timer")

    def __init__(self, begin: int, end: int, outcome: ClassicOutcome, begun: float, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self.end = end
        self.size = end - begin
        self.outcome = outcome
        self.begun = begun
        self.deadline = deadline
        self.future: asyncio.Future[AppendOutcome] = loop.create_future()
        self.copied: asyncio.Future[Status | None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, outcome: ClassicOutcome) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result(outcome)

    def is_late(self) -> None:
        self.answer(replace(self.outcome, shortfall=Status.FLUSH_DISK_TIMEOUT))


class GroupCommit:
    """On the event loop; `thread` has one thread, which waits for the disk."""

    def __init__(
        self,
        log: FlushedFiles,
        thread: Executor,
        metrics: NodeMetrics,
        *,
        rule: AsyncRule | None,
        on_flushed: Callable[[], None],
        on_failure: Callable[[BrokerError], None],
        now: Callable[[], float] = perf_counter,
    ) -> None:
        """`rule`: appends are answered at once, and synced by it; None: they are answered when they are
        durable. `on_flushed`: told whenever more is durable. `on_failure`: the disk has failed. `now`: s."""
        self.pending_bytes = 0
        self._log = log
        self._thread = thread
        self._metrics = metrics
        self._rule = rule
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._now = now
        self._waiting: deque[_Append] = deque()
        self._acks: dict[asyncio.Task[None], _Append] = {}
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Until a slave has all before an offset, within ms: what is short; None: nobody waits for slaves.
        self.acknowledged: Callable[[int, int], Awaitable[Status | None]] | None = None
        self.syncing_since: float | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="flush")

    async def stop(self) -> None:
        """Whoever waits is left in doubt."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in self._acks:
            task.cancel()
        await asyncio.gather(*self._acks, return_exceptions=True)
        while self._waiting:
            self._doubt(self._waiting.popleft())

    def appended(
        self, begin: int, end: int, outcome: ClassicOutcome, timeout_ms: int
    ) -> asyncio.Future[AppendOutcome]:
        """Records from `begin` to `end` are in the log."""
        loop = asyncio.get_running_loop()
        one = _Append(begin, end, outcome, self._now(), loop.time() + timeout_ms / 1000)
        self.pending_bytes += one.size
        one.future.add_done_callback(lambda _: self._answered(one))
        if self._rule is None:
            one.timer = loop.call_later(timeout_ms / 1000, one.is_late)
            self._waiting.append(one)
        else:
            self._durable(one)
        self.grown()
        return one.future

    @property
    def oldest_ms(self) -> int:
        """How long the oldest append has waited for the disk, though it may have been answered that it is
        late; 0: none waits, as always with ASYNC_FLUSH."""
        return int(1000 * (self._now() - self._waiting[0].begun)) if self._waiting else 0

    def grown(self) -> None:
        """There is something to sync."""
        self._more.set()

    # -- inside

    def _answered(self, one: _Append) -> None:
        if one.copied is None:
            has_failed = one.future.cancelled() or one.future.exception() is not None
            self._is_over(one, has_failed=has_failed)

    def _is_over(self, one: _Append, *, has_failed: bool) -> None:
        """Nobody waits for anything of it any more."""
        self.pending_bytes -= one.size
        if not has_failed:
            self._metrics.append_latency.observe(self._now() - one.begun)

    async def _run(self) -> None:
        loop, log, rule = asyncio.get_running_loop(), self._log, self._rule
        flushed_s = loop.time()
        try:
            while True:
                await self._more.wait()
                if rule is not None:
                    await asyncio.sleep(rule.interval_s)
                    if not rule.is_due(log.flushed_offset, log.end_offset, loop.time() - flushed_s):
                        continue
                self._more.clear()
                if log.flushed_offset < log.end_offset:
                    await self._flush()
                flushed_s = loop.time()
        except BrokerError as error:
            self._on_failure(error)
        except Exception as error:  # nobody would sync any more, and nobody would know
            text = f"flush of the CommitLog: {type(error).__name__}: {error}"
            self._on_failure(error_for(Status.LOG_FAILED, text))

    async def _flush(self) -> None:
        begun = self.syncing_since = self._now()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._log.flush)
        self.syncing_since = None
        self._metrics.fsync_latency.observe(self._now() - begun)
        self._flushed()

    def _flushed(self) -> None:
        flushed = self._log.flushed_offset
        while self._waiting and self._waiting[0].end <= flushed:
            self._durable(self._waiting.popleft())
        self._on_flushed()

    def _durable(self, one: _Append) -> None:
        if self.acknowledged is None or one.future.done():
            one.answer(one.outcome)
            return
        loop = asyncio.get_running_loop()
        one.copied = copied = loop.create_future()
        task = loop.create_task(self._wait_for_slave(one, copied, self.acknowledged))
        self._acks[task] = one
        task.add_done_callback(self._no_slave_answers)
        one.answer(replace(one.outcome, copied=copied))

    async def _wait_for_slave(
        self,
        one: _Append,
        copied: asyncio.Future[Status | None],
        acknowledged: Callable[[int, int], Awaitable[Status | None]],
    ) -> None:
        left_ms = round(1000 * (one.deadline - asyncio.get_running_loop().time()))
        copied.set_result(await acknowledged(one.end, max(1, left_ms)))
        self._is_over(one, has_failed=False)

    def _no_slave_answers(self, task: asyncio.Task[None]) -> None:
        """It was cancelled, perhaps before it began, unless a slave has answered."""
        one = self._acks.pop(task)
        if one.copied is not None and not one.copied.done():
            one.copied.set_exception(_stopping())
            one.copied.exception()  # nobody may wait for it
            self._is_over(one, has_failed=True)

    def _doubt(self, one: _Append) -> None:
        if one.timer is not None:
            one.timer.cancel()
        if not one.future.done():
            one.future.set_exception(_stopping())


def _stopping() -> Indeterminate:
    return Indeterminate("the broker is stopping", code=Code.INTERNAL_ERROR)
