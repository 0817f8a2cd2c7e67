"""Bounded queues before each class of call: whoever finds one full is told so, and does not wait for ever.

Calls by gRPC and by the remoting protocol share them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from broker_adapter.errors import NameServerBusy, Status
from broker_adapter.remoting.executors import Executor


class CallExecutor(Executor):
    """Lets `running` calls of one class go on at a time, in order of arrival, and `waiting` more wait."""

    def __init__(
        self,
        name: str,
        *,
        running: int,
        waiting: int,
        on_refused: Callable[[str], None],
        is_expensive: bool = False,
    ) -> None:
        """`on_refused(name)` counts what was refused."""
        super().__init__(name, running, waiting, is_expensive=is_expensive)
        self._on_refused = on_refused

    def admit(self, address: str = "") -> str | None:
        refusal = super().admit(address)
        if refusal is not None:
            self._on_refused(self.name)
        return refusal

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """The call goes on inside. NameServerBusy (NAMESRV_BUSY) if too many wait."""
        if self.admit() is not None:
            raise NameServerBusy(
                Status.NAMESRV_BUSY, f"{self.most} calls of the kind {self.name} are under way: try again"
            )
        try:
            async with self.turn:
                # Others get on between two calls; so a burst is seen here, and not hidden in the event loop.
                await asyncio.sleep(0)
                yield
        finally:
            self.leave()
