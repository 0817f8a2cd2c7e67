"""Reads that a slave answers itself: its master may be gone, or a broker of RocketMQ's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.request import Request


class LocalReads:
    """Implements Answering. Clients ask a slave when its master has sent them there, or is gone: as with
    RocketMQ's slaves, what they read is what the slave has."""

    def __init__(self, local: Answering, others: Answering, reads_here: Callable[[], bool]) -> None:
        """`others`: for all that only a master may do, and for what is read while `reads_here` says no."""
        self._local = local
        self._others = others
        self._reads_here = reads_here

    async def unary(self, request: Request, context: CallContext) -> bytes:
        is_here = request.is_read and self._reads_here()
        return await (self._local if is_here else self._others).unary(request, context)

    def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        return self._others.stream(request, context)
