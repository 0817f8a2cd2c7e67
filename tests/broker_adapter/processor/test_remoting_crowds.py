"""One request that concerns tens of thousands of members: no step of the event loop is for all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.errors import ResponseCode
from broker_adapter.processor.bodies import heartbeat
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.processor.asker import LISTEN, Asker
from tests.broker_adapter.processor.test_remoting_consumers import beat

RESET = RequestCode.RESET_CONSUMER_CLIENT_OFFSET


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 1, LISTEN) as cluster:
        await cluster.master()
        yield cluster


async def test_a_reset_tells_each_connection_once_and_nothing_that_it_need_not_know(
    cluster: BrokerCluster,
) -> None:
    """A connection may be thousands of members: told each time, with any text that the request had for a
    flag, it was hundreds of megabytes in one step, and the leader lost its office."""
    told: list[RemotingCommand] = []

    async def reset(connection: RemotingConnection, request: RemotingCommand) -> None:
        told.append(request)

    dispatch = Dispatch()
    dispatch.register([RESET, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], reset, Executor("all", 99, 99))
    master = await cluster.master()
    asker = Asker(await connect(master.remoting.address, timeout_s=10, dispatch=dispatch))
    await asker.send("t", b"one", 0)
    for number in range(30):
        await asker.get(RequestCode.HEART_BEAT, beat(f"c{number}", "g", "t"))
    wanted = {"topic": "t", "group": "g", "timestamp": 0, "isForce": "true" + "x" * 100_000}
    answer = await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **wanted)
    assert answer.code == ResponseCode.SUCCESS, answer
    await asker.get(RequestCode.HEART_BEAT, beat("c0", "g", "another"))  # told behind it
    async with asyncio.timeout(60):
        while not any(one.code == RESET for one in told):
            await asyncio.sleep(0)
    resets = [one for one in told if one.code == RESET]
    assert [one.fields["isForce"] for one in resets] == ["false"]
    asker.connection.close("done")


class Leaving:
    """A connection that ends when it is told something, as one does that reads nothing."""

    def __init__(self, number: int, clients: RemotingClients) -> None:
        self.peer = f"127.0.0.{number % 200 + 1}:{number}"
        self.told = 0
        self._clients = clients

    def notify(self, request: RemotingCommand) -> None:
        if request.code == RESET:
            self.told += 1
            self._clients.channel_closed(self, "unread")  # type: ignore[arg-type]


async def test_members_that_leave_while_their_group_is_told_hinder_nobody() -> None:
    clients = RemotingClients()
    members = [Leaving(number, clients) for number in range(100)]
    for number, one in enumerate(members):
        said: dict[str, Any] = {"clientID": f"c{number}", "consumerDataSet": [{"groupName": "g"}]}
        clients.heard_of(one, heartbeat(json.dumps(said).encode()))  # type: ignore[arg-type]
    while clients.is_telling:
        await asyncio.sleep(0)
    clients.tell_group("g", RemotingCommand.oneway(RESET))
    most = before = 0
    while (at := sum(one.told for one in members)) < 100:
        most, before = max(most, at - before), at
        await asyncio.sleep(0)
    assert [one.told for one in members] == [1] * 100
    assert most <= 4
    assert not clients.consumers
