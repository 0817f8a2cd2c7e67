"""Peer system etcd: three nodes, with single puts and, as bulk operation, transactions of 128 puts.

The client uses grpc.aio with the part of etcd's interface in `etcd_kv.proto`, which is compiled at run time.
It
connects to the leader, does not parse responses, and spreads calls over several connections, which is faster
than one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from benchmarks.common import BODY, BenchError, Operation, child, cpu_seconds, free_ports, peer_binary, say
from dledger.infra.transport.channels import channel_options

NAME = "etcd"
APT_PACKAGES = ("etcd-server",)
BULK_PUTS = 128  # etcd's limit of operations in one transaction
_START_SECONDS = 30.0
_NODES = 3
_CHANNELS = 4


def missing() -> bool:
    return peer_binary(NAME) is None


class EtcdClient:
    """Puts distinct keys through several connections in turn."""

    def __init__(self, address: str) -> None:
        # grpcio-tools compiles etcd_kv.proto into a module at this point.
        self._messages: Any = grpc.protos("benchmarks/etcd_kv.proto")
        # One connection per channel; by default, all channels to an address share one.
        self._channels = [
            grpc.aio.insecure_channel(address, options=channel_options()) for _ in range(_CHANNELS)
        ]
        self._puts: Iterator[Any] = itertools.cycle(
            [c.unary_unary("/etcdserverpb.KV/Put") for c in self._channels]
        )
        self._txns: Iterator[Any] = itertools.cycle(
            [c.unary_unary("/etcdserverpb.KV/Txn") for c in self._channels]
        )
        self._numbers = itertools.count()

    def _put_request(self) -> Any:
        return self._messages.PutRequest(key=b"%020d" % next(self._numbers), value=BODY)

    async def put(self) -> int:
        request: Any = self._put_request().SerializeToString()
        await next(self._puts)(request)
        return 1

    async def bulk(self) -> int:
        ops = [self._messages.RequestOp(request_put=self._put_request()) for _ in range(BULK_PUTS)]
        request: Any = self._messages.TxnRequest(success=ops).SerializeToString()
        await next(self._txns)(request)
        return BULK_PUTS

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class Etcd:
    """A running cluster as the system under test."""

    def __init__(self, client: EtcdClient, pids: dict[str, int], leader_id: str) -> None:
        self._pids = pids
        self.leader_id = leader_id
        self.append: Operation = client.put
        self.bulk: Operation = client.bulk

    def node_cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Etcd]:
    """Start three nodes in `folder`. The context stops all processes."""
    if missing():
        raise BenchError("etcd is not installed")
    ports = free_ports(2 * _NODES)
    clients = {f"e{i}": f"http://127.0.0.1:{ports[i]}" for i in range(_NODES)}
    peers = {f"e{i}": f"http://127.0.0.1:{ports[_NODES + i]}" for i in range(_NODES)}
    with ExitStack() as stack:
        pids = {}
        for name in clients:
            command = _command(name, folder, clients, peers)
            process = stack.enter_context(child(command, folder / f"{name}.log"))
            pids[name] = process.pid
        leader = await asyncio.to_thread(_wait_for_leader, list(clients.values()))
        say(f"etcd serves, leader at {leader}")
        client = EtcdClient(leader.removeprefix("http://"))
        try:
            yield Etcd(client, pids, next(name for name, url in clients.items() if url == leader))
        finally:
            await client.close()


def _command(name: str, folder: Path, clients: Mapping[str, str], peers: Mapping[str, str]) -> list[str]:
    """Build the command line: etcd's defaults, except for a larger quota and a less verbose log."""
    options = {
        "name": name,
        "data-dir": str(folder / name),
        "listen-client-urls": clients[name],
        "advertise-client-urls": clients[name],
        "listen-peer-urls": peers[name],
        "initial-advertise-peer-urls": peers[name],
        "initial-cluster": ",".join(f"{other}={url}" for other, url in peers.items()),
        "initial-cluster-state": "new",
        "quota-backend-bytes": str(8 << 30),
        "logger": "zap",
        "log-level": "error",
    }
    return [peer_binary(NAME) or NAME, *(f"--{key}={value}" for key, value in options.items())]


def _wait_for_leader(urls: list[str]) -> str:
    """Return the client address of the leader, found through etcd's JSON gateway."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        for url in urls:
            try:
                request = urllib.request.Request(f"{url}/v3/maintenance/status", b"{}")
                with urllib.request.urlopen(request, timeout=1) as response:
                    status = json.load(response)
            except (OSError, urllib.error.URLError, ValueError):
                continue
            if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                return url
        time.sleep(0.05)
    raise BenchError(f"etcd has no leader after {_START_SECONDS:g} s")
