"""Ask nodes as clients of the remoting protocol do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import HeaderForm, RemotingCommand, encode
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.wire.properties import join_properties

LISTEN: dict[str, Any] = {"remoting": {"listen": "127.0.0.1:0"}}


class Asker:
    """One connection."""

    def __init__(self, connection: RemotingConnection) -> None:
        self.connection = connection

    async def ask(self, code: int, body: bytes = b"", form: int = 0, **fields: object) -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        command = RemotingCommand(code, texts, body, form=HeaderForm(form))
        return await self.connection.invoke(command, 40)

    def oneway(self, code: int, body: bytes = b"", **fields: object) -> None:
        """Without an answer."""
        texts = {name: str(value) for name, value in fields.items()}
        request = RemotingCommand(code, texts, body, flag=RemotingCommand.oneway(code).flag)
        self.connection.notify(request)

    async def get(self, code: int, body: bytes = b"", **fields: object) -> Mapping[str, str]:
        """The fields of an answer that is a success."""
        answer = await self.ask(code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer.fields

    async def body(self, code: int, body: bytes = b"", **fields: object) -> Any:
        """Likewise, its body."""
        answer = await self.ask(code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        return json.loads(answer.body)

    async def send(self, topic: str, body: bytes, queue_id: int = -1, **properties: str) -> Mapping[str, str]:
        """Until consumers see it: a send is answered once it is committed, dispatched a moment later."""
        fields = send_fields(topic, queue_id, **properties)
        answer = await self.get(RequestCode.SEND_MESSAGE_V2, body, **fields)
        if not {"DELAY", "TIMER_DELAY_MS", "TRAN_MSG"} & properties.keys():
            async with asyncio.timeout(60):
                while await self.end(topic, answer["queueId"]) <= int(answer["queueOffset"]):
                    pass
        return answer

    async def end(self, topic: str, queue_id: object) -> int:
        told = await self.get(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id)
        return int(told["offset"])


def send_fields(topic: str, queue_id: int = -1, **properties: str) -> dict[str, object]:
    """As the Java client writes them."""
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": join_properties(properties),
        "j": 0,
        "k": "false",
        "m": "false",
    }


@asynccontextmanager
async def asking(address: str, local_host: str = "") -> AsyncIterator[Asker]:
    connection = await connect(address, timeout_s=10, local_host=local_host)
    try:
        yield Asker(connection)
    finally:
        connection.close("asked")


@asynccontextmanager
async def pipelining(address: str, connections: int, request: RemotingCommand) -> AsyncIterator[list[int]]:
    """Connections that send the request again and again, and read the responses without looking at them.
    Yields the number of sent blocks of each connection."""
    host, _, port = address.rpartition(":")
    block = encode(request)
    block *= 1 + (64 << 10) // len(block)
    sent = [0] * connections

    async def flood(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))

        async def discard() -> None:
            while await reader.read(1 << 20):
                pass

        reading = asyncio.create_task(discard())
        try:
            while True:
                writer.write(block)
                await writer.drain()
                sent[number] += 1
        finally:
            reading.cancel()
            writer.close()

    tasks = [asyncio.create_task(flood(number)) for number in range(connections)]
    try:
        yield sent
        assert not any(task.done() for task in tasks), "a connection was closed"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
