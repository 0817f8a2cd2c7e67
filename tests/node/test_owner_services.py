"""What a program adds to the node it owns: services, status, metrics, and whom leadership is left to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.core import GaugeMetricFamily, Metric

from dledger import Code, ConfigError, InvalidRequest, NodeServer
from dledger.infra.transport.channels import open_channel
from dledger.infra.transport.host import GrpcService
from dledger.node.owner_status import OwnerStatus
from dledger.rpc.log_client import LogClient
from tests.node.local import GROUP, leader_of, make_server, running_nodes, until
from tests.process.cluster import free_ports

ECHO = "test.v1.Echo"


async def echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


def echo_service(name: str = ECHO) -> GrpcService:
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    return GrpcService(name, grpc.method_handlers_generic_handler(name, handlers))


async def test_services_of_the_owner_are_answered_at_the_address_of_the_node(tmp_path: Path) -> None:
    async with (
        running_nodes(tmp_path, services=[echo_service()]) as (node,),
        open_channel(node.address) as channel,
    ):
        assert await channel.unary_unary(f"/{ECHO}/Echo")(b"heard") == b"heard"
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=ECHO))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        names = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        listed = {s.name for s in (await names.read()).list_services_response.service}
        assert {ECHO, "dledger.v1.LogService"} <= listed


async def test_a_service_may_be_added_to_a_node_until_it_starts(tmp_path: Path) -> None:
    def prepare(node: NodeServer) -> None:
        node.add_service(echo_service())
        with pytest.raises(ConfigError, match="gRPC service"):
            node.add_service(echo_service())

    async with running_nodes(tmp_path, prepare=prepare) as (node,), open_channel(node.address) as channel:
        assert await channel.unary_unary(f"/{ECHO}/Echo")(b"heard") == b"heard"
        with pytest.raises(RuntimeError, match="before the node starts"):
            node.add_service(echo_service("other"))


@pytest.mark.parametrize("names", [["dledger.v1.LogService"], ["grpc.health.v1.Health"], ["a", "a"], [""]])
def test_names_of_services_that_are_taken_are_refused(tmp_path: Path, names: list[str]) -> None:
    members = {"n1": f"127.0.0.1:{free_ports(1)[0]}"}
    with pytest.raises(ConfigError, match="gRPC service"):
        make_server(tmp_path, "n1", members, services=[echo_service(name) for name in names])


async def test_what_the_owner_shows_is_in_every_form_of_the_status(tmp_path: Path) -> None:
    said = {"role": "SYNC_MASTER", "behind": 7}

    def prepare(node: NodeServer) -> None:
        node.show_status(lambda: said)
        node.add_metrics(lambda: [GaugeMetricFamily("broker_behind_bytes", "Of the test.", value=7.0)])

    settings = {"http_listen": "127.0.0.1:0"}
    async with running_nodes(tmp_path, 1, settings, prepare=prepare) as (node,):
        assert node.node_status().owner == said
        client = LogClient(node.address, GROUP)
        assert (await client.get_status(5)).owner == said
        await client.close()
        base = f"http://{node.status.http_address}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/status") as answer:
                assert (await answer.json())["owner"] == said
            async with session.get(f"{base}/cluster") as answer:
                assert [n["status"]["owner"] for n in (await answer.json())["nodes"]] == [said]
            async with session.get(f"{base}/metrics") as answer:
                text = await answer.text()
                assert "broker_behind_bytes 7.0" in text and "dledger_term " in text


def bad_status() -> Mapping[str, Any]:
    raise LookupError("nothing to show")


@pytest.mark.parametrize(
    "give",
    [
        bad_status,
        lambda: {"x": object()},
        lambda: {"x": float("nan")},
        lambda: [1],
        lambda: {"x": "y" * 70_000},
    ],
    ids=["raises", "no JSON", "NaN", "no object", "too large"],
)
def test_what_cannot_be_shown_is_an_error_in_its_place(give: Any) -> None:
    owner = OwnerStatus()
    owner.give = give
    shown = owner.shown()
    assert list(shown) == ["error"] and json.dumps(shown)


def test_metrics_that_fail_leave_the_others() -> None:
    def fail() -> Iterable[Metric]:
        raise LookupError("nothing to count")

    owner = OwnerStatus()
    owner.collectors = [fail, lambda: [GaugeMetricFamily("x", "Of the test.", value=1.0)]]
    assert [metric.name for metric in owner.metrics()] == ["x"]


# -- fitness


def owners_seen(leader: NodeServer) -> list[tuple[int, bool]]:
    return [(f.owner_lag_bytes, f.owner_unfit) for f in leader.node_status().followers]


async def test_leadership_is_left_to_the_owner_that_lags_least(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        one, other = (s for s in servers if s is not leader)
        await until(lambda: all(f.push_state == "APPEND" for f in leader.node_status().followers))
        assert owners_seen(leader) == [(-1, False)] * 2
        assert not await leader.hand_over(), "the others have said nothing"
        one.report_fitness(lag_bytes=500, fit=True)
        other.report_fitness(lag_bytes=0, fit=False)
        await until(lambda: sorted(owners_seen(leader)) == [(0, True), (500, False)])
        assert not await other.hand_over(), "it does not lead"
        assert not await leader.hand_over(), "it has said nothing, so it lags by nothing"
        leader.report_fitness(lag_bytes=1000, fit=True)
        assert await leader.hand_over(), "what it has just said counts, not what it said a tick before"
        await until(lambda: one.node_status().is_leader)


async def test_a_leader_that_lags_no_more_than_the_others_keeps_leadership(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        await until(lambda: all(f.push_state == "APPEND" for f in leader.node_status().followers))
        for server in servers:
            server.report_fitness(lag_bytes=10, fit=True)
        await until(lambda: owners_seen(leader) == [(10, False)] * 2)
        assert not await leader.hand_over()
        assert leader.node_status().is_leader


async def test_a_node_that_steps_aside_goes_on_as_a_follower(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        await until(lambda: all(f.push_state == "APPEND" for f in leader.node_status().followers))
        await leader.step_aside()
        await until(lambda: any(s.node_status().is_leader for s in servers if s is not leader))
        await until(lambda: leader.leader_id == leader_of(servers).config.node_id)
        term = leader.term
        await leader.step_aside()
        assert leader.term == term, "it does not lead: there is nothing to do"


async def test_calls_under_way_end_when_a_node_stops_serving(tmp_path: Path) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        has_begun.set()
        await may_end.wait()
        return request

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(slow)}
    service = GrpcService(ECHO, grpc.method_handlers_generic_handler(ECHO, handlers))
    async with (
        running_nodes(tmp_path, services=[service]) as (node,),
        open_channel(node.address) as channel,
    ):
        under_way = asyncio.ensure_future(channel.unary_unary(f"/{ECHO}/Echo")(b"x", timeout=20))
        await has_begun.wait()
        stopping = asyncio.create_task(node.stop_serving(20))
        await asyncio.wait({stopping}, timeout=0.05)
        assert not stopping.done() and not under_way.done()
        may_end.set()
        assert await under_way == b"x"
        await stopping
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(f"/{ECHO}/Echo")(b"y", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_fitness_of_nonsense_is_refused(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (node,):
        with pytest.raises(InvalidRequest) as caught:
            node.report_fitness(lag_bytes=-1, fit=True)
        assert caught.value.code is Code.UNEXPECTED_ARGUMENT
        assert not await asyncio.wait_for(node.hand_over(), 5)
