"""Floods of connections to every port of a broker that may open 1,024 files: good clients are served."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from broker_adapter.errors import BrokerError
from tests.broker_adapter.process.processes import BROKER, SMALL, TIMING
from tests.broker_adapter.v4.asker import asking
from tests.process.cluster import free_ports
from tests.process.test_idle_connections import LIMIT, SmallProcesses, idle

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-floods")]

FLOOD = 700  # to each of four ports
HALF = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-More: "


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For this end of the connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4 * FLOOD + 500:
        pytest.skip("FLOODS DID NOT RUN: this process may have too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def half_request(address: str) -> socket.socket:
    made = idle(address)
    made.sendall(HALF)
    return made


async def http_status(address: str, path: str) -> int:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return int((await reader.read()).split()[1])
    finally:
        writer.close()


async def sends(address: str, within_s: float) -> None:
    """Over a new connection. At the latest after this time: silent ones have had theirs by then."""
    trying = AsyncRetrying(
        retry=retry_if_exception_type((BrokerError, AssertionError)),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(within_s),
    )

    async def send() -> None:
        async with asking(address) as asker:
            await asker.send("orders", b"x")

    await trying(send)


@pytest.mark.usefixtures("many_descriptors")
async def test_floods_of_connections_end_no_broker_and_keep_nobody_from_being_served(tmp_path: Path) -> None:
    http, plain, remoting = (f"127.0.0.1:{port}" for port in free_ports(3))
    doors = {"rocketmq_v2": {"listen": plain}, "remoting": {"listen": remoting, "send_listen": "127.0.0.1:0"}}
    program = {"factory": BROKER, "settings": {**SMALL, **doors}}
    settings = {"timing": TIMING, "http_listen": http, "program": program}
    async with SmallProcesses(tmp_path, 1, settings=settings) as cluster:
        node = await cluster.leader()
        connections: list[socket.socket] = []
        await sends(remoting, 60)
        async with asking(remoting) as good:
            try:
                await good.send("orders", b"x")
                for _ in range(FLOOD):
                    connections.append(await asyncio.to_thread(half_request, http))
                    for address in (plain, remoting, cluster.members[node]):
                        connections.append(await asyncio.to_thread(idle, address))
                assert len(connections) > 2 * LIMIT
                for path in ("/livez", "/leader", "/health"):
                    assert (path, await http_status(http, path)) == (path, 200)
                await good.send("orders", b"x")
                await sends(remoting, 60)
            finally:
                for one in connections:
                    one.close()
        assert cluster.processes[node].returncode is None
