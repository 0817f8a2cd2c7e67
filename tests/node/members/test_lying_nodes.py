"""Additions of nodes that are none, or that say impossible things about themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.core.directories import MAX_DIRECTORY
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.errors import Code, DLedgerError
from dledger.infra.transport.host import GrpcHost, GrpcMethod
from dledger.node.server import NodeServer
from dledger.rpc.admin_service import ADMIN_SERVICE, status_service
from dledger.status.model import NodeStatus
from dledger.v1 import admin_pb2
from tests.node.local import GROUP, running_nodes
from tests.process.cluster import free_ports


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeServer]:
    async with running_nodes(tmp_path) as [server]:
        await server.wait_committed(0)
        yield server


@asynccontextmanager
async def shown(status: Callable[[], NodeStatus], **methods: GrpcMethod) -> AsyncIterator[str]:
    """A server with this status, and other methods; its address."""
    services: dict[str, Any] = {**status_service(GROUP, status)}
    services[ADMIN_SERVICE] |= methods
    host = GrpcHost(services)
    await host.start(f"127.0.0.1:{free_ports(1)[0]}")
    try:
        yield host.address
    finally:
        await host.stop(0)


def new_node(node: NodeServer) -> NodeStatus:
    """The status of a node that can be added."""
    return replace(node.node_status(), node_id="n2", uid=-1, directory=77)


async def refusal_of(node: NodeServer, address: str) -> DLedgerError:
    async with AsyncClient([node.config.address], group=GROUP, timeout=30.0) as client:
        addition = MembershipChange((MemberStep(ChangeKind.ADD, "n2", address),))
        with pytest.raises(DLedgerError) as caught:
            await client.change_members(addition)
        assert [member.node_id for member in node.node_status().members] == ["n1"]
        await client.append(b"the leader works")
    assert len(str(caught.value)) < 2000
    return caught.value


LIES: list[tuple[dict[str, Any], Code]] = [
    ({"directory": 0}, Code.CHANGE_REFUSED),
    ({"directory": -5}, Code.CHANGE_REFUSED),
    ({"directory": MAX_DIRECTORY + 1}, Code.CHANGE_REFUSED),
    ({"uid": 0}, Code.CHANGE_REFUSED),
    ({"uid": -9}, Code.CHANGE_REFUSED),
    ({"node_id": "n" * 1_000_000}, Code.CHANGE_REFUSED),
    ({"node_id": ""}, Code.CHANGE_REFUSED),
    ({"cluster_id": "c" * 1_000_000}, Code.CHANGE_REFUSED),
    ({"group": "other"}, Code.CHANGE_REFUSED),
    ({"data_file_size": 1}, Code.CHANGE_REFUSED),
    ({"flush_mode": "NEVER"}, Code.CHANGE_REFUSED),
    ({"version": "v" * 5_000_000}, Code.LEARNER_NOT_READY),  # longer than a message can be
]


@pytest.mark.parametrize(("lie", "code"), LIES, ids=lambda lie: str(lie)[:40])
async def test_a_node_with_an_impossible_status_is_not_added(
    node: NodeServer, lie: dict[str, Any], code: Code
) -> None:
    async with shown(lambda: replace(new_node(node), **lie)) as address:
        assert (await refusal_of(node, address)).code is code


async def test_a_node_that_says_what_it_is_is_added(node: NodeServer) -> None:
    """The lies above are the only reason to refuse the others."""
    async with (
        shown(lambda: new_node(node)) as address,
        AsyncClient([node.config.address], group=GROUP, timeout=30.0) as client,
    ):
        await client.change_members(MembershipChange((MemberStep(ChangeKind.ADD, "n2", address),)))
        await client.append(b"the leader works")
    assert [member.role for member in node.node_status().members] == ["voter", "learner"]


async def test_a_server_without_a_status_is_not_added(node: NodeServer) -> None:
    async def none(request: object, context: Any) -> admin_pb2.GetStatusResponse:
        return admin_pb2.GetStatusResponse()

    method = GrpcMethod(none, admin_pb2.GetStatusRequest)
    async with shown(node.node_status, GetStatus=method) as address:
        assert (await refusal_of(node, address)).code is Code.CHANGE_REFUSED


async def test_a_port_of_another_protocol_is_not_added(node: NodeServer) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        assert (await refusal_of(node, f"{host}:{port}")).code is Code.LEARNER_NOT_READY
