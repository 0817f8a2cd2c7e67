"""Registrations, and NameServers inside the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_adapter.api import TopicConfig
from broker_adapter.namesrv.config import load_config
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import Registration
from broker_adapter.remoting.codes import DETAILS, MASTER_TERM
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.server import RemotingServer

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
    values: dict[str, Any] = {"cluster": "main", "address": f"host-{name}-{node}:1", **more}
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


class _Ignorance:
    """An RpcHook. NameServers older than these fields neither read nor send them."""

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        for name in ("sendAddress", "nodeAddress", "members", DETAILS):
            request.fields.pop(name, None)

    def after(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand
    ) -> None:
        answer.fields.pop(MASTER_TERM, None)


class OlderNameServer(NameServerProcess):
    """One that makes no write-only names itself."""

    def _serve_remoting(self) -> RemotingServer:
        server = super()._serve_remoting()
        server._main.dispatch._hooks = (_Ignorance(),)
        return server


@asynccontextmanager
async def name_server(
    folder: Path, kind: type[NameServerProcess] = NameServerProcess, **settings: Any
) -> AsyncIterator[NameServerProcess]:
    """A NameServer with its directory in `folder`, on a port of its own."""
    content = {"directory": str(folder), "listen": "127.0.0.1:0", **settings}
    process = kind(load_config(None, content))
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
