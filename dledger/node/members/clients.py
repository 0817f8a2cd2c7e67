"""Clients of the other members, for their status and for reads at the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.node.setup.member_book import MemberBook
from dledger.node.setup.security import NodeSecurity
from dledger.rpc.log_client import LogClient
from dledger.status.model import NodeStatus

_STATUS_S = 2.0


class MemberClients:
    """One client for each member, at its current address and with the current certificates."""

    def __init__(self, group: str, members: MemberBook, security: Callable[[], NodeSecurity | None]) -> None:
        """`security`: None for plain text."""
        self._group = group
        self._members = members
        self._security = security
        self._clients: dict[str, LogClient] = {}
        self._retired: set[asyncio.Task[None]] = set()

    def of(self, node_id: str) -> LogClient:
        client, address = self._clients.get(node_id), self._members.peer_address(node_id)
        if client is None or client.address != address:
            if client is not None:
                self._retire(client)
            client = self._clients[node_id] = self._make(node_id, address)
        return client

    async def status_at(self, node_id: str, address: str) -> NodeStatus:
        """Return the status of a node that need not be a member. Raises NetworkFailure and other
        DLedgerErrors."""
        client = self._make(node_id, address)
        try:
            return await client.get_status(_STATUS_S)
        finally:
            await client.close()

    def renew(self) -> None:
        """Use new certificates. Calls that run are completed."""
        for client in self._clients.values():
            self._retire(client)
        self._clients.clear()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        for task in self._retired:
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)

    def _make(self, node_id: str, address: str) -> LogClient:
        security = self._security()
        return LogClient(address, self._group, None if security is None else security.channel(node_id))

    def _retire(self, client: LogClient) -> None:
        task = asyncio.create_task(client.retire())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
