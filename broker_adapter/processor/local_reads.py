"""Reads that a slave answers itself: its master may be gone, or a broker of RocketMQ's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from broker_adapter.processor.door import PULLS
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.request import Request
from broker_adapter.remoting.codes import RequestCode

_READS: Final = frozenset(
    {
        *PULLS,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.QUERY_CONSUMER_OFFSET,
    }
)


class LocalReads:
    """Implements Answering. Clients ask a slave when its master has sent them there, or is gone: as with
    RocketMQ's slaves, what they read is what the slave has."""

    def __init__(self, local: Answering, others: Answering) -> None:
        """`others`: for all that only a master may do."""
        self._local = local
        self._others = others

    async def unary(self, request: Request, context: CallContext) -> bytes:
        is_read = isinstance(request, RemotingRequest) and request.command.code in _READS
        return await (self._local if is_read else self._others).unary(request, context)

    def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        return self._others.stream(request, context)
