"""Connections of the status port: half requests, idle ones and floods keep nobody from being served."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dledger.cli.local.certificates import Authority
from dledger.infra.http.connections import HttpConnectionLimits
from dledger.infra.http.server import AllowedHosts, HttpServer
from dledger.infra.quotas import client_address
from dledger.status.http import start_http
from dledger.status.model import NodeStatus
from tests.status.fakes import FakeSource

HALF = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-More: "


class Port:
    """Of a running server."""

    def __init__(self, server: HttpServer, tls: ssl.SSLContext | None = None) -> None:
        self.host, port = server.address.rsplit(":", 1)
        self.port = int(port)
        self.tls = tls
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, *, local: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            self.host, self.port, ssl=self.tls, local_addr=(local, 0)
        )
        self.writers.append(writer)
        return reader, writer

    async def half(self, *, local: str = "127.0.0.1") -> asyncio.StreamReader:
        """A request whose head has no end."""
        reader, writer = await self.connect(local=local)
        writer.write(HALF)
        await writer.drain()
        return reader

    async def get(self, path: str, *, local: str = "127.0.0.1", host: str = "localhost") -> int:
        reader, writer = await self.connect(local=local)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return int((await reader.read()).split()[1])


@asynccontextmanager
async def serving(source: FakeSource | None = None, **options: Any) -> AsyncIterator[Port]:
    server = await start_http(source or FakeSource(), "127.0.0.1:0", **options)
    port = Port(server)
    try:
        yield port
    finally:
        for writer in port.writers:
            writer.close()
        await server.stop()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Waits until the server has closed it."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_half_sent_requests_keep_no_probe_from_being_answered() -> None:
    async with serving() as port:
        for _ in range(300):
            await port.half()
        for path in ("/livez", "/health", "/leader"):
            assert await port.get(path) in (200, 503)
        assert await port.get("/status") == 200
        assert await port.get("/livez", local="127.0.0.2") == 200


async def test_a_half_sent_request_is_closed_in_time_however_it_trickles() -> None:
    async with serving(limits=HttpConnectionLimits(head_s=0.05)) as port:
        reader, writer = await port.connect()
        writer.write(HALF)
        ended = asyncio.create_task(closed(reader))
        while not ended.done():
            writer.write(b"x")
            await asyncio.wait({ended}, timeout=0.005)
        assert await ended


async def test_a_connection_that_is_kept_alive_is_closed_after_the_idle_time() -> None:
    async with serving(limits=HttpConnectionLimits(idle_s=0.05)) as port:
        reader, writer = await port.connect()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b'{"ok":true}\n')
        assert await closed(reader)


async def test_the_next_request_of_a_connection_has_the_time_of_a_head() -> None:
    async with serving(limits=HttpConnectionLimits(head_s=1.0, idle_s=3600)) as port:
        reader, writer = await port.connect()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b'{"ok":true}\n')
        writer.write(HALF)
        assert await closed(reader)


async def test_the_oldest_idle_connection_makes_room() -> None:
    async with serving(limits=HttpConnectionLimits(connections=3)) as port:
        first, second, third = [await port.half() for _ in range(3)]
        assert await port.get("/status") == 200
        assert await closed(first)
        assert not second.at_eof()
        assert not third.at_eof()


async def test_of_connections_that_were_answered_the_one_without_a_request_for_longest_goes() -> None:
    """A request takes no connection out of the count."""
    async with serving(limits=HttpConnectionLimits(connections=2)) as port:
        first, second = [await port.connect() for _ in range(2)]
        for reader, writer in (first, second, first):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b'{"ok":true}\n')
        assert await port.get("/status") == 200
        async with asyncio.timeout(30):
            assert await closed(second[0])
        assert not first[0].at_eof()


async def test_a_connection_for_a_probe_alone_ends_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever kept it would be refused all else on it, also when there is room again."""
    monkeypatch.setattr("dledger.status.cluster.QUERY_SECONDS", 60)
    source = Stuck()
    async with serving(source, limits=HttpConnectionLimits(connections=1, probes=1)) as port:
        _, busy = await port.connect()
        busy.write(b"GET /cluster HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await source.is_asked.wait()
        reader, writer = await port.connect()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            assert (await reader.read()).endswith(b'{"ok":true}\n')
        source.go.set()


async def test_an_address_with_too_many_connections_loses_its_own() -> None:
    async with serving(limits=HttpConnectionLimits(connections=100, per_address=2)) as port:
        other = await port.half(local="127.0.0.2")
        first = await port.half()
        for _ in range(2):
            await port.half()
        assert await closed(first)
        assert not other.at_eof()


class Stuck(FakeSource):
    """Asks the others without end: /cluster is busy until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def cluster_status(self) -> dict[str, NodeStatus | str]:
        self.is_asked.set()
        await self.go.wait()
        return await super().cluster_status()


async def test_probes_have_slots_when_all_others_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.status.cluster.QUERY_SECONDS", 60)
    source = Stuck()
    async with serving(source, limits=HttpConnectionLimits(connections=1, probes=1)) as port:
        waiting, writer = await port.connect()
        writer.write(b"GET /cluster HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await source.is_asked.wait()
        await port.half()
        assert await port.get("/health") == 200
        assert await port.get("/livez") == 200
        assert await port.get("/status") == 503
        source.go.set()
        assert (await waiting.read()).split()[1] == b"200"


async def test_connections_are_limited_when_all_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.status.cluster.QUERY_SECONDS", 60)
    source = Stuck()
    async with serving(source, limits=HttpConnectionLimits(connections=1, probes=0)) as port:
        _, writer = await port.connect()
        writer.write(b"GET /cluster HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await source.is_asked.wait()
        reader, _ = await port.connect()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        source.go.set()


async def test_connections_without_a_handshake_make_room_too(tmp_path: Path) -> None:
    authority = Authority()
    authority.save(tmp_path)
    authority.issue(tmp_path, "n1", hosts=("127.0.0.1",))
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(tmp_path / "n1.pem", tmp_path / "n1.key")
    async with serving(tls=server_side, limits=HttpConnectionLimits(connections=2)) as port:
        silent = [(await port.connect())[0] for _ in range(3)]  # in plain text: no handshake
        assert await closed(silent[0])
        port.tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        assert await port.get("/livez") == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:80", 200),
        ("[::1]:8080", 200),
        ("LOCALHOST", 200),
        ("n1.example.org:20980", 200),
        ("a.pod.example.net", 200),
        ("example.net.", 200),
        ("attacker.example", 421),
        ("badexample.net", 421),
        ("localhost.attacker.example", 421),
        ("127.0.0.1.attacker.example", 421),
        ("", 421),
    ],
)
async def test_only_names_of_this_server_are_answered(host: str, expected: int) -> None:
    async with serving(allowed_hosts=("n1.example.org", ".example.net")) as port:
        assert await port.get("/status", host=host) == expected


async def test_a_probe_without_a_host_is_answered() -> None:
    async with serving() as port:
        reader, writer = await port.connect()
        writer.write(b"OPTIONS /livez HTTP/1.0\r\n\r\n")
        assert (await reader.read()).split()[1] == b"200"


def test_any_host_may_be_allowed() -> None:
    assert AllowedHosts(["*"]).allow("whatever.example")


def test_one_network_of_ipv6_counts_as_one_address() -> None:
    assert client_address("2001:db8::1") == client_address("2001:db8::ffff:2")
    assert client_address("2001:db8::1") != client_address("2001:db8:0:1::1")
    assert client_address("::ffff:10.0.0.1") == client_address("10.0.0.1")
