"""Which errors of a master have a call repeated, and where."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.client.directory import Directory
from broker_adapter.client.routes import StaticRoute
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.rpc.broker_client import BrokerClient


class _Source:
    """The master moves from port 1 to port 2."""

    def __init__(self) -> None:
        self.asked = 0

    async def route(self, topic: str) -> StaticRoute:
        self.asked += 1
        addresses = {0: f"127.0.0.1:{min(self.asked, 2)}"}
        return StaticRoute(topic, {"b": TopicConfig(topic)}, {"b": addresses}, {"b": self.asked})

    async def watch(self, topics: Collection[str]) -> AsyncIterator[StaticRoute]:
        for topic in topics:
            yield await self.route(topic)


async def test_what_a_master_cannot_confirm_is_asked_of_its_successor() -> None:
    directory = Directory(_Source())
    asked: list[str] = []

    async def ask(client: BrokerClient) -> str:
        asked.append(client.address)
        if client.address == "127.0.0.1:1":
            raise error_for(Status.NOT_CONFIRMED, "no majority answers")
        return "answer"

    assert await directory.on_master("b", "t", ask, 10) == "answer"
    assert asked == ["127.0.0.1:1", "127.0.0.1:2"]
    await directory.close()


async def test_what_cannot_be_helped_is_raised_at_once() -> None:
    directory = Directory(_Source())

    async def ask(client: BrokerClient) -> str:
        raise error_for(Status.MESSAGE_NOT_FOUND, "nothing")

    with pytest.raises(BrokerError, match="nothing"):
        await directory.on_master("b", "t", ask, 10)
    await directory.close()
