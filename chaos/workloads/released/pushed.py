"""Members that are push consumers: the client hands over what it has received, and is told what became of it.

The client acknowledges and gives back automatically. The driver tells what the server answered to the ack,
which a user of the client never hears: so the trace says of each whether it counts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from chaos.trace.outcomes import ClientError
from chaos.workloads.released.consumers import MOST, WAIT_S, Member, Received

#: For so long nobody else is given what a client that is heard of has. Less than half of what servers are set
#: to (`delivery.invisible_ms`): with less than half left they renew it, but for times without a master.
PUSH_HELD_MS = 3_000


class PushMember(Member):
    """One life of one push consumer."""

    _held_ms = PUSH_HELD_MS

    async def leave(self) -> bool:
        """The client ends when it is through with what it has."""
        closing = asyncio.create_task(self._client.ask("close"))
        try:
            while not closing.done():
                await self._settle_all(await self._receive())
            await closing
        except ClientError:
            return False
        finally:
            closing.cancel()
            self._left()
        return True

    async def _start(self, **wanted: Any) -> None:
        await self._client.ask("push", **wanted)

    async def _fetch(self) -> dict[str, Any]:
        return await self._client.ask("take", most=MOST, wait_s=WAIT_S)

    async def _settle(self, one: Received) -> None:
        await self._ask("settle", one, "ack", is_done=True)

    async def _leave_alone(self, one: Received) -> None:
        """The client gives it back, or in a group that consumes in order, keeps it and tries again."""
        self._done(one, "retry")
        await self._client.ask("settle", handle=one.handle, is_done=False)

    async def _settle_all(self, received: list[Received]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in received:
                tasks.create_task(self._ack(one))
