"""Which other port of ours an address leads to that was given by mistake: each server has several."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from broker_adapter.client.ports import RemotingPort, remoting_port_at
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.values import ClusterInfo
from dledger import AsyncClient, NodeStatus, TlsFiles

_SECONDS = 2.0


async def mistaken_ports(
    addresses: Sequence[str],
    *,
    are_nodes: bool,
    tls: TlsFiles | None,
    remoting_tls: ssl.SSLContext | None,
) -> list[str]:
    """For each address that is another port, a sentence with the fix. `are_nodes`: they were given as
    `--servers`, not as `--namesrv`."""
    questions = (_mistake(address, are_nodes, tls, remoting_tls) for address in addresses)
    return [text for text in await asyncio.gather(*questions) if text]


async def _mistake(
    address: str, are_nodes: bool, tls: TlsFiles | None, remoting_tls: ssl.SSLContext | None
) -> str:
    port = await remoting_port_at(address, timeout_s=_SECONDS, tls=remoting_tls)
    if port is not None:
        option = "--namesrv" if port is RemotingPort.NAME_SERVER else "--servers"
        return (
            f"{address} is a {port.value}'s port for clients of RocketMQ: give {option} its `listen` instead"
        )
    if are_nodes:
        return f"{address} is a NameServer: give it as --namesrv" if await _is_namesrv(address, tls) else ""
    return f"{address} is a node: give it as --servers" if await _is_node(address, tls) else ""


async def _is_namesrv(address: str, tls: TlsFiles | None) -> bool:
    async with NameServerClient([address], tls, timeout_s=_SECONDS) as client:
        return isinstance((await client.cluster_infos())[address], ClusterInfo)


async def _is_node(address: str, tls: TlsFiles | None) -> bool:
    async with AsyncClient([address], session=False, tls=tls) as client:
        answers = await client.status(timeout=_SECONDS)
    return any(isinstance(one, NodeStatus) for one in answers.values())
