"""Syncs the derived files, and purges them when the log is purged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from broker_adapter.store.dispatcher import Dispatcher
from dledger.infra.logs import get_logger

_log = get_logger("broker")

_EVERY_S: Final = 1.0


class DerivedUpkeep:
    """Runs every second until it is stopped. Runs on the event loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        run: Callable[[Callable[[], None]], Awaitable[Any]],
        begin_pos: Callable[[], int],
    ) -> None:
        """`run` executes blocking work on a thread. `begin_pos` returns the first position of the log."""
        self._dispatcher = dispatcher
        self._run = run
        self._begin_pos = begin_pos
        self._logged: dict[str, str] = {}  # last logged error of each step
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        purged_to = -1
        while True:
            await self._execute(self._dispatcher.tend, "derived files could not be synced")
            begin = self._begin_pos()
            if begin != purged_to:
                purge = partial(self._dispatcher.purge_below, begin)
                if await self._execute(purge, "derived files could not be purged"):
                    purged_to = begin
            await asyncio.sleep(_EVERY_S)

    async def _execute(self, step: Callable[[], None], failure: str) -> bool:
        """Run a step.

        If it fails, log a repeated error only once and return False. The next round repeats the step.
        """
        try:
            await self._run(step)
        except Exception as error:
            if self._logged.get(failure) != repr(error):
                self._logged[failure] = repr(error)
                _log.error(failure, exc_info=error)
            return False
        self._logged.pop(failure, None)
        return True
