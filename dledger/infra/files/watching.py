"""Watches files that operators replace while a program runs, such as certificates and accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from dledger.infra.logs import get_logger

_log = get_logger("files")

_EVERY_S: Final = 1.0


class FileWatch:
    """Checks files for changes every second until stopped. On one event loop."""

    def __init__(
        self,
        threads: Executor | None,
        checks: Sequence[Callable[[], None]],
        on_checked: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`checks` read files, one after the other, on `threads` (None: the loop's executor). `on_checked`
        runs on the loop after each round. An error in one of them is logged and does not stop later rounds.
        """
        self._threads = threads
        self._checks = checks
        self._on_checked = on_checked
        self._reported: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop checking. Idempotent; may be called before `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_EVERY_S)
            problems = [await _problem(loop.run_in_executor(self._threads, check)) for check in self._checks]
            if self._on_checked is not None:
                problems.append(await _problem(self._on_checked()))
            errors = {repr(error): error for error in problems if error is not None}
            for text, error in errors.items():
                if text not in self._reported:  # log a problem once, not every second
                    _log.error("certificates or accounts could not be checked", exc_info=error)
            self._reported = set(errors)


async def _problem(work: Awaitable[None]) -> Exception | None:
    try:
        await work
    except Exception as error:
        return error
    return None
