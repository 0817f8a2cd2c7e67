"""Group commit: who is answered when, and what becomes of a disk that fails or hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from broker_adapter.classic.flushing import AsyncFlush, FlushAck, FlushOptions, SyncFlush, make_flusher
from broker_adapter.errors import BrokerError, Status, error_for
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.classic.log_helpers import opened, put


class SlowLog:
    """A log whose flushes end when the test lets them."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.flushed_offset = 0
        self.flushes = 0
        self.may_go = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.failure: Exception | None = None

    def flush(self) -> int:
        end = self.end_offset
        self.begun.release()
        self.may_go.acquire()
        if self.failure is not None:
            raise self.failure
        self.flushes += 1
        self.flushed_offset = end
        return end


async def begun(log: SlowLog) -> None:
    await asyncio.to_thread(log.begun.acquire)


async def test_a_group_is_what_was_appended_while_the_one_before_was_synced() -> None:
    log = SlowLog()
    grown: list[int] = []
    flush = SyncFlush(log, FlushOptions(), on_flushed=lambda: grown.append(log.flushed_offset))
    flush.start()
    log.end_offset = 100
    first = flush.flushed(100)
    await begun(log)
    rest = []
    for end in (200, 300, 400):
        log.end_offset = end
        rest.append(flush.flushed(end))
    log.may_go.release()
    assert await first is FlushAck.PUT_OK
    assert not any(future.done() for future in rest)
    await begun(log)
    log.may_go.release()
    assert await asyncio.gather(*rest) == [FlushAck.PUT_OK] * 3
    assert log.flushes == 2 and grown == [100, 400]
    assert flush.flushed(400).done()
    log.may_go.release(2)
    await flush.stop()
    await flush.stop()


async def test_what_nobody_waits_for_becomes_durable_too() -> None:
    log = SlowLog()
    is_flushed = asyncio.Event()
    flush = SyncFlush(log, FlushOptions(), on_flushed=is_flushed.set)
    flush.start()
    log.end_offset = 10
    flush.appended()
    log.may_go.release()
    await is_flushed.wait()
    assert log.flushed_offset == 10
    log.may_go.release()
    await flush.stop()


async def test_a_disk_that_hangs_ends_waiting_and_the_message_may_be_stored_later() -> None:
    log = SlowLog()
    flush = SyncFlush(log, FlushOptions(timeout_ms=20))
    flush.start()
    log.end_offset = 10
    waiters = [flush.flushed(10), flush.flushed(10)]
    assert await asyncio.gather(*waiters) == [FlushAck.FLUSH_DISK_TIMEOUT] * 2
    log.may_go.release(3)
    await flush.stop()
    assert log.flushed_offset == 10


async def test_each_waiter_has_its_own_deadline() -> None:
    log = SlowLog()
    flush = SyncFlush(log, FlushOptions(timeout_ms=30))
    flush.start()
    log.end_offset = 10
    first = flush.flushed(10)
    await begun(log)
    log.may_go.release()
    assert await first is FlushAck.PUT_OK
    log.end_offset = 20
    second = flush.flushed(20)
    assert await second is FlushAck.FLUSH_DISK_TIMEOUT
    log.may_go.release(3)
    await flush.stop()


async def test_a_cancelled_waiter_is_forgotten() -> None:
    log = SlowLog()
    flush = SyncFlush(log, FlushOptions())
    flush.start()
    log.end_offset = 10
    gone, stays = flush.flushed(10), flush.flushed(10)
    gone.cancel()
    log.may_go.release(3)
    assert await stays is FlushAck.PUT_OK
    await flush.stop()


@pytest.mark.parametrize(
    "failure", [error_for(Status.LOG_FAILED, "fdatasync"), RuntimeError("a bug"), OSError(5, "x")]
)
@pytest.mark.parametrize("is_sync", [True, False])
async def test_a_failed_flush_is_fatal_and_answers_nobody(failure: Exception, is_sync: bool) -> None:
    log = SlowLog()
    fatal: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
    flush = make_flusher(log, FlushOptions(is_sync, interval_ms=1, least_pages=0), on_fatal=fatal.set_result)
    flush.start()
    log.failure = failure
    log.end_offset = 10
    waiter = flush.flushed(10) if is_sync else None
    log.may_go.release(3)
    assert (await fatal).status is Status.LOG_FAILED
    for future in (waiter, flush.flushed(10)):
        if future is not None:
            with pytest.raises(BrokerError) as caught:
                await future
            assert caught.value.status is Status.LOG_FAILED
    await flush.stop()


async def test_a_stop_flushes_what_is_there() -> None:
    disk = SimDisk()
    for is_sync in (True, False):
        log = opened(disk)
        flush = make_flusher(log, FlushOptions(is_sync, interval_ms=60_000))
        flush.start()
        put(log, b"x")
        waiter = flush.flushed(log.end_offset)
        await flush.stop()
        assert log.flushed_offset == log.end_offset
        assert await waiter is FlushAck.PUT_OK
        assert flush.flushed(log.end_offset).done()
        log.close()


async def test_a_stop_before_the_start_ends() -> None:
    flush = make_flusher(SlowLog(), FlushOptions())
    await flush.stop()
    assert await flush.flushed(5) is FlushAck.FLUSH_DISK_TIMEOUT


async def test_async_flush_answers_at_once() -> None:
    log = SlowLog()
    flush = make_flusher(log, FlushOptions(is_sync=False))
    log.end_offset = 10
    assert flush.flushed(10).result() is FlushAck.PUT_OK
    assert log.flushes == 0


@pytest.mark.parametrize(
    ("flushed", "end", "passed_s", "is_due"),
    [
        (0, 0, 0, False),
        (0, 4 * 4096 - 1, 9, False),
        (0, 4 * 4096, 0, True),
        (4095, 4 * 4096, 0, True),
        (4096, 4 * 4096, 0, False),
        (0, 1, 9.9, False),
        (0, 1, 10, True),
        (7, 7, 10, False),
    ],
)
def test_async_flush_waits_for_pages_or_for_the_thorough_interval(
    flushed: int, end: int, passed_s: float, is_due: bool
) -> None:
    log = SlowLog()
    now = [100.0]
    flush = AsyncFlush(log, FlushOptions(is_sync=False), now_s=lambda: now[0])
    log.flushed_offset, log.end_offset = flushed, end
    now[0] += passed_s
    assert flush.is_due() is is_due


def test_the_thorough_interval_begins_anew() -> None:
    log = SlowLog()
    now = [100.0]
    flush = AsyncFlush(log, FlushOptions(is_sync=False), now_s=lambda: now[0])
    log.end_offset = 1
    now[0] += 10
    assert flush.is_due() and not flush.is_due()
