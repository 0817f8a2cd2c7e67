"""What the client's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dledger import AsyncClient
from tests.client.fake_cluster import FakeCluster


@asynccontextmanager
async def cluster_and_client(size: int = 3, **options: Any) -> AsyncIterator[tuple[FakeCluster, AsyncClient]]:
    options.setdefault("timeout", 5.0)
    async with FakeCluster(size) as cluster, AsyncClient(cluster.addresses, **options) as client:
        yield cluster, client


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Let others run until `condition` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0)
