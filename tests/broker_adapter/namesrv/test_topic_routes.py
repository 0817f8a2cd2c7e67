"""Routes of topics, which brokers cache for the assignment of queues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

from broker_adapter.api import TopicConfig
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.topic_routes import TopicRoutes
from tests.broker_adapter.namesrv.helpers import name_server, registration


async def test_a_route_has_the_readable_queues_of_all_brokers(tmp_path: Path) -> None:
    hidden = TopicConfig("orders", 4, 8, perm=0)
    async with name_server(tmp_path) as server:
        server.name_server.register(registration("n1", 0))
        server.name_server.register(registration("n1", 0, name="broker-b"))
        server.name_server.register(registration("n1", 0, name="broker-c", topics=[hidden]))
        routes = TopicRoutes([server.address], None)
        found = await routes.readable("orders")
        assert {name: count for name, count in found.items() if "-n1" not in name} == {
            "broker-a": hidden.read_queues,
            "broker-b": hidden.read_queues,
        }
        assert await routes.readable("unknown") == {}
        await routes.close()


async def test_the_last_route_is_valid_while_no_name_server_responds(tmp_path: Path) -> None:
    now_s = 0.0
    async with name_server(tmp_path) as server:
        server.name_server.register(registration("n1", 0))
        routes = TopicRoutes([server.address], None, lambda: now_s)
        before = await routes.readable("orders")
    now_s = 3600.0
    assert await routes.readable("orders") == before != {}
    assert await routes.readable("payments") == {}
    await routes.close()


async def test_requests_for_a_topic_share_a_query(tmp_path: Path) -> None:
    now_s, queries = 0.0, []
    query = NameServerClient.route

    async def counted(client: NameServerClient, topic: str) -> object:
        queries.append(topic)
        return await query(client, topic)

    async with name_server(tmp_path) as server:
        server.name_server.register(registration("n1", 0))
        routes = TopicRoutes([server.address], None, lambda: now_s)
        with patch.object(NameServerClient, "route", counted):
            await asyncio.gather(*(routes.readable("orders") for _ in range(9)))
            await routes.readable("orders")
            assert queries == ["orders"]
            now_s = 6.0
            await routes.readable("orders")
            assert queries == ["orders", "orders"]
        await routes.close()


async def test_without_name_servers_topics_have_no_routes() -> None:
    routes = TopicRoutes([], None)
    assert await routes.readable("orders") == {}
    await routes.close()
