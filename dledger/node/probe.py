"""Requests the status of members before an offline change, which is only safe while no other member runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import NamedTuple

from dledger.errors import DLedgerError
from dledger.infra.addresses import split_address
from dledger.infra.transport.channels import ChannelSecurity
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.security import NodeSecurity
from dledger.rpc.log_client import LogClient, NetworkFailure, TlsFailure


class Probe(NamedTuple):
    """Other members that are not certainly down, with a line about each."""

    running: tuple[str, ...]  # also those that answer and cannot be identified
    silent: tuple[str, ...]  # a connection is accepted, but no request is answered
    committed_index: int = -1  # the highest one that a running member has reported


async def probe_members(
    config: NodeConfig, cluster_ids: Collection[str], others: Iterable[tuple[str, str]], timeout_s: float
) -> Probe:
    """Ask `others`, (node id, address), and the members in the configuration for their status.

    A node of none of the clusters `cluster_ids` does not count. Takes up to `timeout_s`. Raises ConfigError
    if the TLS files of the configuration are missing or invalid.
    """
    security = NodeSecurity(config) if config.tls is not None else None
    configured = {*config.members.items(), *config.peer_addresses.items()}
    asked = sorted({*others, *configured})
    nodes = [(node, address) for node, address in asked if node != config.node_id]
    running: list[str] = []
    silent: list[str] = []
    committed_index = -1

    async def ask(node: str, address: str) -> None:
        nonlocal committed_index
        channel = security.channel(node) if security else None
        name = f"{node} at {address}"
        # At the same time, so that both end within the limit.
        connecting = asyncio.create_task(_is_open(address, timeout_s))
        try:
            answer, committed = await _status(address, config.group, channel, cluster_ids, timeout_s)
        except NetworkFailure:
            if await connecting:
                silent.append(name)
            return
        finally:
            connecting.cancel()
        if answer:
            running.append(f"{name}: {answer}")
            committed_index = max(committed_index, committed)

    await asyncio.gather(*(ask(node, address) for node, address in nodes))
    return Probe(tuple(sorted(running)), tuple(sorted(silent)), committed_index)


async def _status(
    address: str, group: str, channel: ChannelSecurity | None, cluster_ids: Collection[str], timeout_s: float
) -> tuple[str, int]:
    """Describe the member that answers, with its committed index, -1 if it is unknown. The text is empty for
    a node of another cluster. Raises NetworkFailure."""
    client = LogClient(address, group, channel)
    try:
        status = await client.get_status(timeout_s)
    except TlsFailure as failure:
        return f"it cannot be identified: {failure.message}", -1
    except NetworkFailure:
        raise
    except DLedgerError as error:
        return f"it refuses the request: {error.message}", -1
    finally:
        await client.close()
    if status.cluster_id not in cluster_ids:
        return "", -1
    text = f"{status.node_id} of cluster {status.cluster_id} is {status.role} in term {status.term}"
    return text, status.committed_index


async def _is_open(address: str, timeout_s: float) -> bool:
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
