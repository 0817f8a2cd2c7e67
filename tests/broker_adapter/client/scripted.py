"""Brokers and NameServers of the remoting protocol that answer as a test tells them, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from broker_adapter.client.core.values import MessageExt, Steps, first_messages
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.remoting.server import RemotingServer

#: What answers a request; None: nobody ever does.
Script = Callable[[RemotingCommand], RemotingCommand | None]


class ScriptedServer:
    """Keeps what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[RemotingCommand] = []
        self.connections: list[RemotingConnection] = []
        dispatch = Dispatch()
        dispatch.register(RequestCode, self._process, Executor("all", running=1000, waiting=0))
        self.server = RemotingServer(dispatch)

    def seen_of(self, code: int) -> list[RemotingCommand]:
        return [one for one in self.seen if one.code == code]

    async def _process(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        self.seen.append(request)
        if connection not in self.connections:
            self.connections.append(connection)
        return self.script(request)


T = TypeVar("T")


def finish(work: Steps[T]) -> T:
    """Run all steps without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def decode_messages(records: bytes, broker_name: str) -> list[MessageExt]:
    messages, is_all = finish(first_messages(records, broker_name, len(records)))
    assert is_all
    return messages


@asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[list[ScriptedServer]]:
    servers = [ScriptedServer(script) for script in scripts]
    for server in servers:
        await server.server.start("127.0.0.1:0")
    try:
        yield servers
    finally:
        await asyncio.gather(*(server.server.stop(0) for server in servers))


def route_body(brokers: Sequence[ScriptedServer], queues: int = 1) -> bytes:
    """Brokers a, b, ... with so many queues each."""
    names = [chr(ord("a") + number) for number in range(len(brokers))]
    addresses = [broker.server.address for broker in brokers]
    return route_body_of(dict(zip(names, addresses, strict=True)), queues)


def route_body_of(masters: Mapping[str, str], queues: int) -> bytes:
    """`masters`: addresses by name of broker."""
    return json.dumps(
        {
            "brokerDatas": [
                {"brokerName": name, "cluster": "main", "brokerAddrs": {"0": address}}
                for name, address in masters.items()
            ],
            "queueDatas": [
                {"brokerName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
                for name in masters
            ],
        }
    ).encode()


def stored(request: RemotingCommand) -> RemotingCommand:
    """The answer to a send that was stored."""
    return request.answer(0, fields={"msgId": "ID", "queueId": request.fields["e"], "queueOffset": "5"})
