"""A cheap client of the remoting protocol: prepared requests through one connection to the master."""

from __future__ import annotations

import asyncio
import json
import secrets
import struct
import time
from collections.abc import Iterator, Mapping
from itertools import count

from benchmarks.broker import brokers
from benchmarks.broker.cases import Case
from benchmarks.common import BenchError, body_of
from benchmarks.ours import BATCH
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import PREFIX, RemotingCommand, decode
from broker_adapter.wire.message import decode_all
from broker_adapter.wire.properties import split_properties

_LENGTH = struct.Struct(">i")
_BATCH_ITEM = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
_FIRST_OPAQUE = 1_000_000_000
_MAX_POP = 32
_GROUP = "BenchRemoting"


class RemotingLoad(asyncio.Protocol):
    """The operations of one case. Headers are those of the Java client."""

    def __init__(self, case: Case) -> None:
        self._queues = case.queues
        self._body = body_of(case.size)
        self._topic = case.topic
        self._numbers = count()
        self._opaques = count(_FIRST_OPAQUE)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._buffer = bytearray()
        keys = "KEYS\x01order-%(number)012X\x02" if case.keys else ""
        # Unique among the clients of a cluster: brokers recognize repeated sends by their id.
        properties = f"UNIQ_KEY\x01{secrets.token_hex(10).upper()}%(number)012X\x02{keys}TAGS\x01TagA\x02"
        self._send = self._send_header(RequestCode.SEND_MESSAGE_V2, f"{properties}WAIT\x01true\x02")
        self._send_batch = self._send_header(RequestCode.SEND_BATCH_MESSAGE, "WAIT\x01true\x02")
        self._properties = properties.encode()
        size = len(self._properties % {b"number": 0})
        total = _BATCH_ITEM.size + case.size + _SHORT.size + size
        self._item = _BATCH_ITEM.pack(total, 0, 0, 0, case.size) + self._body + _SHORT.pack(size)
        pop = {
            "consumerGroup": _GROUP, "topic": self._topic, "queueId": "-1", "maxMsgNums": str(_MAX_POP),
            "invisibleTime": "60000", "pollTime": "5000", "bornTime": str(time.time_ns() // 1_000_000),
            "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
        }  # fmt: skip
        self._pop = _header(RequestCode.POP_MESSAGE, pop)
        ack = {
            "consumerGroup": _GROUP, "topic": self._topic, "queueId": "%(queue)b", "offset": "%(offset)b",
            "extraInfo": "%(receipt)b",
        }  # fmt: skip
        self._ack = _header(RequestCode.ACK_MESSAGE, ack)

    def _send_header(self, code: RequestCode, properties: str) -> bytes:
        fields = {
            "a": "bench", "b": self._topic, "c": "TBW102", "d": "4", "e": "%(queue)d", "f": "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": properties, "j": "0", "k": "false",
            "m": "true" if code is RequestCode.SEND_BATCH_MESSAGE else "false", "n": brokers.BROKER,
        }  # fmt: skip
        return _header(code, fields)

    async def send(self) -> int:
        number = next(self._numbers)
        await self._request(self._send, {b"queue": number % self._queues, b"number": number}, self._body)
        return 1

    async def send_batch(self) -> int:
        parts = []
        for _ in range(BATCH):
            number = next(self._numbers)
            parts += [self._item, self._properties % {b"number": number}]
        await self._request(self._send_batch, {b"queue": number // BATCH % self._queues}, b"".join(parts))
        return BATCH

    async def receive(self) -> int:
        """Pop messages, and acknowledge them concurrently, one request each."""
        popped = await self._request(self._pop, {}, missing=ResponseCode.POLLING_TIMEOUT)
        receipts = [split_properties(record.properties)["POP_CK"] for record in decode_all(popped.body)]
        await asyncio.gather(*map(self._acknowledge, receipts))
        return len(receipts)

    async def _acknowledge(self, receipt: str) -> None:
        words = receipt.encode()
        queue, offset = words.split(b" ")[-2:]
        await self._request(self._ack, {b"queue": queue, b"offset": offset, b"receipt": words})

    async def _request(
        self,
        header: bytes,
        values: Mapping[bytes, int | bytes],
        body: bytes = b"",
        missing: ResponseCode = ResponseCode.SUCCESS,
    ) -> RemotingCommand:
        opaque = next(self._opaques)
        filled = header % {b"opaque": opaque, **values}
        response: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = response
        prefix = PREFIX.pack(_LENGTH.size + len(filled) + len(body), len(filled))
        self._transport.write(b"".join((prefix, filled, body)))
        answer = await response
        if answer.code not in (ResponseCode.SUCCESS, missing):
            raise BenchError(f"a request failed: {answer.code} {answer.remark}")
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(BenchError(f"the master closed the connection: {error}"))

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for frame in self._frames():
            answer = decode(frame)
            response = self._waiting.pop(answer.opaque)
            if not response.done():
                response.set_result(answer)

    def _frames(self) -> Iterator[bytes]:
        at, buffer = 0, self._buffer
        while len(buffer) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            yield bytes(buffer[at + _LENGTH.size : end])
            at = end
        del buffer[:at]


def _header(code: RequestCode, fields: Mapping[str, str]) -> bytes:
    """Return a header with the placeholders of its fields, and one for its number."""
    header = {
        "code": int(code), "extFields": fields, "flag": 0, "language": "JAVA", "opaque": _FIRST_OPAQUE,
        "serializeTypeCurrentRPC": "JSON", "version": 479,
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":"))
    return text.replace(f'"opaque":{_FIRST_OPAQUE}', '"opaque":%(opaque)d').encode()


async def connect(address: str, case: Case) -> RemotingLoad:
    host, _, port = address.rpartition(":")
    _, load = await asyncio.get_running_loop().create_connection(lambda: RemotingLoad(case), host, int(port))
    return load
