"""Stores the holders of queue locks in the replicated metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from broker_adapter.errors import ReadFailed, Status
from broker_adapter.metadata.commands import GrantLocks, ReleaseLocks
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from dledger import DLedgerError


class _ReadPoint(Protocol):
    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int: ...


class RecordedLocks:
    """The holders of queue locks that the metadata contains. Implements
    `broker_adapter.endpoints.v4.locks.LockHolders`.
    """

    def __init__(self, metadata: MetadataState, proposals: Proposals, node: _ReadPoint) -> None:
        self._metadata = metadata
        self._proposals = proposals
        self._node = node

    def all(self) -> Mapping[str, Mapping[tuple[str, int], str]]:
        return self._metadata.lock_holders

    async def grant(self, group: str, client_id: str, queues: Collection[tuple[str, int]]) -> None:
        (await self._proposals.propose(GrantLocks(group, client_id, tuple(sorted(set(queues)))))).check()

    async def release(self, group: str, client_id: str, queues: Collection[tuple[str, int]]) -> None:
        (await self._proposals.propose(ReleaseLocks(group, client_id, tuple(sorted(set(queues)))))).check()

    async def confirm(self) -> None:
        """Wait until this node is up to date. Raises ReadFailed (NOT_CONFIRMED)."""
        try:
            await self._node.wait_applied()
        except DLedgerError as error:
            raise ReadFailed(Status.NOT_CONFIRMED, error.message) from error
