"""Large requests: bounded in bytes, and one of them in a turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter.errors import Busy, Status
from broker_adapter.rpc.calls import LargeRequests, Turns


async def test_those_above_the_limit_are_refused_and_one_alone_never_is() -> None:
    requests = LargeRequests(10)
    async with requests.taking(6), requests.taking(4):
        with pytest.raises(Busy) as refused:
            async with requests.taking(1):
                raise AssertionError("there was room")
        assert refused.value.status is Status.TOO_MANY_PENDING_BYTES
    async with requests.taking(100):
        pass
    async with requests.taking(10):
        pass


async def test_other_work_of_the_loop_comes_between_two_of_them() -> None:
    """A timer that is due, such as that of a heartbeat, waits for one of them at most."""
    turns, done, loop = Turns(), list[str](), asyncio.get_running_loop()

    async def work() -> None:
        await turns.wait()
        done.append("large")
        loop.call_soon(done.append, "other")

    await asyncio.gather(*[work() for _ in range(5)])
    await asyncio.sleep(0)
    assert done == ["large", "other"] * 5
