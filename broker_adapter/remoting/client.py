"""Connects to a server of the remoting protocol."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from broker_adapter.errors import AnswerMissing, Status
from broker_adapter.remoting.connection import ConnectionLimits, RemotingConnection
from broker_adapter.remoting.executors import Dispatch
from dledger.infra.addresses import split_address
from dledger.infra.quotas import FairQueue


class _ClientSide:
    def __init__(self, on_closed: Callable[[str], object]) -> None:
        self._on_closed = on_closed

    def connected(self, connection: RemotingConnection) -> None:
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
    """Connect to `address` (host:port), from the local address `local_host` if given.

    `dispatch` processes requests from the server. The client closes a connection on which no data has arrived
    for `limits.idle_s`. Raises AnswerMissing (ANSWER_MISSING) if the connection is not established within
    `timeout_s`.
    """
    host, port = split_address(address)
    limits = limits or ConnectionLimits()
    answer = (dispatch or Dispatch()).answer  # the default rejects all requests
    connection = RemotingConnection(_ClientSide(on_closed), answer, limits, FairQueue(limits.max_frame))
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
    except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the last two: invalid address
        raise AnswerMissing(
            Status.ANSWER_MISSING, f"{address}: cannot connect: {str(error) or 'no response in time'}"
        ) from None
    return connection
