"""Runs work on threads, which client addresses share fairly. Work may outlive its caller, because a disk may
hang while the process has to end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from dledger.infra.quotas import FairQueue

T = TypeVar("T")
P = ParamSpec("P")


class SharedThreads:
    """A bounded number of threads of an executor, which client addresses share (`FairQueue`)."""

    def __init__(self, executor: Executor | None, threads: int) -> None:
        """If `executor` is None, use the executor of the event loop."""
        self.executor = executor
        self._free = FairQueue(threads)

    async def run(self, address: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on a thread for a client at this address, and return its result."""
        await self._free.acquire(address)
        try:
            job = asyncio.get_running_loop().run_in_executor(self.executor, partial(work, *args, **kwargs))
        except BaseException:  # no thread could be started, or the broker has stopped
            self._free.release(address)
            raise
        job.add_done_callback(partial(self._on_done, address))
        # After a cancellation the work stays on its thread, and the slot is released when it ends.
        return await asyncio.shield(job)

    def _on_done(self, address: str, job: asyncio.Future[T]) -> None:
        if not job.cancelled():
            job.exception()  # its caller may have been cancelled
        self._free.release(address)


class ThreadRunner(Protocol):
    """The signature of `in_thread`."""

    async def __call__(self, work: Callable[[], T], name: str) -> T: ...


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Run `work` on a new thread and return its result. The work continues if this call is cancelled."""
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
        with suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


async def finished(work: Callable[[], bool], within_s: float) -> bool:
    """Return True if `work` finished in time and returned True. May be used in a cancelled task."""
    working = asyncio.ensure_future(in_thread(work, "release"))
    await asyncio.wait([working], timeout=within_s)
    if working.done():
        return working.result()
    working.cancel()
    return False
