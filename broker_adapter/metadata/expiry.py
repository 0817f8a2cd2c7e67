"""Expiry of what came into being by use, topics and groups: it goes when nobody uses it any more."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

import structlog

from broker_adapter.errors import BrokerError

_log = structlog.get_logger(part="expiry")

_LOOK_MOST_MS = 60_000
#: That one look deletes at most: each is an append.
MOST_A_LOOK = 20
#: Of names looked at in one turn of the loop.
NAMES_A_TURN = 1_000


class LastUse:
    """When each topic, or group, was used last, as far as this master knows. On the event loop."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: monotonic."""
        self._now_ms = now_ms
        self._since_ms = now_ms()
        self._used_ms: dict[str, int] = {}

    def begin(self) -> None:
        """A leadership begins: what was before, nobody here knows, so all count as used."""
        self._since_ms = self._now_ms()
        self._used_ms.clear()

    def touch(self, name: str) -> None:
        self._used_ms[name] = self._now_ms()

    def used_ms(self, name: str) -> int:
        return self._used_ms.get(name, self._since_ms)

    def idle_ms(self, name: str) -> int:
        return self._now_ms() - self.used_ms(name)

    def keep(self, names: Collection[str]) -> None:
        """Forget those that there are not."""
        for name in [name for name in self._used_ms if name not in names]:
            del self._used_ms[name]


class Expiry(ABC):
    """Looks again and again while this broker is master. Implements
    `broker_adapter.role.broker_role.MasterService`. On the event loop."""

    def __init__(self, what: str, use: LastUse, expire_ms: int) -> None:
        """`what`: of which kind, in log lines. `expire_ms` 0: never."""
        self.expired = 0
        self._what = what
        self._use = use
        self._expire_ms = expire_ms
        self._task: asyncio.Task[None] | None = None

    def start(self, term: int, role_epoch: int) -> None:
        self._use.begin()
        if self._expire_ms:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"{self._what}-expiry")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @abstractmethod
    async def look(self) -> None:
        """Delete some of those that nobody uses."""

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_MOST_MS, max(1, self._expire_ms // 4)) / 1000)
            try:
                await self.look()
            except BrokerError as error:
                _log.info("what is unused stays for now", kind=self._what, reason=str(error))
            except Exception as error:  # a mistake: they stay, and the next look may succeed
                _log.error("what is unused could not be looked for", kind=self._what, exc_info=error)
