"""Recognizes the server at an address, for the errors of clients that were given another port."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

from dledger.infra.addresses import split_address

_TIMEOUT_S = 1.0
_MAX_BYTES = 64 << 10
#: A request of RocketMQ's remoting protocol (106, the brokers of a cluster), which a NameServer answers with
#: 0 and a broker with another code. A gRPC server sends its settings before it reads, and an HTTP server
#: answers that the request is invalid.
_HEADER = b'{"code":106,"flag":0,"language":"OTHER","opaque":1,"version":0}'
_REQUEST = (4 + len(_HEADER)).to_bytes(4, "big") + len(_HEADER).to_bytes(4, "big") + _HEADER
_SETTINGS = b"\x04\x00\x00\x00\x00\x00"  # type, flags and stream of an HTTP/2 frame, after its length
_START = 9  # the start of an HTTP/2 frame; or two lengths of a remoting frame, and one byte of its header

#: Application protocols to offer with TLS: gRPC servers refuse connections without "h2".
ALPN = ("h2", "http/1.1")


class PortKind(Enum):
    """What listens at a port. The values are for error texts."""

    GRPC = "a gRPC server, such as a node,"
    HTTP = "an HTTP server, such as a status page,"
    NAME_SERVER = "a NameServer"
    BROKER = "a broker's port for RocketMQ 4 clients"


_EXPECTED = {
    PortKind.GRPC: "the log is at the `listen` address of a node (port 20911 with `dledger cluster up`, 8081 "
    "with `dledger dev`)",
    PortKind.NAME_SERVER: "the `listen` address of a NameServer is needed (port 9876, or 21111 with `dledger "
    "cluster up --broker`)",
}
#: (found, expected) -> a command's option for the address.
_OPTIONS = {
    (PortKind.NAME_SERVER, PortKind.GRPC): "; `dledger broker` takes a NameServer as --namesrv",
    (PortKind.GRPC, PortKind.NAME_SERVER): "; `dledger broker` takes a node as --servers",
}


class PortHints:
    """Hints for addresses at which another kind of server listens. Probes each address once."""

    def __init__(self, expected: PortKind, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls` returns the context of a connection, or None for plain text."""
        self._expected = expected
        self._tls = tls
        self._hints: dict[str, str] = {}

    async def hint(self, address: str) -> str:
        """Return what listens at the address and which port is needed, or "" if that does not explain the
        failure. Takes up to two seconds."""
        if address not in self._hints:
            self._hints[address] = ""  # for concurrent calls
            self._hints[address] = _hint(address, await port_kind_at(address, self._tls()), self._expected)
        return self._hints[address]


def _hint(address: str, found: PortKind | None, expected: PortKind) -> str:
    if found in (None, expected):
        return ""
    assert found is not None
    where = f"{address}: {found.value} listens there; {_EXPECTED[expected]}"
    return f"{where}{_OPTIONS.get((found, expected), '')}; see docs/ports.md"


async def port_kind_at(address: str, tls: ssl.SSLContext | None = None) -> PortKind | None:
    """Return what listens at an address, or None if nothing does or the server is of another kind.

    `tls`: connect with TLS first, and then in plain text.
    """
    contexts: Sequence[ssl.SSLContext | None] = (None,) if tls is None else (tls, None)
    for context in contexts:
        with suppress(OSError, ValueError, OverflowError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_TIMEOUT_S):
                return await _probe(address, context)
    return None


async def _probe(address: str, tls: ssl.SSLContext | None) -> PortKind:
    host, port = split_address(address)
    name = host if tls is not None else None
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=tls, server_hostname=name, limit=_MAX_BYTES
    )
    try:
        writer.write(_REQUEST)
        start = await reader.readexactly(_START)
        if start.startswith(b"HTTP/"):
            return PortKind.HTTP
        if start.endswith(_SETTINGS):
            return PortKind.GRPC
        size = int.from_bytes(start[4:8], "big")  # the highest byte is the encoding: 0 for JSON
        if not 0 < size <= _MAX_BYTES:
            raise ValueError(f"{address}: not a header of the remoting protocol")
        header = json.loads(start[8:] + await reader.readexactly(size - 1))
        return PortKind.NAME_SERVER if header["code"] == 0 else PortKind.BROKER
    except (KeyError, TypeError) as error:
        raise ValueError(f"{address}: not a header of the remoting protocol: {error!r}") from None
    finally:
        writer.transport.abort()
