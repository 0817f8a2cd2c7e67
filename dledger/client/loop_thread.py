"""An event loop in a thread, for blocking faces of clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str = "dledger-client") -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)  # a follow() of another thread, that must not wait for ever
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call `function` in the loop, soon. Raises RuntimeError when the client is closed."""
        with self._lock:  # or the call could get behind the stop, and its caller wait for ever
            if self._stopped:
                raise RuntimeError("the client is closed")
            self.loop.call_soon_threadsafe(function, *arguments)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` in the loop. Raises RuntimeError when the client is closed."""
        with self._lock:
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise RuntimeError("the client is closed")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and wait for it. An interrupt of the waiting thread cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside the client's own event loop would wait for itself")
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
