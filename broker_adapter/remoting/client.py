"""Connect to a server of the remoting protocol."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from broker_adapter.errors import AnswerMissing, Status
from broker_adapter.remoting.byte_budget import ByteBudget
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import ConnectionLimits, RemotingConnection
from broker_adapter.remoting.executors import Dispatch
from dledger.platform import split_address


class _ClientSide:
    """Requests of the server are answered as our own are there."""

    def __init__(self, dispatch: Dispatch, on_closed: Callable[[str], object]) -> None:
        self._dispatch = dispatch
        self._on_closed = on_closed

    def connected(self, connection: RemotingConnection) -> None:
        pass

    def requested(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        self._dispatch.answer(connection, request)

    def active(self, connection: RemotingConnection) -> None:
        pass

    def unsent(self, connection: RemotingConnection) -> None:
        pass

    def closed(self, connection: RemotingConnection, reason: str) -> None:
        self._on_closed(reason)


async def connect(
    address: str,
    *,
    timeout_s: float,
    dispatch: Dispatch | None = None,
    tls: ssl.SSLContext | None = None,
    limits: ConnectionLimits | None = None,
    on_closed: Callable[[str], object] = lambda reason: None,
    local_host: str = "",
) -> RemotingConnection:
    """`address`: host:port; `local_host`: from which of this machine's addresses. AnswerMissing
    (ANSWER_MISSING) if nobody takes the connection in time.

    `dispatch` answers what the server asks. A client closes a connection on which nothing comes for longer
    than `limits.idle_s`.
    """
    host, port = split_address(address)
    limits = limits or ConnectionLimits()
    connection = RemotingConnection(
        _ClientSide(dispatch or Dispatch(), on_closed), limits, ByteBudget(limits.max_frame)
    )
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                host,
                int(port),
                ssl=tls,
                server_hostname=host if tls else None,
                local_addr=(local_host, 0) if local_host else None,
            )
    except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the last two: of no address
        raise AnswerMissing(
            Status.ANSWER_MISSING, f"{address}: no connection: {str(error) or 'no answer in time'}"
        ) from None
    return connection
