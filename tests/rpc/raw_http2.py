"""A client of gRPC that says what no library would: calls that are begun and not finished, answers that are
not read. HTTP/2 by hand (RFC 9113), headers without compression (RFC 7541, 6.2.2)."""

from __future__ import annotations

import asyncio
import struct
from typing import Self

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5


def _header(name: str, value: str) -> bytes:
    assert len(name) < 127 and len(value) < 127
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


class RawClient:
    """One connection. `ended` has the streams that the server has ended or reset."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended: set[int] = set()
        self.received: dict[int, int] = {}  # bytes of DATA by stream
        self.is_open = True
        self._reader = reader
        self._writer = writer
        self._next = 1
        self._window = 65_535  # of the connection
        self._windows: dict[int, int] = {}
        self._initial = 65_535
        self._moved = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, address: str, window: int = 65_535, local_host: str = "127.0.0.1") -> Self:
        """`window`: what the server may send of one answer, as nothing gives it more."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(local_host, 0))
        made = cls(reader, writer)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        made._frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))
        made._frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        return made

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()

    def begin(self, path: str, **metadata: str) -> int:
        """A call; the number of its stream."""
        stream, self._next = self._next, self._next + 2
        names = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test"}
        names |= {"te": "trailers", "content-type": "application/grpc"}
        names |= {name.replace("_", "-"): value for name, value in metadata.items()}
        block = b"".join(_header(name, value) for name, value in names.items())
        self._frame(_HEADERS, _END_HEADERS, stream, block)
        self._windows[stream] = self._initial
        return stream

    def ping(self) -> None:
        self._frame(_PING, 0, 0, bytes(8))

    async def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """As fast as the server takes it."""
        at = 0
        while at < len(data):
            size = min(16_384, len(data) - at, self._window, self._windows[stream])
            if stream in self.ended or not self.is_open:
                return
            if size <= 0:
                self._moved.clear()
                await self._moved.wait()
                continue
            is_last = end and at + size == len(data)
            self._frame(_DATA, _END_STREAM if is_last else 0, stream, data[at : at + size])
            self._window -= size
            self._windows[stream] -= size
            at += size
            await self._writer.drain()

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._writer.write(struct.pack(">I", len(payload))[1:] + bytes((kind, flags)))
        self._writer.write(struct.pack(">I", stream) + payload)

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
                stream = int.from_bytes(head[5:]) & 0x7FFFFFFF
                self._take(kind, flags, stream, await self._reader.readexactly(size))
                self._moved.set()
        except (asyncio.IncompleteReadError, OSError):
            self.is_open = False
            self._moved.set()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == _INITIAL_WINDOW_SIZE:
                    for one in self._windows:
                        self._windows[one] += value - self._initial
                    self._initial = value
            self._frame(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self._frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload) & 0x7FFFFFFF
            if stream:
                self._windows[stream] += more
            else:
                self._window += more
        elif kind == _DATA:
            self.received[stream] = self.received.get(stream, 0) + len(payload)
        if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self.ended.add(stream)


def message(body: bytes) -> bytes:
    """As gRPC frames it."""
    return b"\x00" + struct.pack(">I", len(body)) + body


def half_of(size: int) -> bytes:
    """All of a message but its last byte."""
    return message(bytes(size))[:-1]
