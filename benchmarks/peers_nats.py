"""Peer system NATS JetStream: three servers with a stream of three replicas on disk.

JetStream 2.9 acknowledges a message when a majority has written it, without an fsync.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import BODY, BenchError, Operation, child, cpu_seconds, free_ports, peer_binary, say

NAME = "NATS"
APT_PACKAGES = ("nats-server",)
_SERVER = "nats-server"
BATCH = 256
_START_SECONDS = 30.0
_NODES = 3
_STREAM = "bench"
_SUBJECT = "bench.entries"


def missing() -> bool:
    return peer_binary(_SERVER) is None


class Nats:
    """A running cluster as the system under test."""

    def __init__(self, stream: Any, pids: dict[str, int], leader_id: str) -> None:
        self._pids = pids
        self.leader_id = leader_id
        self._stream = stream

    def node_cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}

    @property
    def append(self) -> Operation:
        return self._publish

    @property
    def bulk(self) -> Operation:
        return self._publish_batch

    async def _publish(self) -> int:
        await self._stream.publish(_SUBJECT, BODY)
        return 1

    async def _publish_batch(self) -> int:
        """Publish BATCH messages concurrently and wait for all: JetStream 2.9 has no batches."""
        answers = [await self._stream.publish_async(_SUBJECT, BODY) for _ in range(BATCH)]
        await asyncio.gather(*answers)
        return BATCH


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Nats]:
    """Start three servers in `folder`. The context stops all processes."""
    if missing():
        raise BenchError("NATS is not installed")
    import nats

    ports = free_ports(2 * _NODES)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[_NODES:])
    with ExitStack() as stack:
        pids = {}
        for i in range(_NODES):
            config = folder / f"n{i}.conf"
            config.write_text(_config(f"n{i}", folder, ports[i], ports[_NODES + i], routes))
            command = [peer_binary(_SERVER) or _SERVER, "-c", str(config)]
            process = stack.enter_context(child(command, folder / f"n{i}.log"))
            pids[f"n{i}"] = process.pid
        servers = [f"nats://127.0.0.1:{port}" for port in ports[:_NODES]]
        leader = await _make_stream(servers)
        say(f"NATS serves, leader of the stream at {servers[int(leader[1:])]}")
        client = await nats.connect(servers[int(leader[1:])], pending_size=64 << 20)
        try:
            yield Nats(client.jetstream(timeout=30, publish_async_max_pending=16_384), pids, leader)
        finally:
            await client.close()


def _config(name: str, folder: Path, port: int, cluster_port: int, routes: str) -> str:
    return f"""
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder / name}", max_file_store: 64G, max_memory_store: 1G }}
cluster {{ name: bench, listen: "127.0.0.1:{cluster_port}", routes: [{routes}] }}
"""


async def _not_yet(error: Exception) -> None:
    """Ignore connection errors, which the client would log with a traceback: the caller retries."""


async def _make_stream(servers: list[str]) -> str:
    """Create the stream once the cluster is ready. Return the name of the stream's leader."""
    import nats
    from nats.js.api import StorageType

    deadline = time.monotonic() + _START_SECONDS
    reason: Exception | None = None
    while time.monotonic() < deadline:
        try:
            client = await nats.connect(
                servers, max_reconnect_attempts=1, allow_reconnect=False, error_cb=_not_yet
            )
        except (OSError, nats.errors.Error) as error:
            reason = error
            await asyncio.sleep(0.1)
            continue
        try:
            info = await client.jetstream(timeout=5).add_stream(
                name=_STREAM, subjects=[_SUBJECT], storage=StorageType.FILE, num_replicas=_NODES
            )
            if info.cluster is not None and info.cluster.leader:
                return str(info.cluster.leader)
        except nats.errors.Error as error:
            reason = error
            await asyncio.sleep(0.2)
        finally:
            await client.close()
    raise BenchError(f"NATS has no stream after {_START_SECONDS:g} s: {reason}")
