"""A master of RocketMQ in the test's own process: its log, its queues, its two ports.

What it sends is written here again, byte by byte, from what a broker of RocketMQ 5.5 was seen to send."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from tests.broker_adapter.classic.store_writer import FILE_SIZE, StoreWriter
from tests.broker_adapter.client.scripted import serving


class FakeMaster:
    """`store` is what it has. `acknowledged`: what slaves have reported; `requested`: the first of each.
    `cut` ends all connections of slaves."""

    def __init__(self, store: StoreWriter) -> None:
        self.store = store
        self.acknowledged: list[int] = []
        self.requested: list[int] = []
        self.permissions = [6]
        self.settings = {"brokerPermission": "6", "startAcceptSendRequestTimeStamp": "0"}
        #: Groups with members.
        self.groups: set[str] = set()
        self.timers = 0
        #: Bytes of the log that its queues do not show yet.
        self.behind = 0
        #: What was given, byte by byte, may be changed here.
        self.frame: Callable[[int, bytes], bytes] = lambda at, data: struct.pack(">qi", at, len(data)) + data
        self.piece_bytes = 700
        self.asked_for_figures = 0
        self._grown = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = self.ha_address = ""

    def put(self, topic: str, body: bytes, queue_id: int = 0, **fields: Any) -> None:
        self.store.put(topic, body, queue_id, **fields)
        self.grown()

    def grown(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    @property
    def takes_messages(self) -> bool:
        """Whoever has an older route sends in spite of brokerPermission, and it is stored (RocketMQ 5.5)."""
        return self.settings["startAcceptSendRequestTimeStamp"] == "0"

    @property
    def log_end(self) -> int:
        return self.store.begin + len(self.store.log)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    # -- the port of slaves -------------------------------------------------------------------------------

    async def serve_slave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        sending: asyncio.Task[None] | None = None
        try:
            while report := await reader.readexactly(8):
                (offset,) = struct.unpack(">q", report)
                self.acknowledged.append(offset)
                if sending is None:
                    self.requested.append(offset)
                    sending = asyncio.ensure_future(self._send_from(offset, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if sending is not None:
                sending.cancel()
            self._writers.discard(writer)
            writer.close()

    async def _send_from(self, at: int, writer: asyncio.StreamWriter) -> None:
        if at == 0:
            at = self.log_end - self.log_end % FILE_SIZE  # the newest file, and nothing before it
        while True:
            grown = self._grown
            if at >= self.log_end or at < self.store.begin:
                writer.write(self.frame(at, b""))
                await grown.wait()
                continue
            begin = at - self.store.begin
            end = min(begin + self.piece_bytes, (begin // FILE_SIZE + 1) * FILE_SIZE, len(self.store.log))
            writer.write(self.frame(at, bytes(self.store.log[begin:end])))
            await writer.drain()
            at += end - begin

    # -- the port of clients ------------------------------------------------------------------------------

    def answer(self, request: RemotingCommand) -> RemotingCommand:
        fields, store = request.fields, self.store
        body: object = None
        match request.code:
            case RequestCode.GET_BROKER_CONFIG:
                port = self.ha_address.rpartition(":")[2]
                text = f"brokerName=java-a\nbrokerId=0\nhaListenPort={port}\n"
                text += "".join(f"{name}={value}\n" for name, value in self.settings.items())
                return request.answer(0, body=text.encode())
            case RequestCode.UPDATE_BROKER_CONFIG:
                self.settings.update(line.split("=") for line in request.body.decode().splitlines())
                self.permissions.append(int(self.settings["brokerPermission"]))
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                self.asked_for_figures += 1
                figures = {
                    "commitLogMinOffset": store.begin,
                    "commitLogMaxOffset": self.log_end,
                    "dispatchBehindBytes": self.behind,
                    "timerCongestNum": self.timers,
                    "timerOffsetBehind": 0,
                }
                body = {"table": {name: str(value) for name, value in figures.items()}}
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                body = {"topicConfigTable": store.topics}
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                body = {"subscriptionGroupTable": store.groups}
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                body = {"offsetTable": store.offsets}
            case RequestCode.GET_ALL_DELAY_OFFSET:
                body = {"offsetTable": store.delays}
            case RequestCode.GET_CONSUMER_CONNECTION_LIST:
                return request.answer(0 if fields["consumerGroup"] in self.groups else 206)
            case RequestCode.VIEW_MESSAGE_BY_ID:
                at = int(fields["offset"]) - store.begin
                (size,) = struct.unpack_from(">I", store.log, at)
                return request.answer(0, body=bytes(store.log[at : at + size]))
            case _:
                return self._of_queue(request)
        return request.answer(0, body=b"" if body is None else json.dumps(body).encode())

    def _of_queue(self, request: RemotingCommand) -> RemotingCommand:
        key = request.fields["topic"], int(request.fields["queueId"])
        shown = [one for one in self.store.units.get(key, ()) if one[0] < self.log_end - self.behind]
        begin = self.store.next.get(key, 0) - len(self.store.units.get(key, ()))
        match request.code:
            case RequestCode.GET_MIN_OFFSET:
                return request.answer(0, fields={"offset": str(begin)})
            case RequestCode.GET_MAX_OFFSET:
                return request.answer(0, fields={"offset": str(begin + len(shown))})
            case RequestCode.QUERY_CONSUME_QUEUE:
                at = int(request.fields["index"]) - begin
                names = ("physicOffset", "physicSize", "tagsCode")
                rows = [dict(zip(names, one, strict=True)) for one in shown[at : at + 1] if at >= 0]
                return request.answer(0, body=json.dumps({"queueData": rows}).encode())
        raise AssertionError(f"nobody asks {request.code}")


@asynccontextmanager
async def fake_master(folder: Path, begin: int = 0) -> AsyncIterator[FakeMaster]:
    """`begin`: where retention lets its log begin."""
    master = FakeMaster(StoreWriter(folder, begin))

    slaves = await asyncio.start_server(master.serve_slave, "127.0.0.1", 0)
    master.ha_address = f"127.0.0.1:{slaves.sockets[0].getsockname()[1]}"
    async with serving(master.answer) as (clients,):
        master.address = clients.server.address
        try:
            yield master
        finally:
            slaves.close()
            master.cut()
