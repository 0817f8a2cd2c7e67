"""The client: any NameServer will do, and one that is gone stops nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.errors import BrokerError, NameServerUnavailable, Status, TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import ClusterInfo
from tests.broker_adapter.namesrv.helpers import name_server, registration

NOBODY = "127.0.0.1:1"


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[list[NameServerProcess]]:
    async with name_server(tmp_path / "one") as one, name_server(tmp_path / "two") as other:
        yield [one, other]


async def test_a_dead_server_is_passed_over(two: list[NameServerProcess]) -> None:
    two[0].name_server.register(registration("n1", 0))
    async with NameServerClient([NOBODY, two[0].address]) as client:
        assert [one.broker_name for one in (await client.route("orders")).queues] == ["broker-a"]
        assert await client.list_topics() == ["orders"]
        assert len((await client.cluster_info()).brokers) == 1


async def test_a_server_that_knows_nothing_yet_is_not_the_last_word(two: list[NameServerProcess]) -> None:
    two[1].name_server.register(registration("n1", 0))
    async with NameServerClient([server.address for server in two]) as client:
        assert (await client.route("orders")).queues
        with pytest.raises(TopicRefused):
            await client.route("unknown")


async def test_a_topic_that_one_does_not_know_while_another_is_silent_is_unknown(
    two: list[NameServerProcess],
) -> None:
    async with NameServerClient([NOBODY, two[0].address]) as client:
        with pytest.raises(TopicRefused):
            await client.route("unknown")


async def test_changes_go_to_every_server(two: list[NameServerProcess]) -> None:
    async with NameServerClient([server.address for server in two]) as client:
        for server in two:
            server.name_server.register(registration("n1", 0))
        await client.kv_put("ns", "k", "v")
        assert await client.wipe_write_permission("broker-a") == 1
        for server in two:
            assert server.name_server.kv.get("ns", "k") == "v"
            assert server.info().write_wiped == ["broker-a"]
        await client.kv_delete("ns", "k")
        assert [len(server.name_server.kv) for server in two] == [0, 0]


async def test_a_change_that_reached_only_some_is_an_error(two: list[NameServerProcess]) -> None:
    async with NameServerClient([two[0].address, NOBODY]) as client:
        with pytest.raises(NameServerUnavailable) as caught:
            await client.kv_put("ns", "k", "v")
        assert caught.value.status is Status.NAMESRV_UNREACHABLE
    assert two[0].name_server.kv.get("ns", "k") == "v"


async def test_each_server_is_asked_how_it_is(two: list[NameServerProcess]) -> None:
    async with NameServerClient([two[0].address, NOBODY]) as client:
        infos = await client.cluster_infos()
    assert isinstance(infos[two[0].address], ClusterInfo)
    assert isinstance(infos[NOBODY], BrokerError)


def test_a_client_needs_an_address() -> None:
    with pytest.raises(ValueError, match="address"):
        NameServerClient([])
