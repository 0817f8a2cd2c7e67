"""A NameServer and its client: routes, errors, settings, limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker_adapter.client.core.route_data import QueueData
from broker_adapter.errors import BrokerError, NameServerBusy, NameServerUnavailable, Status, TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.kv_config import FILE_NAME
from broker_adapter.namesrv.registration import RemotingRegistrationSession
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import NO_TERM, RegistrationAnswer
from dledger import DLedgerError
from tests.broker_adapter.namesrv.helpers import (
    OlderNameServer,
    address_of,
    name_server,
    registration,
    until,
)
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


async def test_a_registration_makes_a_route(server: NameServerProcess, client: NameServerClient) -> None:
    server.name_server.register(registration("n1", 0, term=3))
    server.name_server.register(registration("n2", 2))
    route = await client.route("orders")
    assert route.queues == (QueueData("broker-a", 4, 8, 6),)
    assert route.brokers["broker-a"].addresses == {0: address_of("n1"), 2: address_of("n2")}
    assert route.master_terms == {"broker-a": 3}
    assert await client.list_topics() == ["orders"]
    info = await client.cluster_info()
    assert [(entry.node_id, entry.term, entry.role) for entry in info.brokers] == [
        ("n1", 3, "MASTER"),
        ("n2", 1, "SLAVE"),
    ]


async def test_an_older_name_server_names_brokers_and_addresses(tmp_path: Path) -> None:
    """As RocketMQ's: what it does not know is shown as not known."""
    async with (
        name_server(tmp_path, OlderNameServer) as server,
        NameServerClient([server.address]) as client,
    ):
        server.name_server.register(registration("n1", 0, term=3))
        server.name_server.register(registration("n2", 2))
        route, info = await client.route("orders"), await client.cluster_info()
    assert route.master("broker-a") == address_of("n1") and not route.master_terms
    assert [(entry.broker_name, entry.broker_id, entry.address, entry.term) for entry in info.brokers] == [
        ("broker-a", 0, address_of("n1"), NO_TERM),
        ("broker-a", 2, address_of("n2"), NO_TERM),
    ]


async def test_errors_come_over_with_their_number(client: NameServerClient) -> None:
    with pytest.raises(TopicRefused) as unknown:
        await client.route("nothing")
    assert unknown.value.status is Status.TOPIC_UNKNOWN
    with pytest.raises(BrokerError) as caught:
        await client.route("a/b")
    assert caught.value.status is Status.TOPIC_NAME_INVALID
    with pytest.raises(BrokerError) as caught:
        await client.wipe_write_permission("broker-z")
    assert caught.value.status is Status.NAMESRV_BROKER_UNKNOWN


async def test_registrations_are_limited_and_shared_by_address(tmp_path: Path) -> None:
    """One address has three quarters of them."""
    async with (
        name_server(tmp_path, limits={"max_sessions": 4}) as server,
        seen_from("127.0.0.2", server.address) as address,
        AsyncExitStack() as stack,
    ):

        async def register(number: int, at: str) -> RegistrationAnswer:
            session = RemotingRegistrationSession(at, beat_s=1_000.0)
            stack.push_async_callback(session.close)
            return await session.register(registration(f"n{number}", number + 1))

        for number in range(3):
            await register(number, server.address)
        with pytest.raises(NameServerBusy, match="3 of 4 nodes are registered") as caught:
            await register(3, server.address)
        assert caught.value.status is Status.NAMESRV_LIMIT
        await register(3, address)
        assert server.info().limits_hit == {"session": 1}
        await stack.aclose()
        await until(lambda: not server.name_server.sessions)
        assert ids(server) == {}


async def test_a_full_queue_refuses_and_others_have_their_own(
    server: NameServerProcess, client: NameServerClient
) -> None:
    routes = server.name_server.routes
    while routes.admit() is None:
        pass
    with pytest.raises(NameServerUnavailable, match="system busy"):
        await client.route("orders")
    await client.kv_put("ns", "k", "v")
    routes.leave()
    server.name_server.register(registration("n1", 0))
    assert (await client.route("orders")).queues


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


async def test_write_permission_is_wiped_and_given_back(
    server: NameServerProcess, client: NameServerClient
) -> None:
    server.name_server.register(registration("n1", 0))
    assert await client.wipe_write_permission("broker-a") == 1
    assert [one.permission for one in (await client.route("orders")).queues] == [4]
    assert (await client.cluster_info()).write_wiped == ["broker-a"]
    assert await client.wipe_write_permission("broker-a", give_back=True) == 1
    assert [one.permission for one in (await client.route("orders")).queues] == [6]


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
