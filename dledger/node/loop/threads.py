"""Work on a thread that nobody waits for: a disk may not answer, and a process must end all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

T = TypeVar("T")


class InThread(Protocol):
    """What `in_thread` is."""

    async def __call__(self, work: Callable[[], T], name: str) -> T: ...


async def in_thread(work: Callable[[], T], name: str) -> T:
    """What `work` returns or raises. It goes on if this is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


async def finished(work: Callable[[], bool], within_s: float) -> bool:
    """Whether `work` was done in time and says so itself. Also in a task that was cancelled before."""
    working = asyncio.ensure_future(in_thread(work, "release"))
    await asyncio.wait([working], timeout=within_s)
    if working.done():
        return working.result()
    working.cancel()
    return False
