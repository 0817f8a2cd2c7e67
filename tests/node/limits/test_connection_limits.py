"""Connections, calls and streams that only wait have limits, too (rule 13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dledger.errors import Code, Overloaded
from dledger.infra.transport import channels
from dledger.infra.transport.channels import open_channel
from dledger.infra.transport.first_messages import FirstMessages
from dledger.node.server import NodeServer
from dledger.rpc import serving
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.log_client import LogClient
from dledger.v1 import log_pb2, log_pb2_grpc, peer_pb2, peer_pb2_grpc
from tests.node.local import CLUSTER, GROUP, make_server, running_nodes, until
from tests.process.cluster import free_ports
from tests.rpc.raw_http2 import RawClient, half_of


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[NodeServer]:
    """n1 of two, alone: we play the other."""
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(2), 1)}
    slow = {"timing": {"heartbeat_ms": 1000, "election_min_ms": 60_000, "election_max_ms": 90_000}}
    server = make_server(tmp_path, "n1", members, slow)
    await server.start()
    yield server
    await server.stop()


def hits(node: NodeServer, name: str) -> int:
    return node.node_status().limits_hit.get(name, 0)


HELLO = peer_pb2.PushRequest(
    envelope=PeerIdentity(CLUSTER, GROUP, "n2", ("n1", "n2"), 1).envelope("n1"), stream_id=1
)


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FirstMessages", partial(FirstMessages, timeout_s=0.1))


@pytest.fixture
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FirstMessages", partial(FirstMessages, limit=2, timeout_s=3600, long_s=0))


@pytest.mark.usefixtures("short_time")
async def test_rule_13_a_push_stream_that_says_nothing_is_ended(follower: NodeServer) -> None:
    async with open_channel(follower.address) as channel:
        push: Any = peer_pb2_grpc.PeerServiceStub(channel).Push()
        assert (await push.read()).refusal.code == Code.TOO_MANY_CONNECTIONS
        assert await push.read() is grpc.aio.EOF
    assert hits(follower, "first_messages") == 1


@pytest.mark.usefixtures("short_time")
@pytest.mark.parametrize("path", ["/dledger.v1.LogService/Append", "/dledger.v1.PeerService/Vote"])
async def test_rule_13_a_call_whose_last_byte_is_withheld_is_ended(follower: NodeServer, path: str) -> None:
    client = await RawClient.connect(follower.address)
    call = client.begin(path)
    await client.send(call, half_of(1 << 20))
    await until(lambda: client.ended == {call})
    assert hits(follower, "first_messages") == 1
    assert client.is_open, "the connection may have good calls"
    await client.close()


@pytest.mark.usefixtures("few_calls")
async def test_rule_13_of_many_streams_that_say_nothing_the_oldest_has_to_go(follower: NodeServer) -> None:
    async with open_channel(follower.address) as channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
        silent = [stub.Push() for _ in range(3)]
        await until(lambda: hits(follower, "first_messages") == 1)
        push = stub.Push()
        await push.write(HELLO)
        assert (await push.read()).incarnation == 1
        reading = {asyncio.ensure_future(stream.read()): stream for stream in silent}
        done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        for answer in done:
            assert answer.result().refusal.code == Code.TOO_MANY_CONNECTIONS
        assert len(done) <= 2 and hits(follower, "first_messages") <= 2
        for stream in silent:
            stream.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


@pytest.mark.usefixtures("short_time")
async def test_rule_13_an_append_stream_too_many_is_ended_though_it_says_nothing(
    tmp_path: Path,
) -> None:
    async with running_nodes(tmp_path, 1, {"limits": {"max_append_streams": 1}}) as (node,):
        async with open_channel(node.address) as channel:
            stub: Any = log_pb2_grpc.LogServiceStub(channel)
            first = stub.AppendStream()
            await first.write(log_pb2.AppendRequest(request_id=1, group=GROUP, bodies=[b"x"]))
            assert (await first.read()).request_id == 1
            for request_id in (0, 7):
                second = stub.AppendStream()
                if request_id:
                    await second.write(log_pb2.AppendRequest(request_id=7, group=GROUP, bodies=[b"y"]))
                answer = await second.read()
                assert (answer.request_id, answer.status.code) == (request_id, Code.TOO_MANY_CONNECTIONS)
                assert await second.read() is grpc.aio.EOF
        assert hits(node, "max_append_streams") == 2


def watch(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())


async def test_rule_13_calls_of_clients_have_a_greatest_number_and_leave_members_alone(
    tmp_path: Path,
) -> None:
    """Also calls that nothing else counts, such as those that watch the health of a node."""
    async with running_nodes(tmp_path, 1, {"limits": {"max_calls": 2}}) as (node,):
        client = LogClient(node.address, GROUP)
        async with open_channel(node.address) as channel:
            watching = [watch(channel) for _ in range(2)]
            for call in watching:
                await call.read()
            with pytest.raises(Overloaded, match="2 calls are under way") as caught:
                await client.get_status(60)
            assert caught.value.code is Code.TOO_MANY_CONNECTIONS
            log: Any = log_pb2_grpc.LogServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await log.Append(log_pb2.AppendRequest(group=GROUP, bodies=[b"x"]))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            peers: Any = peer_pb2_grpc.PeerServiceStub(channel)
            vote = await peers.Vote(peer_pb2.VoteRequest())
            assert vote.refusal.code == Code.UNSUPPORTED_VERSION, "it was looked at"
            assert hits(node, "max_calls") == 2
            watching[0].cancel()
            await until(lambda: node._grpc is not None and node._grpc._calls.under_way == 1)
            assert (await client.get_status(60)).node_id == "n1"
            assert (await log.Append(log_pb2.AppendRequest(group=GROUP, bodies=[b"x"]))).status.code == 0
        await client.close()


async def test_rule_13_calls_of_one_connection_wait_for_each_other_past_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_CALLS_PER_CONNECTION", 2)
    async with (
        running_nodes(tmp_path) as (node,),
        open_channel(node.address) as channel,
        open_channel(node.address) as other,
    ):
        watching = [watch(channel) for _ in range(2)]
        for call in watching:
            await call.read()
        third = watch(channel)
        reading = asyncio.ensure_future(third.read())
        await watch(other).read()
        assert not reading.done()
        watching[0].cancel()
        assert (await reading).status == health_pb2.HealthCheckResponse.SERVING


async def test_rule_13_connections_have_a_greatest_number(tmp_path: Path) -> None:
    """Past it they are closed at once: without a number, since nothing was agreed upon yet."""
    async with running_nodes(tmp_path, 1, {"limits": {"max_connections": 16}}) as (node,):
        host, _, port = node.address.rpartition(":")
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(16)]
        for reader, _ in connections:
            assert await reader.read(1), "gRPC greets with its settings"
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        for _, writer in connections:
            writer.close()
        async with open_channel(node.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            # gRPC may not have seen yet that they are gone: it is tried until it has.
            health = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60, wait_for_ready=True)
        assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_rule_13_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HANDSHAKE_TIMEOUT_MS", 200)
    async with running_nodes(tmp_path) as (node,):
        host, _, port = node.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(60):  # gRPC's own limit is two minutes
            assert b"settings" in await reader.read()
        writer.close()


@pytest.mark.parametrize("soft", [1024, 2048, 20_000])
def test_full_ports_leave_descriptors_for_files_and_the_status_port(
    soft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with a broker has three ports; whoever fills them must not end it."""
    monkeypatch.setattr(channels.resource, "getrlimit", lambda _: (soft, soft))
    made: list[Any] = []
    monkeypatch.setattr(channels, "accepting_server", made.append)
    channels.new_server()
    most = dict(made[0])["grpc.max_allowed_incoming_connections"]
    assert most >= 16 and 3 * most + 720 <= soft
