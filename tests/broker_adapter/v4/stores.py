"""A master with either store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v4.asker import LISTEN

STORES = ("replicated", "classic")


@asynccontextmanager
async def started(store: str, folder: Path) -> AsyncIterator[str]:
    """The remoting address of a master with this store."""
    if store == "replicated":
        async with brokers(folder, 1, LISTEN) as cluster:
            yield (await cluster.master()).remoting.address
        return
    async with classic_pair(folder, waits_for_slaves=False) as classic:
        await classic.start("n1", broker_role="ASYNC_MASTER")
        yield (await classic.writable("n1")).remoting.address
