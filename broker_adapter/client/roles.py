"""The role of a broker with a classic log, as its operator decides it."""

from __future__ import annotations

import ssl

from broker_adapter.client.instance import ClientInstance
from broker_adapter.client.options import ClientOptions
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand


async def change_role(
    address: str,
    *,
    to_master: bool,
    force: bool = False,
    options: ClientOptions | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Of the broker at `address`, host:port. PutRefused (ROLE_CHANGE_BLOCKED) says what is in the way, which
    `force` gives up; AnswerMissing; RemotingRefused (CODE_UNKNOWN) from a broker with another log."""
    client = ClientInstance([address], options, tls)  # no NameServer is asked
    fields = {"role": "master" if to_master else "slave", "force": str(force).lower()}
    try:
        await client.call(address, RemotingCommand(RequestCode.CHANGE_BROKER_ROLE, fields))
    finally:
        await client.close()
