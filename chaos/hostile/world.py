"""What all hostile clients share: their targets, their pace, and the counts of what they have achieved."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import grpc.aio

from chaos.hostile.orders import Orders

#: What servers do to hostile clients, which is counted and ends nothing.
_REBUFFS = (OSError, EOFError, TimeoutError, grpc.aio.AioRpcError)
#: After a rebuff, so that a port that refuses is no busy loop.
_PAUSE_S = 0.05


class World:
    """`counts`: what was achieved, by name; those that end in `_most` are the greatest there was."""

    def __init__(self, orders: Orders) -> None:
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
        """Before each thing that a client begins."""
        rate = self.orders.rate / self.orders.clients
        await asyncio.sleep(self.rng.expovariate(rate) if rate else 0)

    async def repeat(self, once: Callable[[int], Awaitable[None]]) -> None:
        """Each client does `once(its number)` again and again, until this is cancelled. Servers that hang up
        on it or refuse it are counted."""
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
