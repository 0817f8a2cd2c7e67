"""A NameServer over gRPC: registration, streams that break, routes, watchers, settings, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, NameServerBusy, NameServerUnavailable, Status, TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.kv_config import FILE_NAME
from broker_adapter.namesrv.rpc_client import NameServerLink
from broker_adapter.namesrv.rpc_convert import registration_request_of
from broker_adapter.namesrv.rpc_service import SERVICE
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.v1 import namesrv_pb2 as pb
from dledger import DLedgerError
from tests.broker_adapter.namesrv.helpers import ORDERS, address_of, name_server, registration, until
from tests.rpc.other_address import seen_from


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServerProcess]:
    async with name_server(tmp_path / "namesrv") as process:
        yield process


@pytest.fixture
async def client(server: NameServerProcess) -> AsyncIterator[NameServerClient]:
    async with NameServerClient([server.address]) as found:
        yield found


def ids(server: NameServerProcess) -> dict[str, int]:
    return {entry.node_id: entry.broker_id for entry in server.name_server.brokers()}


async def test_a_registration_makes_a_route(client: NameServerClient) -> None:
    [answer] = await client.register(registration("n1", 0, term=3))
    assert (answer.master_address, answer.master_term) == (address_of("n1"), 3)
    await client.register(registration("n2", 2))
    route = await client.route("orders")
    assert route.queues == {"broker-a": ORDERS}
    assert route.brokers == {"broker-a": {0: address_of("n1"), 2: address_of("n2")}}
    assert route.master_terms == {"broker-a": 3}
    assert await client.list_topics() == ["orders"]


async def test_errors_come_over_with_their_number(client: NameServerClient) -> None:
    await client.register(registration("n1", 0, term=3))
    with pytest.raises(BrokerError) as caught:
        await client.register(registration("n2", 0, term=2))
    assert caught.value.status is Status.NAMESRV_STALE_TERM
    with pytest.raises(TopicRefused) as unknown:
        await client.route("nothing")
    assert unknown.value.status is Status.TOPIC_UNKNOWN and unknown.value.response_code == 17
    with pytest.raises(BrokerError) as caught:
        await client.route("a/b")
    assert caught.value.status is Status.TOPIC_NAME_INVALID
    with pytest.raises(BrokerError) as caught:
        await client.unregister("broker-z", "n1")
    assert caught.value.status is Status.NAMESRV_BROKER_UNKNOWN


async def test_bytes_that_are_no_message_are_answered_with_a_number(server: NameServerProcess) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/GetRoute")
        assert b"\x08\x91\x06" in await call(b"\xff\xff\xff\xff")  # code 785, as a varint


async def test_topics_beyond_the_limit_become_no_objects() -> None:
    given = pb.RegisterBrokerRequest(
        cluster="c", broker_name="b", node_id="n1", topics=[pb.TopicQueues()] * 9
    )
    cut = registration_request_of(given.SerializeToString() + b"\x5a\x00" * 500_000, max_topics=20)
    assert cut is not None
    assert (cut.cluster, cut.broker_name, cut.node_id, len(cut.topics)) == ("c", "b", "n1", 21)
    assert registration_request_of(given.SerializeToString(), max_topics=9) == given
    assert registration_request_of(b"\xff", max_topics=9) is None


async def test_health_and_reflection_are_served(server: NameServerProcess) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_stream_that_breaks_takes_the_broker_out_at_once(
    server: NameServerProcess, client: NameServerClient
) -> None:
    await client.register(registration("n2", 2))
    link = NameServerLink(server.address, None)
    session = link.open_session()
    await session.send(registration("n1", 0))
    assert (await session.receive()).master_address == address_of("n1")
    await session.send(registration("n1", 0, role_epoch=2))
    await session.receive()
    assert ids(server) == {"n1": 0, "n2": 2}
    await session.close()
    await link.close()
    await until(lambda: ids(server) == {"n2": 2})
    assert (await client.route("orders")).brokers == {"broker-a": {2: address_of("n2")}}
    assert server.name_server.events[-1].what == "connection-lost"


async def test_a_stream_that_breaks_after_its_successor_has_registered_changes_nothing(
    server: NameServerProcess,
) -> None:
    link = NameServerLink(server.address, None)
    old, new = link.open_session(), link.open_session()
    for session in (old, new):
        await session.send(registration("n1", 0))
        await session.receive()
    await old.close()
    await until(lambda: len(server.name_server.sessions) == 1)
    assert ids(server) == {"n1": 0}
    await new.close()
    await until(lambda: not server.name_server.sessions)
    assert ids(server) == {}
    await link.close()


async def test_a_stream_is_of_one_node(server: NameServerProcess) -> None:
    link = NameServerLink(server.address, None)
    session = link.open_session()
    await session.send(registration("n1", 0))
    await session.receive()
    await session.send(registration("n2", 2))
    with pytest.raises(BrokerError) as caught:
        await session.receive()
    assert caught.value.status is Status.NAMESRV_INVALID
    await session.send(registration("n1", 0, role_epoch=2))  # it goes on
    await session.receive()
    assert ids(server) == {"n1": 0}
    await session.close()
    await link.close()


async def test_streams_of_brokers_are_limited(tmp_path: Path) -> None:
    async with name_server(tmp_path, limits={"max_sessions": 1}) as server:
        link = NameServerLink(server.address, None)
        first = link.open_session()
        await first.send(registration("n1", 0))
        await first.receive()
        second = link.open_session()
        await second.send(registration("n2", 2))
        with pytest.raises(NameServerBusy) as caught:
            await second.receive()
        assert caught.value.status is Status.NAMESRV_LIMIT
        assert server.info().limits_hit == {"session": 1}
        await first.close()
        await second.close()
        await link.close()


async def test_a_watcher_hears_of_a_change_at_once(client: NameServerClient) -> None:
    async with aclosing(client.watch(["orders"])) as routes:
        assert (await anext(routes)).queues == {}
        await client.register(registration("n1", 0, term=1))
        assert (await anext(routes)).brokers == {"broker-a": {0: address_of("n1")}}
        await client.register(registration("n2", 0, term=2))
        changed = await anext(routes)
        assert changed.brokers == {"broker-a": {0: address_of("n2")}}
        assert changed.master_terms == {"broker-a": 2}
        await client.unregister("broker-a", "n2")
        assert (await anext(routes)).queues == {}


async def test_a_watcher_of_all_gets_what_there_is_and_what_comes(client: NameServerClient) -> None:
    many = tuple(TopicConfig(f"t{i}") for i in range(100))
    await client.register(registration("n1", 0, topics=many))
    async with aclosing(client.watch()) as routes:
        assert {(await anext(routes)).topic for _ in many} == {topic.name for topic in many}
        await client.register(registration("n1", 0, topics=(*many, ORDERS), data_version=1))
        assert (await anext(routes)).topic == "orders"


async def test_watchers_are_limited_and_leave_nothing_behind(tmp_path: Path) -> None:
    async with name_server(tmp_path, limits={"max_watchers": 1, "max_watched_topics": 2}) as server:
        link = NameServerLink(server.address, None)
        first = link.watch(["orders"])
        await anext(first)
        for topics in (["orders"], ["a", "b", "c"]):
            with pytest.raises(NameServerBusy) as caught:
                await anext(link.watch(topics))
            assert caught.value.status is Status.NAMESRV_LIMIT
        await first.aclose()
        await until(lambda: len(server.name_server.watchers) == 0)
        again = link.watch(["orders"])
        await anext(again)
        await again.aclose()
        await link.close()


async def test_watchers_and_sessions_are_shared_by_address(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path, limits={"max_watchers": 4, "max_sessions": 4}) as server,
        seen_from("127.0.0.2", server.address) as address,
    ):
        link, other = NameServerLink(server.address, None), NameServerLink(address, None)
        watching = [link.watch(["orders"]) for _ in range(3)]
        for watcher in watching:
            await anext(watcher)
        with pytest.raises(NameServerBusy, match=r"3 of 4 watchers .* raise limits.max_watchers"):
            await anext(link.watch(["orders"]))
        await anext(elsewhere := other.watch(["orders"]))
        for watcher in (elsewhere, watching.pop()):
            await watcher.aclose()
        await until(lambda: len(server.name_server.watchers) == 2)
        await anext(again := link.watch(["orders"]))
        for watcher in (again, *watching):
            await watcher.aclose()

        sessions = [link.open_session() for _ in range(4)]
        for number, session in enumerate(sessions):
            await session.send(registration(f"n{number}", number + 1))
            if number < 3:
                await session.receive()
        with pytest.raises(NameServerBusy, match="3 of 4 streams of registrations"):
            await sessions[3].receive()
        sessions.append(other.open_session())
        await sessions[4].send(registration("n4", 5))
        await sessions[4].receive()
        for session in sessions:
            await session.close()
        await until(lambda: not server.name_server.sessions)
        for one in (link, other):
            await one.close()


async def test_a_burst_beyond_the_queue_is_told_busy_and_the_rest_is_answered(tmp_path: Path) -> None:
    async with name_server(tmp_path, limits={"max_waiting_routes": 1}) as server:
        link = NameServerLink(server.address, None)
        await link.register(registration("n1", 0), 5.0)
        # The places of calls under way are taken; so one more than may wait is too many.
        routes = server.name_server.routes
        held = [routes.admitted() for _ in range(9)]
        entering = [asyncio.create_task(place.__aenter__()) for place in held]
        await until(lambda: sum(task.done() for task in entering) == 8)
        with pytest.raises(NameServerBusy) as caught:
            await link.route("orders", 5.0)
        assert caught.value.status is Status.NAMESRV_BUSY
        # Registrations have a queue of their own.
        await link.register(registration("n1", 0, role_epoch=2), 5.0)
        for place in held[:8]:
            await place.__aexit__(None, None, None)
        await entering[8]
        await held[8].__aexit__(None, None, None)
        assert (await link.route("orders", 5.0)).queues
        assert server.info().limits_hit == {"route": 1}
        await link.close()


async def test_settings_survive_a_restart(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, NameServerClient([server.address]) as client:
        await client.kv_put("ns", "k", "v")
        await client.kv_put("ns", "gone", "v")
        await client.kv_delete("ns", "gone")
    async with name_server(tmp_path) as server, NameServerClient([server.address]) as client:
        assert await client.kv_get("ns", "k") == "v"
        assert await client.kv_list("ns") == {"k": "v"}
        assert await client.kv_list() == {"ns": ""}
        with pytest.raises(BrokerError) as caught:
            await client.kv_get("ns", "gone")
        assert caught.value.status is Status.NAMESRV_CONFIG_UNKNOWN


async def test_a_directory_serves_one_name_server(tmp_path: Path) -> None:
    async with name_server(tmp_path):
        with pytest.raises(DLedgerError, match="another NameServer"):
            async with name_server(tmp_path):
                raise AssertionError("it has started")


async def test_a_broken_settings_file_stops_the_start_and_frees_everything(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(BrokerError, match="move it away"):
        async with name_server(tmp_path):
            raise AssertionError("it has started")
    (tmp_path / FILE_NAME).unlink()
    async with name_server(tmp_path):
        pass


async def test_a_port_in_use_is_an_error(server: NameServerProcess, tmp_path: Path) -> None:
    with pytest.raises(DLedgerError, match="in use"):
        async with name_server(tmp_path / "other", listen=server.address):
            raise AssertionError("it has started")


async def test_write_permission_is_wiped_and_given_back(client: NameServerClient) -> None:
    await client.register(registration("n1", 0))
    assert await client.wipe_write_permission("broker-a") == 1
    assert (await client.route("orders")).queues["broker-a"].perm == 4
    assert (await client.cluster_info()).write_wiped == ["broker-a"]
    assert await client.wipe_write_permission("broker-a", give_back=True) == 1
    assert (await client.route("orders")).queues["broker-a"].perm == 6


async def test_many_topics_come_in_pages(client: NameServerClient) -> None:
    names = [f"%RETRY%{'g' * 200}-{i:05}" for i in range(6000)]  # more than one message of 1 MiB
    await client.register(registration("n1", 0, topics=tuple(map(TopicConfig, names))))
    assert await client.list_topics() == names


async def test_brokers_that_are_silent_expire_by_the_scan(tmp_path: Path) -> None:
    expiry = {"scan_ms": 1, "min_ms": 1, "default_ms": 1}
    async with name_server(tmp_path, expiry=expiry) as server:
        server.name_server.register(registration("n1", 0))
        assert ids(server) == {"n1": 0}
        await until(lambda: ids(server) == {})
        assert server.name_server.counts["expired"] == 1


async def test_nobody_there_says_where(tmp_path: Path) -> None:
    async with NameServerClient(["127.0.0.1:1"]) as client:
        with pytest.raises(NameServerUnavailable, match=r"127\.0\.0\.1:1") as caught:
            await client.route("orders")
        assert caught.value.status is Status.NAMESRV_UNREACHABLE
