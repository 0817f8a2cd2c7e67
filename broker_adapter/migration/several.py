"""Runs calls concurrently, up to a limit, and calls that a cancellation must not interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_CONCURRENT = 16


async def each(works: Iterable[Awaitable[T]]) -> list[T]:
    """Run `works` concurrently and return their results in order. The first error cancels the others."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def limited(work: Awaitable[T]) -> T:
        async with slots:
            return await work

    tasks = [asyncio.ensure_future(limited(work)) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result, even if the caller is cancelled in the meantime.

    `asyncio.shield` would return to a cancelled caller at once, and the caller may then close what `work`
    needs. The caller of this function must raise the cancellation again.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()
