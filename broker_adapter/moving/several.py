"""Many calls, some of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 16


async def each(works: Iterable[Awaitable[T]]) -> list[T]:
    """What they give, in their order. The first error ends the others."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Awaitable[T]) -> T:
        async with turn:
            return await work

    tasks = [asyncio.ensure_future(one(work)) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
