"""An event loop in a thread, which the blocking clients use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self, name: str = "dledger-client") -> None:
        self.loop = asyncio.new_event_loop()
        self._ended: asyncio.Future[None] = self.loop.create_future()
        self._lock = threading.Lock()
        self._stopped = False
        self._grace_s = 0.0
        self._calls: set[asyncio.Task[Any]] = set()  # in progress
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._run_until_stopped()
            calls = tuple(self._calls)  # they may end, and leave the set, before the wait begins
            if self._grace_s and calls:
                self.loop.run_until_complete(asyncio.wait(calls, timeout=self._grace_s))
            tasks = asyncio.all_tasks(self.loop)  # a follow() of another thread, which must not wait forever
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def _run_until_stopped(self) -> None:
        while not self._ended.done():
            try:
                self.loop.run_until_complete(self._ended)
            except (SystemExit, KeyboardInterrupt) as error:
                # Raised by a callback of the program. Without the loop, all other callers would wait forever.
                text = f"a callback in the thread of a client raised {type(error).__name__}"
                self.loop.call_exception_handler({"message": text, "exception": error})

    @property
    def is_current(self) -> bool:
        """True in the thread of the loop, which must not wait for the loop."""
        return threading.current_thread() is self._thread

    def check_caller(self) -> None:
        """Raise RuntimeError in the thread of the loop, for example in a callback of a future."""
        if self.is_current:
            raise RuntimeError("a blocking call from the client's own event loop would deadlock")

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a call of `function` in the loop. Raises RuntimeError if the client is closed."""
        # otherwise a call could be queued after the stop, and its caller would wait forever
        with self._lock:
            if self._stopped:
                raise RuntimeError("the client is closed")
            self.loop.call_soon_threadsafe(function, *arguments)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` in the loop. Raises RuntimeError if the client is closed."""
        with self._lock:
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(self._called(work), self.loop)
        work.close()
        raise RuntimeError("the client is closed")

    async def _called(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await work
        finally:
            self._calls.discard(task)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and wait for it. Interrupting the waiting thread cancels it."""
        try:
            self.check_caller()
        except RuntimeError:
            work.close()
            raise
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, grace_s: float = 0.0) -> None:
        """Stop the loop and wait for the thread. Calls in progress have `grace_s` seconds to end, and are
        cancelled after that."""
        self.check_caller()
        with self._lock:
            if self._stopped:
                return
            self._stopped, self._grace_s = True, grace_s
            self.loop.call_soon_threadsafe(self._ended.set_result, None)
        self._thread.join()
