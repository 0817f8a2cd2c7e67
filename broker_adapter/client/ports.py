"""What answers at an address in RocketMQ's protocol."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum

from broker_adapter.errors import BrokerError, ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand


class RemotingPort(Enum):
    NAME_SERVER = "NameServer"
    BROKER = "broker"


async def remoting_port_at(
    address: str, *, timeout_s: float, tls: ssl.SSLContext | None = None
) -> RemotingPort | None:
    """None if nothing there speaks the protocol, with `tls` or in plain text."""
    securities: Sequence[ssl.SSLContext | None] = (None,) if tls is None else (tls, None)
    for security in securities:
        with suppress(BrokerError, OSError):
            connection = await connect(address, timeout_s=timeout_s, tls=security)
            try:
                question = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                answer = await connection.invoke(question, timeout_s)
            finally:
                connection.close("it has answered")
            is_known = answer.code == ResponseCode.SUCCESS  # brokers do not take it
            return RemotingPort.NAME_SERVER if is_known else RemotingPort.BROKER
    return None
