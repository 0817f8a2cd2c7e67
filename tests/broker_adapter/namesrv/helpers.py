"""Registrations, and NameServers inside the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_adapter.api import BrokerRole, TopicConfig
from broker_adapter.namesrv.config import load_config
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import Registration

ORDERS = TopicConfig("orders", 4, 8)
PAYMENTS = TopicConfig("payments")


def registration(
    node: str = "n1",
    broker_id: int = 0,
    *,
    term: int = 1,
    role_epoch: int = 1,
    name: str = "broker-a",
    topics: Sequence[TopicConfig] = (ORDERS,),
    **more: Any,
) -> Registration:
    """Of the node n1 at host-n1:1, and so on."""
    role = BrokerRole.SYNC_MASTER if broker_id == 0 else BrokerRole.SLAVE
    values: dict[str, Any] = {"cluster": "main", "role": role, "address": f"host-{name}-{node}:1", **more}
    return Registration(
        broker_name=name,
        node_id=node,
        broker_id=broker_id,
        term=term,
        role_epoch=role_epoch,
        topics=topics,
        **values,
    )


def address_of(node: str, name: str = "broker-a") -> str:
    return registration(node, name=name).address


@asynccontextmanager
async def name_server(folder: Path, **settings: Any) -> AsyncIterator[NameServerProcess]:
    """A NameServer with its directory in `folder`, on a port of its own."""
    content = {"directory": str(folder), "listen": "127.0.0.1:0", **settings}
    process = NameServerProcess(load_config(None, content))
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


async def until(condition: Callable[[], bool], within_s: float = 120.0) -> None:
    """Let the event loop run until the condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0)
