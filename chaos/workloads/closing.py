"""Closes clients with a time limit. A client whose close never ends is a defect of the product."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.tally import LoadTally

#: Limit in seconds. It is longer than all time-outs of a client together, and shorter than that of a request
#: to the process of a released client.
CLOSE_S = 90.0

C = TypeVar("C")


async def close_in_time(client: str, close: Awaitable[object], writer: TraceWriter, tally: LoadTally) -> bool:
    """Wait until a client has closed. If that does not end, record it, and return False."""
    try:
        async with asyncio.timeout(CLOSE_S) as limit:
            await close
    except TimeoutError:
        if not limit.expired():
            raise
        tally.unclosed.append(f"client {client} had not closed after {CLOSE_S:g} s")
        writer.write(Ev.META, {"e": "unclosed", "node": client, "size": round(CLOSE_S * 1e9)})
        return False
    return True


class ClosedInTime(Generic[C]):
    """An asynchronous context manager that closes its client with `close_in_time`."""

    def __init__(
        self, name: str, client: AbstractAsyncContextManager[C], writer: TraceWriter, tally: LoadTally
    ) -> None:
        self._name = name
        self._client = client
        self._writer = writer
        self._tally = tally

    async def __aenter__(self) -> C:
        return await self._client.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close = self._client.__aexit__(kind, error, trace)
        await close_in_time(self._name, close, self._writer, self._tally)
