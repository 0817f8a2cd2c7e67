"""Waiting for what goes on whoever waits."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter.errors import PutIndeterminate, ReadFailed, Status
from broker_adapter.put.sender import wait_for_result


async def test_a_result_that_is_there_or_comes_is_returned() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = [asyncio.create_task(wait_for_result(60_000, done)) for _ in range(2)]
    await asyncio.sleep(0)
    done.set_result(7)
    assert await asyncio.gather(*waiting) == [7, 7]
    assert await wait_for_result(0, done) == 7


async def test_an_error_is_raised() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_exception(ReadFailed(Status.HANDLE_INVALID, "no"))
    with pytest.raises(ReadFailed):
        await wait_for_result(60_000, done)


async def test_after_the_time_nobody_knows_and_the_work_goes_on() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(PutIndeterminate) as unknown:
        await wait_for_result(1, done)
    assert unknown.value.status is Status.OUTCOME_UNKNOWN
    assert not done.cancelled()


async def test_who_gives_up_waiting_does_not_end_the_work() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait_for_result(60_000, done))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not done.cancelled()
