"""Request and reply: the answer comes to the producer that waits for it, whichever node it was sent to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_adapter.config.settings import parse_settings
from broker_adapter.endpoints.v4.serving import default_topics
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.wire.properties import split_properties
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, send_fields
from tests.broker_adapter.v4.test_remoting_consumers import pull, records

REPLY = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "waits"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 2, LISTEN) as cluster:
        await cluster.master()
        yield cluster


def addresses(cluster: BrokerCluster) -> tuple[str, str]:
    """Of the master, and of the slave."""
    nodes = sorted(cluster.programs.values(), key=lambda one: one.writer.expected is None)
    return nodes[0].remoting.address, nodes[1].remoting.address


@asynccontextmanager
async def waiting(address: str, code: int = 0) -> AsyncIterator[tuple[Asker, list[RemotingCommand]]]:
    """A producer with the id `waits`, that answers what it is told with `code`."""
    told: list[RemotingCommand] = []

    async def take(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        told.append(request)
        return request.answer(code)

    dispatch = Dispatch()
    dispatch.register([RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT], take, Executor("all", 9, 9))
    asker = Asker(await connect(address, timeout_s=10, dispatch=dispatch))
    said = {"clientID": "waits", "producerDataSet": [{"groupName": "p"}]}
    await asker.get(RequestCode.HEART_BEAT, json.dumps(said).encode())
    try:
        yield asker, told
    finally:
        asker.connection.close("done")


async def reply(address: str, code: int = RequestCode.SEND_REPLY_MESSAGE_V2, **more: str) -> RemotingCommand:
    async with asking(address) as asker:
        fields = send_fields("DefaultCluster_REPLY_TOPIC", 0, **(REPLY | more))
        if code == RequestCode.SEND_REPLY_MESSAGE:
            names = {"a": "producerGroup", "b": "topic", "e": "queueId", "i": "properties"}
            fields = {long: fields[short] for short, long in names.items()}
        return await asker.ask(code, b"answer", **fields)


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize(("connected_to", "sent_to"), [(0, 0), (1, 1), (0, 1)])
async def test_an_answer_comes_to_the_client_that_waits(
    cluster: BrokerCluster, code: int, connected_to: int, sent_to: int
) -> None:
    """Connected to the node that it is sent to, or to the master."""
    nodes = addresses(cluster)
    async with waiting(nodes[connected_to]) as (_, told):
        answer = await reply(nodes[sent_to], code)
        assert (answer.code, answer.fields["msgId"]) == (ResponseCode.SUCCESS, "0")
        (pushed,) = told
        assert pushed.body == b"answer"
        assert split_properties(pushed.fields["properties"]) == REPLY
        assert pushed.fields["storeHost"] in cluster.members.values()
        assert {"bornHost", "storeTimestamp", "producerGroup", "topic", "queueId"} <= pushed.fields.keys()


async def test_an_answer_that_nobody_takes_fails_so_that_its_sender_asks_another_node(
    cluster: BrokerCluster,
) -> None:
    master, slave = addresses(cluster)
    for address in (master, slave):
        answer = await reply(address)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "807 CLIENT_NOT_CONNECTED" in (answer.remark or "")
    async with waiting(slave):
        assert (await reply(master)).code == ResponseCode.SYSTEM_ERROR
        assert (await reply(slave)).code == ResponseCode.SUCCESS
    async with waiting(slave, code=1):
        assert (await reply(slave)).code == ResponseCode.SYSTEM_ERROR
    async with asking(master) as asker:
        nameless = await asker.ask(RequestCode.SEND_REPLY_MESSAGE_V2, **send_fields("x_REPLY_TOPIC", 0))
        assert "properties[REPLY_TO_CLIENT] is null" in (nameless.remark or "")


async def test_a_request_says_of_which_cluster_it_is(cluster: BrokerCluster) -> None:
    """Java makes the topic of the answer of it."""
    async with asking(addresses(cluster)[1]) as asker:
        await asker.send("t", b"q", 0, CORRELATION_ID="c1", REPLY_TO_CLIENT="waits", TTL="3000")
        await asker.send("t", b"plain", 0, mine="x")
        request, plain = records((await pull(asker, "t", 0)).body)
        assert split_properties(request.properties)["CLUSTER"] == "DefaultCluster"
        assert split_properties(plain.properties) == {"mine": "x"}


def test_the_topic_of_answers_has_a_route() -> None:
    settings = parse_settings({**LISTEN, "cluster": "c", "auto_create_topics": False})
    assert default_topics(settings)[0].name == "c_REPLY_TOPIC"
    assert default_topics(parse_settings({})) == []
