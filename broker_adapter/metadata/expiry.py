"""Expiry of automatically created topics and groups that are unused."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

import structlog

from broker_adapter.errors import BrokerError

_log = structlog.get_logger(part="expiry")

_MAX_SWEEP_INTERVAL_MS = 60_000
#: Maximum number of deletions per sweep; each one appends to the log.
MAX_DELETIONS_PER_SWEEP = 20
#: Maximum number of names to examine before yielding to the event loop.
NAMES_PER_YIELD = 1_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class LastUse:
    """Times at which topics or groups were last used, as far as this master knows. Runs on the event loop."""

    def __init__(self, now_ms: Callable[[], int] = _monotonic_ms) -> None:
        """`now_ms`: a monotonic clock."""
        self._now_ms = now_ms
        self._since_ms = now_ms()
        self._used_ms: dict[str, int] = {}

    def begin(self) -> None:
        """Start a term as leader.

        This master does not know earlier uses, so every name counts as used now.
        """
        self._since_ms = self._now_ms()
        self._used_ms.clear()

    def touch(self, name: str) -> None:
        self._used_ms[name] = self._now_ms()

    def used_ms(self, name: str) -> int:
        return self._used_ms.get(name, self._since_ms)

    def idle_ms(self, name: str) -> int:
        return self._now_ms() - self.used_ms(name)

    def keep(self, names: Collection[str]) -> None:
        """Forget all names except these."""
        for name in [name for name in self._used_ms if name not in names]:
            del self._used_ms[name]


class Expiry(ABC):
    """Sweeps periodically while this broker is master. Runs on the event loop.

    Implements `broker_adapter.role.broker_role.MasterService`.
    """

    def __init__(self, kind: str, use: LastUse, expire_ms: int) -> None:
        """`kind`: the kind of object, for log lines. `expire_ms`: 0 to disable expiry."""
        self.expired = 0
        self._kind = kind
        self._use = use
        self._expire_ms = expire_ms
        self._task: asyncio.Task[None] | None = None

    def start(self, term: int, role_epoch: int) -> None:
        self._use.begin()
        if self._expire_ms:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"{self._kind}-expiry")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @abstractmethod
    async def sweep(self) -> None:
        """Delete some of the unused names."""

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(min(_MAX_SWEEP_INTERVAL_MS, max(1, self._expire_ms // 4)) / 1000)
            try:
                await self.sweep()
            except BrokerError as error:
                _log.info("expiry postponed", kind=self._kind, reason=str(error))
            except Exception as error:  # a defect: nothing is deleted, and the next sweep may succeed
                _log.error("expiry failed", kind=self._kind, exc_info=error)
