"""Nodes inside the test's own process, over real sockets and disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dledger.errors import DLedgerError
from dledger.infra.files.disk import Disk
from dledger.infra.loops.wall_clock import wall_ms
from dledger.node.machine.state_machine import StateMachine
from dledger.node.server import NodeServer
from dledger.node.setup.config import parse_config
from dledger.rpc.serving import GrpcService
from dledger.store.identity import Identity, first_incarnation, init_directory
from tests.process.cluster import free_ports

CLUSTER, GROUP = "c", "g"

#: No election may disturb a test: a machine that stands still for two seconds costs no leadership. A leader
#: that ends is replaced at once all the same; one that is cut off, or alone, in three to four seconds.
PATIENT: dict[str, Any] = {
    "heartbeat_ms": 100,
    "election_min_ms": 3000,
    "election_max_ms": 4000,
    "silence_ms": 0,
}


def make_server(
    folder: Path,
    node: str,
    members: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
    *,
    data_file_size: int = 4 << 20,
    machine: StateMachine | None = None,
    disk: Disk | None = None,
    wall_ms: Callable[[], int] = wall_ms,
    rejoining: bool = False,
    owned: bool = False,
    services: Sequence[GrpcService] = (),
) -> NodeServer:
    """A node that is not started; its directory is made if there is none."""
    directory = folder / node
    if not directory.exists():
        identity = Identity(CLUSTER, GROUP, node, data_file_size=data_file_size)
        if rejoining:
            init_directory(directory, identity, incarnation=first_incarnation(), rejoining=True)
        else:
            init_directory(directory, identity)

    def fail(error: DLedgerError) -> None:
        raise AssertionError(f"{node} would have ended its process: {error}")

    content = {
        "directory": str(directory),
        "node_id": node,
        "cluster_id": CLUSTER,
        "group": GROUP,
        "members": dict(members),
        "timing": PATIENT,
        **(settings or {}),
    }
    return NodeServer(
        parse_config(content),
        machine,
        on_fatal=fail,
        disk=disk,
        wall_ms=wall_ms,
        owned=owned,
        services=services,
    )


@asynccontextmanager
async def running_nodes(
    folder: Path,
    count: int = 1,
    settings: Mapping[str, Any] | None = None,
    *,
    data_file_size: int = 4 << 20,
    machines: Mapping[str, StateMachine] | None = None,
    disks: Mapping[str, Disk] | None = None,
    clocks: Mapping[str, Callable[[], int]] | None = None,
    owned: bool = False,
    services: Sequence[GrpcService] = (),
    prepare: Callable[[NodeServer], None] = lambda _: None,
) -> AsyncIterator[list[NodeServer]]:
    """`count` started nodes, one of which leads; stopped at the end. `prepare` gets each before its start."""
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(count), 1)}
    servers = [
        make_server(
            folder,
            node,
            members,
            settings,
            data_file_size=data_file_size,
            machine=(machines or {}).get(node),
            disk=(disks or {}).get(node),
            wall_ms=(clocks or {}).get(node, wall_ms),
            owned=owned,
            services=services,
        )
        for node in members
    ]
    try:
        for server in servers:
            prepare(server)
            await server.start()
        await first_leader(servers)
        yield servers
    finally:
        for server in servers:
            await server.stop()


async def first_leader(servers: Sequence[NodeServer]) -> None:
    """Until one of them leads. The last one stands at once, where all would wait for a time-out."""
    shell, core = servers[-1]._shell, servers[-1]._replica.core
    if core.leader_id is None:
        core.election_deadline_ms = core.now_ms
        assert shell.ticker is not None
        shell.ticker.reschedule()
    await until(lambda: any(s.node_status().is_leader for s in servers))


async def until(condition: Callable[[], bool], within_s: float = 120.0) -> None:
    """Look again after each turn of the event loop: what is waited for happens on the same loop."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline, "not reached in time"
        turn = loop.create_future()
        loop.call_later(0.005, turn.set_result, None)
        await turn


def leader_of(servers: list[NodeServer]) -> NodeServer:
    return max(servers, key=lambda s: (s.node_status().is_leader, s.node_status().term))
