"""Look again when something is due: one task, which waits for a time and not for a period."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from broker_adapter.errors import BrokerError
from dledger import DLedgerError

_log = structlog.get_logger(part="delivery")
#: After a look that has failed (ms).
_RETRY_MS = 1_000
_NEVER_MS = 1 << 62
#: A clock may be set: nothing is waited for longer in one go (seconds).
_LONGEST_S = 60.0


class DueLoop:
    """`start` and `stop` as often as wanted, on the event loop."""

    def __init__(
        self, name: str, look: Callable[[], Awaitable[int | None]], now_ms: Callable[[], int]
    ) -> None:
        """`look` says when it wants to look again; None: not before `expect`."""
        self._name = name
        self._look = look
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
        """Something will be due then."""
        if due_ms < self._next_ms:
            self._next_ms = due_ms
            self._sooner.set()

    async def _run(self) -> None:
        while True:
            self._next_ms = _NEVER_MS
            try:
                due_ms = await self._look()
                self._problem = ""
            except Exception as error:  # it costs this look, and not all that are to come
                self._tell(error)
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

    def _tell(self, error: Exception) -> None:
        """Once, not each time."""
        if self._problem != repr(error):
            self._problem = repr(error)
            mistake = None if isinstance(error, BrokerError | DLedgerError) else error
            _log.warning("looked in vain", look=self._name, reason=str(error), exc_info=mistake)
