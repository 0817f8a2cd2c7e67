"""Group commit: complete appends when they are durable, and report whether a slave has them.

SYNC_FLUSH needs no timer: the records that arrive during a sync form the next group, and a single append does
not wait for others. Each sync costs one handover to the disk thread and one wake-up of the event loop, which
completes all appends that the sync covers. An append that a slave has acknowledged by then is complete, too.
ASYNC_FLUSH completes appends immediately and syncs like RocketMQ's FlushRealTimeService. As in RocketMQ, an
append that is not durable in time ends with FLUSH_DISK_TIMEOUT. Producers treat that as sent, because the
message may still become durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import BrokerError, Status, error_for
from dledger import AppendOutcome, Code, Indeterminate
from dledger.metrics import NodeMetrics

_PAGE = 4096


@dataclass(slots=True)
class ClassicOutcome(AppendOutcome):
    """Outcome of a stored append.

    `put_status`: put status if the append was not durable in time. `copied`: future with the put status of
    the replication to a slave. It fails with Indeterminate if the broker stops first.
    """

    put_status: Status | None = None
    copied: asyncio.Future[Status | None] | None = None


class FlushedFiles(Protocol):
    """The part of `CommitLogFiles` that group commit needs."""

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    def flush(self) -> int: ...


class AsyncRule(NamedTuple):
    """Schedule of ASYNC_FLUSH.

    The fields correspond to RocketMQ's flushIntervalCommitLog, flushCommitLogLeastPages (of 4 KiB) and
    flushCommitLogThoroughInterval.
    """

    interval_s: float = 0.5
    least_pages: int = 4
    thorough_s: float = 10.0

    def is_due(self, flushed: int, end: int, waited_s: float) -> bool:
        """True if enough pages are dirty, or if there is dirty data and the last sync was `thorough_s` ago.

        `waited_s`: seconds since the last sync.
        """
        if waited_s >= self.thorough_s:
            return end > flushed
        return end // _PAGE - flushed // _PAGE >= self.least_pages


def async_rule(settings: ClassicSettings) -> AsyncRule | None:
    """Return the schedule, or None for SYNC_FLUSH."""
    if settings.flush == "SYNC_FLUSH":
        return None
    return AsyncRule(
        settings.flush_interval_ms / 1000,
        settings.flush_least_pages,
        settings.flush_thorough_interval_ms / 1000,
    )


class _PendingAppend:
    __slots__ = ("copied", "deadline", "end", "future", "outcome", "size", "started", "timer")

    def __init__(
        self, begin: int, end: int, outcome: ClassicOutcome, started: float, deadline: float
    ) -> None:
        loop = asyncio.get_running_loop()
        self.end = end
        self.size = end - begin
        self.outcome = outcome
        self.started = started
        self.deadline = deadline
        self.future: asyncio.Future[AppendOutcome] = loop.create_future()
        self.copied: asyncio.Future[Status | None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def complete(self, outcome: ClassicOutcome) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result(outcome)

    def on_deadline(self) -> None:
        self.complete(replace(self.outcome, put_status=Status.FLUSH_DISK_TIMEOUT))


class GroupCommit:
    """Completes appends. Runs on the event loop, and flushes on the single thread `thread`."""

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
        """Create a group commit.

        `rule`: the schedule on which appends are synced after they complete immediately; None: appends
        complete when they are durable. `on_flushed`: called after each sync. `on_failure`: called after a
        disk error. `now`: returns seconds.
        """
        self.pending_bytes = 0
        self._log = log
        self._thread = thread
        self._metrics = metrics
        self._rule = rule
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._now = now
        self._waiting: deque[_PendingAppend] = deque()
        self._copying: set[_PendingAppend] = set()  # durable here, not acknowledged by a slave
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sync: asyncio.Future[int] | None = None
        self._is_running = False
        # Returns the put status once a slave has acknowledged an offset, with a timeout in ms. None: sends do
        # not wait for slaves.
        self.acknowledged: Callable[[int, int], asyncio.Future[Status | None]] | None = None
        self.syncing_since: float | None = None

    def start(self) -> None:
        self._is_running = True
        if self._rule is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._rule), name="flush")
        self.grown()

    async def stop(self) -> None:
        """Stop the group commit. Pending appends fail with Indeterminate."""
        self._is_running = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for append in list(self._copying):
            if append.copied is not None and not append.copied.done():
                append.copied.set_exception(_stopping())
                append.copied.exception()  # retrieve it, because there may be no waiter
            self._on_copied(append)
        while self._waiting:
            self._fail(self._waiting.popleft())

    def appended(
        self, begin: int, end: int, outcome: ClassicOutcome, timeout_ms: int
    ) -> asyncio.Future[AppendOutcome]:
        """Register an append that was written to this range of the log. Return its future outcome."""
        loop = asyncio.get_running_loop()
        append = _PendingAppend(begin, end, outcome, self._now(), loop.time() + timeout_ms / 1000)
        self.pending_bytes += append.size
        append.future.add_done_callback(lambda _: self._on_completed(append))
        if self._rule is None:
            append.timer = loop.call_later(timeout_ms / 1000, append.on_deadline)
            self._waiting.append(append)
        else:
            self._durable(append)
        self.grown()
        return append.future

    @property
    def oldest_ms(self) -> int:
        """Time in ms that the oldest pending append has been waiting for the disk, even after its timeout.

        0 if no append is waiting, which is always the case with ASYNC_FLUSH.
        """
        return int(1000 * (self._now() - self._waiting[0].started)) if self._waiting else 0

    def grown(self) -> None:
        """Sync the log soon, because it has new data."""
        if self._rule is not None:
            self._more.set()
        elif self._is_running and self._sync is None and self._log.flushed_offset < self._log.end_offset:
            self._sync = self._start_sync()
            self._sync.add_done_callback(partial(self._on_synced, self._now()))

    # -- internals

    def _on_completed(self, append: _PendingAppend) -> None:
        if append.copied is None:
            has_failed = append.future.cancelled() or append.future.exception() is not None
            self._finish(append, has_failed=has_failed)

    def _finish(self, append: _PendingAppend, *, has_failed: bool) -> None:
        """Subtract an ended append from `pending_bytes`. Record its latency unless it has failed."""
        self.pending_bytes -= append.size
        if not has_failed:
            self._metrics.append_latency.observe(self._now() - append.started)

    def _start_sync(self) -> asyncio.Future[int]:
        self.syncing_since = self._now()
        return asyncio.get_running_loop().run_in_executor(self._thread, self._log.flush)

    def _on_synced(self, started: float, sync: asyncio.Future[int]) -> None:
        """Complete the appends that a sync covers, and sync those that were written meanwhile."""
        self._sync = None
        if not self._is_running:
            return
        error = asyncio.CancelledError() if sync.cancelled() else sync.exception()
        if error is None:
            try:
                self._flushed(started)
            except Exception as unexpected:  # a bug; appends must not wait for their timeouts one by one
                error = unexpected
        if error is None:
            self.grown()
        else:
            self._failed(error)

    async def _run(self, rule: AsyncRule) -> None:
        loop, log = asyncio.get_running_loop(), self._log
        flushed_s = loop.time()
        try:
            while True:
                await self._more.wait()
                await asyncio.sleep(rule.interval_s)
                if not rule.is_due(log.flushed_offset, log.end_offset, loop.time() - flushed_s):
                    continue
                self._more.clear()
                if log.flushed_offset < log.end_offset:
                    started = self._now()
                    await self._start_sync()
                    self._flushed(started)
                flushed_s = loop.time()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """End the group commit after an error. No further append is synced."""
        self._is_running = False
        if not isinstance(error, BrokerError):
            text = f"flush of the CommitLog: {type(error).__name__}: {error}"
            error = error_for(Status.LOG_FAILED, text)
        self._on_failure(error)

    def _flushed(self, started: float) -> None:
        self.syncing_since = None
        self._metrics.fsync_latency.observe(self._now() - started)
        flushed = self._log.flushed_offset
        while self._waiting and self._waiting[0].end <= flushed:
            self._durable(self._waiting.popleft())
        self._on_flushed()

    def _durable(self, append: _PendingAppend) -> None:
        if self.acknowledged is None or append.future.done():
            append.complete(append.outcome)
            return
        remaining_ms = round(1000 * (append.deadline - asyncio.get_running_loop().time()))
        copied = self.acknowledged(append.end, max(1, remaining_ms))
        if not copied.done() or copied.result() is not None:
            append.copied = append.outcome.copied = copied
            self._copying.add(append)
            copied.add_done_callback(lambda _: self._on_copied(append))
        append.complete(append.outcome)

    def _on_copied(self, append: _PendingAppend) -> None:
        """Finish an append whose `copied` is complete."""
        if append in self._copying and append.copied is not None:
            self._copying.remove(append)
            has_failed = append.copied.cancelled() or append.copied.exception() is not None
            self._finish(append, has_failed=has_failed)

    def _fail(self, append: _PendingAppend) -> None:
        if append.timer is not None:
            append.timer.cancel()
        if not append.future.done():
            append.future.set_exception(_stopping())


def _stopping() -> Indeterminate:
    return Indeterminate("the broker is stopping", code=Code.INTERNAL_ERROR)
