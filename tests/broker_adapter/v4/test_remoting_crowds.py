"""One request that concerns tens of thousands of members: no step of the event loop is for all of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, QueueStats, TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4 import admin_bodies, bodies
from broker_adapter.endpoints.v4.admin import AdminProcessor
from broker_adapter.endpoints.v4.bodies import ConsumerData, SubscriptionData, heartbeat
from broker_adapter.endpoints.v4.clients import Member, RemotingClients
from broker_adapter.endpoints.v4.node_queries import share
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.endpoints.v4.transactions import ask_producer
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.scheduled.deferring import OrphanedHalf
from broker_adapter.wire.message import MessageRecord, encode
from dledger.infra.loops.threads import SharedThreads
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker
from tests.broker_adapter.v4.test_remoting_consumers import beat

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
        body = beat(f"c{number}", "g", "t").replace(b"CLUSTERING", b"BROADCASTING")
        await asker.get(RequestCode.HEART_BEAT, body)
    wanted = {"topic": "t", "group": "g", "timestamp": 0, "isForce": "true" + "x" * 100_000}
    unknown = await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **wanted | {"topic": "none"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST, "and nobody is told"
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
        self.told = self.asked = 0
        self._clients = clients

    def notify(self, request: RemotingCommand) -> None:
        if request.code == RESET:
            self.told += 1
            self._clients.channel_closed(self, "unread")  # type: ignore[arg-type]
        self.asked += request.code == RequestCode.CHECK_TRANSACTION_STATE


async def test_members_that_leave_while_their_group_is_told_hinder_nobody() -> None:
    clients = RemotingClients()
    members = [Leaving(number, clients) for number in range(100)]
    for number, one in enumerate(members):
        said: dict[str, Any] = {"clientID": f"c{number}", "consumerDataSet": [{"groupName": "g"}]}
        clients.heard_of(one, heartbeat(json.dumps(said).encode()))  # type: ignore[arg-type]
    while clients.has_pending_notices:
        await asyncio.sleep(0)
    clients.notify_group("g", RemotingCommand.oneway(RESET))
    most = before = 0
    while (at := sum(one.told for one in members)) < 100:
        most, before = max(most, at - before), at
        await asyncio.sleep(0)
    assert [one.told for one in members] == [1] * 100
    assert most <= 4
    assert not clients.consumers


def member(subscriptions: dict[str, SubscriptionData], peer: str = "10.0.0.1:1") -> Member:
    data = ConsumerData("g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", subscriptions)
    return Member(Leaving(0, RemotingClients()), data, 0, 479)  # type: ignore[arg-type]


def test_what_is_told_of_subscriptions_is_bounded_whatever_is_in_them() -> None:
    """An expression of nothing but separators was thousands of tags: 80 MB of text, 2 s of the event loop."""
    pipes = {f"t{number}": SubscriptionData(f"t{number}", "|" * 8_190, False, 0) for number in range(3_900)}
    told = admin_bodies.consumer_connection({"c": member(pipes)})
    assert len(told) < 2 << 20
    table = json.loads(told)["subscriptionTable"]
    assert table["t0"]["tagsSet"] == []
    some = {"t": SubscriptionData("t", " a ||b|| ", False, 7)}
    found = json.loads(admin_bodies.consumer_connection({"c": member(some), "d": member({})}))
    assert [one["clientId"] for one in found["connectionSet"]] == ["c", "d"]
    assert found["connectionSet"][0]["language"] == "JAVA"
    assert found["subscriptionTable"]["t"]["tagsSet"] == ["a", "b"]
    assert found["messageModel"] == "CLUSTERING"


async def test_threads_make_the_lists_of_members(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    by: dict[str, threading.Thread] = {}

    def noting(name: str, make: Any) -> Any:
        def made(*arguments: Any) -> Any:
            by[name] = threading.current_thread()
            return make(*arguments)

        return made

    for module, name in (
        (admin_bodies, "consumer_connection"),
        (admin_bodies, "producer_connection"),
        (bodies, "consumer_list"),
    ):
        monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
    monkeypatch.setattr("broker_adapter.endpoints.v4.node._MANY_MEMBERS", 0)
    asker = Asker(await connect((await cluster.master()).remoting.address, timeout_s=10))
    said = json.loads(beat("c1", "g", "t")) | {"producerDataSet": [{"groupName": "p"}]}
    await asker.get(RequestCode.HEART_BEAT, json.dumps(said).encode())
    found = await asker.body(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    assert [one["clientId"] for one in found["connectionSet"]] == ["c1"]
    found = await asker.body(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
    assert [one["clientId"] for one in found["connectionSet"]] == ["c1"]
    found = await asker.body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert found == {"consumerIdList": ["c1"]}
    assert len(by) == 3 and threading.current_thread() not in by.values()
    asker.connection.close("done")


def test_queues_are_shared_by_turns_in_the_order_of_ids() -> None:
    members = {"c": 1, "a": 2, "b": 3}
    assert [share(range(7), members, one) for one in "abcd"] == [[0, 3, 6], [1, 4], [2, 5], []]


class ManyGroups:
    """A broker and directory that count what they are asked."""

    def __init__(self) -> None:
        self.topics_asked: list[str] = []
        self.asked = self.at_once = self.most = 0

    def topic(self, name: str) -> TopicConfig | None:
        return TopicConfig(name)

    def group(self, name: str) -> GroupConfig | None:
        return GroupConfig(name)

    def system_offsets(self) -> dict[tuple[str, int], int]:
        return {}

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int:
        return -1

    async def all_offsets(self) -> dict[str, list[QueueOffset]]:
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return {f"g{number}": [QueueOffset("t", 0, 0)] for number in range(20)}

    async def topic_stats(self, topic: str, *, remote: str = "") -> list[QueueStats]:
        self.topics_asked.append(topic)
        return [QueueStats(topic, 0, 0, 3, 0)]


async def test_questions_about_all_groups_wait_for_each_other_and_read_once_for_all() -> None:
    """Ten thousand groups times ten thousand topics, and a linearizable read for each, of hundreds of
    requests: the loop did nothing else any more, and with 3,000 groups none was answered."""
    world = ManyGroups()
    traffic = Traffic(lambda: 0.0, lambda: 0)
    admin = AdminProcessor(world, traffic, "b", lambda: "a", lambda: 0, world)  # type: ignore[arg-type]
    request = RemotingRequest(RemotingCommand(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}))
    context = CallContext("c")
    asked = [admin.all_consume_stats(request, context) for _ in range(5)]
    asked += [admin.all_offsets(request, context) for _ in range(5)]
    answers = await asyncio.gather(*asked)
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert (world.most, world.asked, world.topics_asked) == (1, 10, ["t"] * 5)
    told = json.loads(bytes(answers[5].body))["offsetTable"]
    assert len(told) == 20
    assert answers[0].body.count(b"brokerOffset") == 20


def test_for_a_question_to_a_producer_a_few_of_the_group_are_looked_at() -> None:
    clients = RemotingClients()
    many = [Leaving(number, clients) for number in range(500)]
    for number, one in enumerate(many):
        said: dict[str, Any] = {"clientID": f"c{number}", "producerDataSet": [{"groupName": "p"}]}
        clients.heard_of(one, heartbeat(json.dumps(said).encode()))  # type: ignore[arg-type]
    record = bytes(encode(MessageRecord("t", b"half", "PGROUP\x01p\x02")))
    looked: list[str] = []
    missed: list[OrphanedHalf] = []

    def may_end(account: str, topic: str) -> bool:
        looked.append(topic)
        return True

    def ask(client_id: str, checks: int = 0) -> set[int]:
        before = [one.asked for one in many]
        half = OrphanedHalf("t", "id", client_id, record, checks)
        ask_producer(clients, half, missed.append, may_end)
        assert len(looked) <= 65
        looked.clear()
        return {number for number, one in enumerate(many) if one.asked > before[number]}

    assert ask("c499") == {499}, "who has sent it, wherever it is among them"
    assert ask("gone", 0) != ask("gone", 1)
    assert not missed


def test_for_what_a_pull_wants_a_few_of_the_group_are_looked_at() -> None:
    class Counted(dict[str, SubscriptionData]):
        looked = 0

        def get(self, *_: object) -> None:  # type: ignore[override]
            Counted.looked += 1

    clients = RemotingClients()
    clients.consumers["g"] = {f"c{number}": member(Counted()) for number in range(1_000)}
    assert clients.subscription(Leaving(0, clients), "g", "t") is None  # type: ignore[arg-type]
    assert 0 < Counted.looked <= 256


async def test_one_long_text_is_made_at_a_time() -> None:
    """Six threads that computed left the event loop hardly any of the interpreter: sends took 5 s."""
    texts, at_once, most = SharedThreads(None, 1), 0, 0
    lock = threading.Lock()
    alone = threading.Event()

    def text(number: int) -> bytes:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        alone.wait(0.01)
        with lock:
            at_once -= 1
        return b"%d" % number

    made = await asyncio.gather(*(texts.run("", text, number) for number in range(6)))
    assert made == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert most == 1


async def test_a_text_that_nobody_waits_for_any_more_keeps_its_turn_to_its_end() -> None:
    texts, gate, made = SharedThreads(None, 1), threading.Event(), list[str]()

    def first() -> bytes:
        gate.wait(60)
        made.append("first")
        return b""

    def second() -> bytes:
        made.append("second")
        return b""

    given_up = asyncio.create_task(texts.run("", first))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    asyncio.get_running_loop().call_later(0.1, gate.set)
    await texts.run("", second)
    assert made == ["first", "second"]
