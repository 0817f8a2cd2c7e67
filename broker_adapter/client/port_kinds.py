"""Probes of addresses that may speak RocketMQ's remoting protocol."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum

from broker_adapter.errors import BrokerError, ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand


class RemotingPortKind(Enum):
    NAME_SERVER = "NameServer"
    BROKER = "broker"


async def remoting_port_at(
    address: str, *, timeout_s: float, tls: ssl.SSLContext | None = None
) -> RemotingPortKind | None:
    """Return the kind of remoting port at an address, or None if the port does not speak the protocol.

    `tls`: connect with TLS; otherwise in plain text.
    """
    securities: Sequence[ssl.SSLContext | None] = (None,) if tls is None else (tls, None)
    for security in securities:
        with suppress(BrokerError, OSError):
            connection = await connect(address, timeout_s=timeout_s, tls=security)
            try:
                question = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                answer = await connection.invoke(question, timeout_s)
            finally:
                connection.close("the probe is complete")
            is_known = answer.code == ResponseCode.SUCCESS  # brokers do not support this request
            return RemotingPortKind.NAME_SERVER if is_known else RemotingPortKind.BROKER
    return None
