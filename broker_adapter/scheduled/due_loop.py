"""A task that runs a function at due times, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from broker_adapter.errors import BrokerError
from dledger import DLedgerError

_log = structlog.get_logger(part="delivery")
# Delay after a failed run (ms).
_RETRY_MS = 1_000
_NEVER_MS = 1 << 62
# Maximum sleep, because cluster time may step forward (seconds).
_LONGEST_S = 1.0


class DueLoop:
    """Runs a function at due times. Call `start` and `stop` on the event loop, any number of times."""

    def __init__(
        self, name: str, run_once: Callable[[], Awaitable[int | None]], now_ms: Callable[[], int]
    ) -> None:
        """`run_once` returns the time of its next run, or None to wait for a call of `expect`."""
        self._name = name
        self._run_once = run_once
        self._now_ms = now_ms
        self._next_ms = _NEVER_MS
        self._sooner = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    def start(self) -> None:
        self.stop()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None

    def expect(self, due_ms: int) -> None:
        """Make the function run at `due_ms` or earlier."""
        if due_ms < self._next_ms:
            self._next_ms = due_ms
            self._sooner.set()

    async def _run(self) -> None:
        while True:
            self._next_ms = _NEVER_MS
            try:
                due_ms = await self._run_once()
                self._problem = ""
            except Exception as error:  # an error must not end the loop
                self._log_failure(error)
                due_ms = self._now_ms() + _RETRY_MS
            self._next_ms = min(self._next_ms, _NEVER_MS if due_ms is None else due_ms)
            await self._wait()

    async def _wait(self) -> None:
        while (left_ms := self._next_ms - self._now_ms()) > 0:
            self._sooner.clear()
            try:
                async with asyncio.timeout(min(left_ms / 1000, _LONGEST_S)):
                    await self._sooner.wait()
            except TimeoutError:
                continue

    def _log_failure(self, error: Exception) -> None:
        """Log an error, unless it is the same as the previous one."""
        if self._problem != repr(error):
            self._problem = repr(error)
            mistake = None if isinstance(error, BrokerError | DLedgerError) else error
            _log.warning(
                "processing due messages failed", loop=self._name, reason=str(error), exc_info=mistake
            )
