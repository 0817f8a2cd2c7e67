"""Minimal HTTP/2 client for protocol abuse: complete and incomplete frames, and windows that never open."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW = 0x4
_HEAD = 9


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(window: int | None = None) -> bytes:
    """Return a SETTINGS frame. `window`: initial flow-control window of each stream; None: the default of
    65,535 bytes."""
    if window is None:
        return frame(SETTINGS)
    return frame(SETTINGS, payload=_INITIAL_WINDOW.to_bytes(2, "big") + window.to_bytes(4, "big"))


def call_headers(path: str, stream: int, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return the HEADERS frame of a gRPC call. Each header is a literal without indexing (RFC 7541,
    6.2.2)."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    )
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)
    return frame(HEADERS, END_HEADERS, stream, block)


def message(payload: bytes, *, claimed: int | None = None) -> bytes:
    """Return a gRPC message for a DATA frame. `claimed`: the length to state in its header instead of the
    real one."""
    return b"\x00" + (len(payload) if claimed is None else claimed).to_bytes(4, "big") + payload


def _text(text: str) -> bytes:
    """Encode an HPACK string: its length with a 7-bit prefix, and its bytes."""
    data = text.encode()
    if len(data) < 0x7F:
        return bytes((len(data),)) + data
    rest, length = len(data) - 0x7F, bytearray((0x7F,))
    while rest >= 0x80:
        length.append(rest % 0x80 + 0x80)
        rest //= 0x80
    return bytes((*length, rest)) + data


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection. Raises OSError if the port does not accept."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


class Http2:
    """An HTTP/2 connection that answers mandatory frames and leaves everything else to the caller.

    Use as an async context manager. Raises OSError or EOFError when the server has closed the connection.
    """

    def __init__(self, address: str, window: int | None = None) -> None:
        self._address = address
        self._window = window
        self._next_stream = 1

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await connect(self._address)
        self._writer.write(PREFACE + settings(self._window))
        await self._writer.drain()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def call(
        self,
        path: str,
        metadata: tuple[tuple[str, str], ...],
        payload: bytes,
        *,
        ended: bool = True,
    ) -> int:
        """Start a call and return its stream id. `payload`: includes the gRPC message header. `ended` False
        leaves the stream open."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        data = frame(DATA, END_STREAM if ended else 0, stream, payload)
        self._writer.write(call_headers(path, stream, metadata) + data)
        await self._writer.drain()
        return stream

    async def next_frame(self) -> tuple[int, int, bytes]:
        """Return kind, stream and payload of the next frame. Skips all frames that concern the connection
        itself, except for SETTINGS."""
        while True:
            head = await self._reader.readexactly(_HEAD)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            if kind == SETTINGS and not flags & ACK:
                self._writer.write(frame(SETTINGS, ACK))
            elif kind == PING and not flags & ACK:
                self._writer.write(frame(PING, ACK, payload=payload))
            if kind == SETTINGS or stream:
                return kind, stream, payload
