"""When appended records become durable, and who waits for that.

`SyncFlush` is RocketMQ's SYNC_FLUSH: a message is answered after the fdatasync that covers it. One thread
syncs; what is appended while it does belongs to the next group, so groups need no timer and a lone append
does not wait for company. `AsyncFlush` is ASYNC_FLUSH: a message is answered at once, and the thread syncs
every 500 ms if four pages are dirty, and every 10 s whatever there is.

Facts: GroupCommitService and FlushRealTimeService of RocketMQ 5.5. RocketMQ's deadline counts from the append
and ends with FLUSH_DISK_TIMEOUT, which producers count as sent; the message may be durable later.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import NamedTuple, Protocol

from broker_adapter.errors import BrokerError, Status, error_for

_PAGE = 4096


class FlushAck(Enum):
    """What a producer is told of the disk."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"


class FlushOptions(NamedTuple):
    """RocketMQ's flushDiskType (`is_sync`), syncFlushTimeout, flushIntervalCommitLog,
    flushCommitLogLeastPages and flushCommitLogThoroughInterval. Durations in ms."""

    is_sync: bool = True
    timeout_ms: int = 5_000
    interval_ms: int = 500
    least_pages: int = 4
    thorough_interval_ms: int = 10_000


class FlushedLog(Protocol):
    """As much of `CommitLogFiles` as flushing needs."""

    @property
    def end_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    def flush(self) -> int: ...


class Flusher(Protocol):
    """On the event loop, but for what runs on the thread inside."""

    def start(self) -> None: ...

    def appended(self) -> None:
        """The log has grown."""

    def flushed(self, offset: int) -> asyncio.Future[FlushAck]:
        """Done when the log is as durable up to `offset` (the end of a record) as it is promised to be; fails
        with LOG_FAILED when it never will be."""

    async def stop(self) -> None:
        """After a last flush. Whoever waits still gets FLUSH_DISK_TIMEOUT. Repeatable."""


def make_flusher(
    log: FlushedLog,
    options: FlushOptions,
    *,
    on_flushed: Callable[[], None] = lambda: None,
    on_fatal: Callable[[BrokerError], None] = lambda error: None,
) -> Flusher:
    """`on_flushed` is called on the event loop when `flushed_offset` has grown, `on_fatal` when it never will
    again: nothing that waits is answered, and the broker has to stop."""
    kind = SyncFlush if options.is_sync else AsyncFlush
    return kind(log, options, on_flushed=on_flushed, on_fatal=on_fatal)


class _FlushThread:
    """One thread that flushes when it is asked to, and hands over to the event loop."""

    def __init__(
        self,
        log: FlushedLog,
        options: FlushOptions,
        *,
        on_flushed: Callable[[], None],
        on_fatal: Callable[[BrokerError], None],
    ) -> None:
        self._log = log
        self._options = options
        self._on_flushed = on_flushed
        self._on_fatal = on_fatal
        self._failure: BrokerError | None = None
        self._wanted = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon: a process that ends never waits for a thread that is stuck in the kernel.
        self._thread = threading.Thread(target=self._run, name="commitlog-flush", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        self._stopped()

    def _run(self) -> None:
        while True:
            self._wait()
            self._wanted.clear()
            is_last = self._stopping
            if not self._flush() or is_last:
                return

    def _wait(self) -> None:
        self._wanted.wait()

    def _flush(self) -> bool:
        """False: never again."""
        try:
            self._log.flush()
        except BrokerError as error:
            self._hand_over(self._failed, error)
            return False
        except Exception as error:  # nobody knows what is durable
            text = f"flush of the CommitLog: {type(error).__name__}: {error}"
            self._hand_over(self._failed, error_for(Status.LOG_FAILED, text))
            return False
        self._hand_over(self._grown)
        return True

    def _hand_over(self, call: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            self._stopping = True  # the loop is closed: nobody waits any more

    # -- on the event loop

    def _grown(self) -> None:
        self._on_flushed()

    def _failed(self, error: BrokerError) -> None:
        self._failure = error
        self._on_fatal(error)

    def _stopped(self) -> None:
        """The thread has ended."""


class _Waiter(NamedTuple):
    offset: int
    deadline_s: float
    future: asyncio.Future[FlushAck]


class SyncFlush(_FlushThread):
    """See the module."""

    def __init__(
        self,
        log: FlushedLog,
        options: FlushOptions,
        *,
        on_flushed: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BrokerError], None] = lambda error: None,
    ) -> None:
        super().__init__(log, options, on_flushed=on_flushed, on_fatal=on_fatal)
        self._waiters: deque[_Waiter] = deque()  # in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None

    def appended(self) -> None:
        self._wanted.set()  # what nobody waits for becomes durable, too

    def flushed(self, offset: int) -> asyncio.Future[FlushAck]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[FlushAck] = loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
        elif offset <= self._log.flushed_offset:
            future.set_result(FlushAck.PUT_OK)
        elif self._stopping:
            future.set_result(FlushAck.FLUSH_DISK_TIMEOUT)
        else:
            deadline_s = loop.time() + self._options.timeout_ms / 1000
            self._waiters.append(_Waiter(offset, deadline_s, future))
            self._wanted.set()
            if self._timer is None:
                self._timer = loop.call_at(deadline_s, self._time_out)
        return future

    def _grown(self) -> None:
        flushed = self._log.flushed_offset
        self._answer(lambda waiter: FlushAck.PUT_OK if waiter.offset <= flushed else None)
        self._on_flushed()

    def _failed(self, error: BrokerError) -> None:
        self._failure = error
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._waiters.clear()
        self._on_fatal(error)

    def _stopped(self) -> None:
        self._grown()
        self._answer(lambda _: FlushAck.FLUSH_DISK_TIMEOUT)

    def _time_out(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        late = FlushAck.FLUSH_DISK_TIMEOUT
        self._answer(lambda waiter: late if waiter.deadline_s <= now_s else None)

    def _answer(self, judge: Callable[[_Waiter], FlushAck | None]) -> None:
        kept: deque[_Waiter] = deque()
        for waiter in self._waiters:
            if waiter.future.done():  # cancelled
                continue
            ack = judge(waiter)
            if ack is None:
                kept.append(waiter)
            else:
                waiter.future.set_result(ack)
        self._waiters = kept
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if kept:
            self._timer = asyncio.get_running_loop().call_at(kept[0].deadline_s, self._time_out)


class AsyncFlush(_FlushThread):
    """See the module."""

    def __init__(
        self,
        log: FlushedLog,
        options: FlushOptions,
        *,
        on_flushed: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BrokerError], None] = lambda error: None,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(log, options, on_flushed=on_flushed, on_fatal=on_fatal)
        self._now_s = now_s
        self._last_thorough_s = now_s()

    def appended(self) -> None:
        """Nothing: the thread looks at its intervals."""

    def flushed(self, offset: int) -> asyncio.Future[FlushAck]:
        """Done at once: nothing is promised."""
        future: asyncio.Future[FlushAck] = asyncio.get_running_loop().create_future()
        if self._failure is None:
            future.set_result(FlushAck.PUT_OK)
        else:
            future.set_exception(self._failure)
        return future

    def _wait(self) -> None:
        self._wanted.wait(self._options.interval_ms / 1000)

    def _flush(self) -> bool:
        if not self._stopping and not self.is_due():
            return True
        return super()._flush()

    def is_due(self) -> bool:
        """Whether enough is dirty, or the time has come for whatever is."""
        now_s = self._now_s()
        if now_s - self._last_thorough_s >= self._options.thorough_interval_ms / 1000:
            self._last_thorough_s = now_s
            return self._log.end_offset > self._log.flushed_offset
        dirty_pages = self._log.end_offset // _PAGE - self._log.flushed_offset // _PAGE
        return dirty_pages >= self._options.least_pages
