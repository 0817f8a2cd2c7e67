"""Starting and stopping nodes: what is refused, what is left behind, who leads afterwards."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dledger.errors import Code, DLedgerError
from dledger.infra.transport.channels import open_channel
from dledger.rpc.log_client import LogClient
from dledger.store.disk_store import DiskLogStore
from tests.node.local import GROUP, leader_of, make_server, running_nodes, until
from tests.process.cluster import free_ports


async def assert_refused(folder: Path, code: Code, *words: str, node: str = "n1", port: int = 0) -> None:
    server = make_server(folder, node, {node: f"127.0.0.1:{port or free_ports(1)[0]}"})
    with pytest.raises(DLedgerError) as caught:
        await server.start()
    assert caught.value.code is code
    for word in words:
        assert word in str(caught.value)


async def test_a_port_in_use_is_named_and_the_directory_is_released(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        await assert_refused(tmp_path, Code.PORT_IN_USE, str(port), port=port)
    DiskLogStore.open(tmp_path / "n1").close()


async def test_directories_that_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    await assert_refused(tmp_path, Code.NOT_INITIALIZED)
    make_server(tmp_path, "n2", {"n2": "127.0.0.1:1"})
    (tmp_path / "n2").rename(tmp_path / "n3")
    await assert_refused(tmp_path, Code.FOREIGN_DIRECTORY, "n2", node="n3")


async def test_a_locked_directory(tmp_path: Path) -> None:
    async with running_nodes(tmp_path):
        await assert_refused(tmp_path, Code.DIRECTORY_LOCKED)


async def test_limits_that_the_data_files_cannot_keep(tmp_path: Path) -> None:
    members = {"n1": f"127.0.0.1:{free_ports(1)[0]}"}
    with pytest.raises(DLedgerError, match="max_batch_bytes"):
        make_server(tmp_path, "n1", members, {"limits": {"max_batch_bytes": 4 << 20}})


async def test_without_a_limit_of_their_own_small_data_files_bound_a_batch(tmp_path: Path) -> None:
    """As directories have that were made when the default was less than it is now."""
    async with running_nodes(tmp_path, 1, data_file_size=1 << 20) as (server,):
        assert server.max_batch_bytes == server.log.limits.max_batch_bytes == (1 << 20) - 8


async def test_each_start_is_a_new_incarnation_and_nothing_is_lost(tmp_path: Path) -> None:
    for round_ in range(1, 4):
        async with running_nodes(tmp_path) as (node,):
            assert node.node_status().incarnation == round_
            client = LogClient(node.address, GROUP)
            stream = client.open_append_stream()
            await stream.send(1, [b"round %d" % round_], None, 5000)
            answer = await stream.receive()
            assert answer.error is None and answer.index == 2 * round_ - 1
            await client.close()


async def test_health_and_reflection(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (node,), open_channel(node.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "dledger.v1.LogService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(service="nothing"))
        names = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        listed = {s.name for s in (await names.read()).list_services_response.service}
        assert {"dledger.v1.LogService", "dledger.v1.AdminService", "grpc.health.v1.Health"} <= listed


async def test_linearizable_reads_on_every_node(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        await until(lambda: all(s.node_status().leader_id for s in servers))
        leader = leader_of(servers)
        clients = [LogClient(s.address, GROUP) for s in servers]
        writer = LogClient(leader.address, GROUP)
        stream = writer.open_append_stream()
        for number in range(20):
            await stream.send(number, [b"%d" % number], None, 5000)
            answer = await stream.receive()
            assert answer.error is None
            for client in clients:  # read your own write, anywhere
                chunks = client.read(answer.index, 1, follow=False, linearizable=True, include_internal=False)
                found = b"".join([chunk.frames async for chunk in chunks])
                assert found.endswith(b"%d" % number)
        for client in (*clients, writer):
            await client.close()


async def test_a_leader_that_stops_hands_over_first(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        await until(lambda: all(f.connected for f in leader_of(servers).node_status().followers))
        leader = leader_of(servers)
        others = [s for s in servers if s is not leader]
        await until(lambda: all(f.push_state == "APPEND" for f in leader.node_status().followers))
        term = leader.node_status().term
        await leader.stop()
        servers.remove(leader)
        await until(lambda: any(s.node_status().is_leader for s in others))
        new = leader_of(others).node_status()
        assert new.term > term  # on a busy machine the first attempt may come too late
        causes = [e.cause for s in others for e in s.node_status().elections]
        assert "transfer" in causes and "stream-lost" not in causes


async def test_the_status_page_names_its_port_when_it_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        members = {"n1": f"127.0.0.1:{free_ports(1)[0]}"}
        server = make_server(tmp_path, "n1", members, {"http_listen": f"127.0.0.1:{port}"})
        with pytest.raises(DLedgerError, match=str(port)) as caught:
            await server.start()
        assert caught.value.code is Code.PORT_IN_USE
    DiskLogStore.open(tmp_path / "n1").close()
