"""Load pacing: a closed loop, which waits for answers, or an open loop, which sends at a fixed rate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from chaos.workloads.tally import LoadTally

#: Limit per client in an open loop. Operations beyond it are counted as shed: the rate was not reached.
MAX_UNDER_WAY = 256
_PAUSE_S = (0.02, 0.1)


class Pacer:
    """Paces one client. `at_once`: operations in flight (closed loop). `rate`: operations per second (open
    loop); 0 selects the closed loop."""

    def __init__(self, at_once: int, rate: float, rng: Random, tally: LoadTally) -> None:
        self._at_once = at_once
        self._rate = rate
        self._rng = rng
        self._tally = tally

    async def run(self, stop: asyncio.Event, make_step: Callable[[], Callable[[], Awaitable[bool]]]) -> None:
        """Run steps until `stop`, then wait for those in flight.

        `make_step` returns a worker's step, which runs one operation and returns True on success. A worker
        pauses briefly after a failed step.
        """
        if self._rate:
            await self._open(stop, make_step)
        else:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._at_once):
                    group.create_task(self._closed(stop, make_step()))

    async def _closed(self, stop: asyncio.Event, step: Callable[[], Awaitable[bool]]) -> None:
        while not stop.is_set():
            if not await step():
                await asyncio.sleep(self._rng.uniform(*_PAUSE_S))

    async def _open(
        self, stop: asyncio.Event, make_step: Callable[[], Callable[[], Awaitable[bool]]]
    ) -> None:
        loop = asyncio.get_running_loop()
        free: list[Callable[[], Awaitable[bool]]] = []
        under_way: set[asyncio.Task[None]] = set()

        async def run_step(step: Callable[[], Awaitable[bool]]) -> None:
            await step()
            free.append(step)

        due = loop.time()
        while not stop.is_set():
            # After a pause of the machine, send all overdue operations immediately, as independent users
            # would.
            due += self._rng.expovariate(self._rate)
            await asyncio.sleep(max(0.0, due - loop.time()))
            if len(under_way) >= MAX_UNDER_WAY:
                self._tally.shed += 1
                continue
            task = asyncio.create_task(run_step(free.pop() if free else make_step()))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)


async def while_running(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or `stop` is set, which cancels it."""
    doing, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([doing, stopped], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
    finally:
        doing.cancel()
        stopped.cancel()
        await asyncio.gather(doing, stopped, return_exceptions=True)
