"""Requests of the remoting protocol, as the master answers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

from broker_adapter.errors import BrokerError, ResponseCode
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.rejected import ELSEWHERE, Rejected
from broker_adapter.proxy.messages.request import Request
from broker_adapter.remoting.command import RemotingCommand, encode

Handler: TypeAlias = Callable[[RemotingRequest, CallContext], Awaitable[RemotingCommand]]


class BothProtocols:
    """Implements Answering: for clients of RocketMQ 5, and for those of the remoting protocol, by `table`."""

    def __init__(self, proxy: Answering, table: Mapping[int, Handler]) -> None:
        self._proxy = proxy
        self._table = table

    async def unary(self, request: Request, context: CallContext) -> bytes:
        if not isinstance(request, RemotingRequest):
            return await self._proxy.unary(request, context)
        command = request.command
        handler = self._table.get(command.code)
        if handler is None:  # of a newer node
            text = f"request type {command.code} not supported"
            return encode(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text))
        try:
            return encode(await handler(request, context))
        except Rejected as error:
            return encode(command.answer(ResponseCode.SYSTEM_ERROR, str(error)))
        except BrokerError as error:
            if error.status in ELSEWHERE:
                raise
            return request.refused(error)

    def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        return self._proxy.stream(request, context)
