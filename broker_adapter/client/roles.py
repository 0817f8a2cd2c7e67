"""Role changes of brokers with a classic log, for operators."""

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
    """Change the role of the broker at `address`, host:port.

    Raises PutRefused (ROLE_CHANGE_BLOCKED) with the reason, unless `force`; AnswerMissing if there is no
    response; RemotingRefused (CODE_UNKNOWN) if the broker has another kind of log.
    """
    client = ClientInstance([address], options, tls)  # no NameServer is needed
    fields = {"role": "master" if to_master else "slave", "force": str(force).lower()}
    try:
        await client.call(address, RemotingCommand(RequestCode.CHANGE_BROKER_ROLE, fields))
    finally:
        await client.close()
