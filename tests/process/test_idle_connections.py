"""Idle connections, more than a process has descriptors for: nodes stay up, and who is good is served."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dledger.infra.files.descriptors import RESERVE
from tests.node.local import until
from tests.process.cluster import ProcessCluster
from tests.process.workload import Workload, assert_nothing_lost

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-idle-connections")]

IDLE = 1500
LIMIT = 1024


class SmallProcesses(ProcessCluster):
    """Nodes that may have no more than LIMIT descriptors."""

    def _command(self, node: str) -> list[str]:
        return ["sh", "-c", f'ulimit -n {LIMIT} && exec "$0" "$@"', *super()._command(node)]


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For this end of the connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < IDLE + 500:
        pytest.skip("IDLE CONNECTIONS DID NOT RUN: this process may have too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def idle(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def kept(pid: int) -> int:
    """Descriptors that a process keeps for files."""
    held = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held += link.readlink() == Path(os.devnull)
    return held


@pytest.mark.usefixtures("many_descriptors")
async def test_idle_connections_end_no_node_and_keep_nobody_from_being_served(tmp_path: Path) -> None:
    async with SmallProcesses(tmp_path) as cluster:
        leader = await cluster.leader()
        connections: list[socket.socket] = []
        try:
            async with Workload(cluster) as load:
                await load.progress(20)
                # A node that opens a file takes one of them for a moment.
                await until(lambda: all(kept(p.pid) >= RESERVE for p in cluster.processes.values()))
                for _ in range(IDLE):
                    connections.append(await asyncio.to_thread(idle, cluster.members[leader]))
                await load.progress(50)
            # Nor who comes only now: connections that say nothing have had their time by then.
            async with Workload(cluster, first=100_000) as late:
                await late.progress(20)
        finally:
            for one in connections:
                one.close()
        assert all(process.returncode is None for process in cluster.processes.values()), "all nodes are up"
        await assert_nothing_lost(cluster, load.acknowledged | late.acknowledged)
