"""State shared by all hostile clients: targets, pace, and counts of their effects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import grpc.aio

from chaos.hostile.orders import HostileOrders

#: Errors that a server causes in hostile clients; they are counted and end nothing.
_REBUFFS = (OSError, EOFError, TimeoutError, grpc.aio.AioRpcError)
#: Pause after such an error, so that a port that refuses does not cause a busy loop.
_PAUSE_S = 0.05


class HostileWorld:
    """Environment of hostile clients. `counts`: effects by name. A value whose name ends in `_most` is a
    maximum."""

    def __init__(self, orders: HostileOrders) -> None:
        self.orders = orders
        self.rng = Random(orders.seed)
        self.counts: Counter[str] = Counter()

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] += by

    def count_most(self, name: str, now: int) -> None:
        self.counts[f"{name}_most"] = max(self.counts[f"{name}_most"], now)

    def refused(self, number: int | str) -> None:
        self.count("refused")
        self.count(f"refused.{number}")

    async def pace(self) -> None:
        """Wait before the next operation of a client."""
        rate = self.orders.rate / self.orders.clients
        await asyncio.sleep(self.rng.expovariate(rate) if rate else 0)

    async def repeat(self, once: Callable[[int], Awaitable[None]]) -> None:
        """Run `once(number)` for each client in a loop until cancelled. Errors caused by servers are
        counted."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.orders.clients):
                tasks.create_task(self._repeat(number, once))

    async def _repeat(self, number: int, once: Callable[[int], Awaitable[None]]) -> None:
        while True:
            await self.pace()
            try:
                await once(number)
            except grpc.aio.AioRpcError as error:
                self.count(f"grpc.{error.code().name}")
                await asyncio.sleep(_PAUSE_S)
            except _REBUFFS as error:
                self.count(f"error.{type(error).__name__}")
                await asyncio.sleep(_PAUSE_S)
