"""Clients that mean harm at the remoting ports of nodes. Others are served all the while."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.endpoints.v4 import node_queries, replies
from broker_adapter.endpoints.v4.bodies import MAX_BODY_BYTES, heartbeat
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.errors import Busy, ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import MAX_HEADER, RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import UNKNOWN_CODE, Dispatch, Executor
from broker_adapter.server.program import BrokerProgram
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, pipelining, send_fields
from tests.broker_adapter.v4.test_remoting_consumers import beat, records
from tests.broker_adapter.v4.test_remoting_pops import pop
from tests.node.local import until

OK, ILLEGAL, BUSY = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_BUSY
LARGE = 3_900_000
#: On a busy machine no leader loses its office while it handles megabytes.


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 2, LISTEN) as cluster:
        await cluster.master()
        yield cluster


def slave_of(cluster: BrokerCluster) -> BrokerProgram:
    return next(one for one in cluster.programs.values() if one.writer.expected is None)


async def linked(slave: BrokerProgram) -> object:
    """The stream by which the node passes calls on, once it is there."""
    await until(lambda: slave.forwarder.link is not None and slave.forwarder.link.is_writable)
    return slave.forwarder.link


def header_that_grows() -> bytes:
    """As large as a header may be, of numbers: what is passed on has them as texts."""
    fields: dict[str, Any] = {str(i): 1 for i in range(500)}
    fields |= {"topic": "t", "queueId": 0, "padding": ""}
    shell = len(json.dumps({"code": 30, "opaque": 7, "extFields": fields}).encode())
    fields["padding"] = "x" * (MAX_HEADER - shell)
    return json.dumps({"code": 30, "opaque": 7, "extFields": fields}).encode()


async def test_no_request_ends_the_stream_to_the_master_by_which_all_go(cluster: BrokerCluster) -> None:
    slave = slave_of(cluster)
    async with asking(slave.remoting.address) as good, asking(slave.remoting.address) as bad:
        await good.send("t", b"0", 0)
        link = await linked(slave)
        half, large = b'{"clientID":"\\ud800"}', json.dumps({"clientID": "x" * (200 << 10)}).encode()
        await bad.get(RequestCode.HEART_BEAT, half)
        await bad.send("t", b"1", 0)
        assert "REQUEST_MALFORMED" in str(await bad.ask(RequestCode.HEART_BEAT, large))
        answer = await bad.ask(RequestCode.SEND_MESSAGE_V2, bytes(5 << 20), **send_fields("t"))
        assert answer.code == ILLEGAL
        host, _, port = slave.remoting.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        header = header_that_grows()
        assert len(header) == MAX_HEADER
        writer.write((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert b"FRAME_INVALID" in await reader.readexactly(size)
        writer.close()
        await good.send("t", b"2", 0)
        assert slave.forwarder.link is link, "all calls under way would have failed"


async def test_no_answer_is_too_large_to_be_passed_on(cluster: BrokerCluster) -> None:
    """Of a queue of large messages, each answer has as many as fit: they had all been popped, for nobody."""
    slave = slave_of(cluster)
    async with asking(slave.remoting.address) as asker:
        for _ in range(3):
            await asker.send("t", bytes(LARGE), 0, KEYS="k")
        link = await linked(slave)
        await asker.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))
        for offset in range(3):
            answer = await pop(asker)
            assert [one.queue_offset for one in records(answer.body)] == [offset]
        wanted = {"topic": "t", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
        answer = await asker.ask(RequestCode.QUERY_MESSAGE, **wanted)
        assert [one.queue_offset for one in records(answer.body)] == [2], "the newest"
        assert slave.forwarder.link is link


@pytest.mark.parametrize("at_master", [True, False])
async def test_who_has_gone_takes_no_messages_and_no_places(cluster: BrokerCluster, at_master: bool) -> None:
    master = await cluster.master()
    node = master if at_master else slave_of(cluster)
    async with asking(node.remoting.address) as good:
        await good.send("t", b"0", 0)
        await good.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))
        assert (await pop(good)).code == OK
        async with asking(node.remoting.address) as bad:
            waits = {"consumerGroup": "g", "topic": "t", "queueId": "0", "pollTime": "60000"}
            pops = {**waits, "invisibleTime": "43200000", "maxMsgNums": "32"}
            pulls = {**waits, "queueOffset": "1", "sysFlag": "6", "suspendTimeoutMillis": "60000"}
            for opaque in range(50):
                bad.connection.send(RemotingCommand(RequestCode.POP_MESSAGE, pops, opaque=opaque))
                bad.connection.send(RemotingCommand(RequestCode.PULL_MESSAGE, pulls, opaque=100 + opaque))
            await until(lambda: len(master.broker.long_polls) == 50 and master.delivery.is_awaited)
        await until(lambda: not len(master.broker.long_polls) and not master.delivery.is_awaited)
        server = node.remoting.server
        assert server is not None
        await until(lambda: not server.requests_under_way)
        await good.send("t", b"1", 0)
        assert [one.body for one in records((await pop(good, pollTime=20_000)).body)] == [b"1"]


async def test_messages_come_back_to_groups_that_may_be_and_no_topics_are_made_for_others(
    cluster: BrokerCluster,
) -> None:
    """A thousand groups of one address at most, a hundred at once, where ten thousand names filled the table
    of topics, and nobody could have a new one."""
    master = await cluster.master()
    async with asking(master.remoting.address) as bad:
        place = int((await bad.send("t", b"0", 0))["msgId"][16:], 16)
        before = len(master.metadata.topics)
        back = {"offset": place, "delayLevel": 0}
        answers = [
            await bad.ask(RequestCode.CONSUMER_SEND_MSG_BACK, group=f"g{i}", **back) for i in range(150)
        ]
        assert answers[0].code == OK
        assert answers[-1].code == BUSY
        assert len(master.metadata.topics) - before < 120


async def test_codes_that_nobody_knows_are_counted_together(cluster: BrokerCluster) -> None:
    master = await cluster.master()
    async with asking(master.remoting.address) as bad:
        for code in range(1_000_000, 1_000_200):
            bad.connection.notify(RemotingCommand.oneway(code))
        assert (await bad.ask(-1)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert dict(master.remoting.counts) == {(UNKNOWN_CODE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED): 201}


async def test_questions_for_a_silent_member_leave_places_to_other_addresses(cluster: BrokerCluster) -> None:
    master = await cluster.master()
    async with asking(master.remoting.address) as bad, asking(master.remoting.address, "127.0.0.2") as good:
        await bad.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))
        bad.connection._answer = lambda *_: None
        fields = {"consumerGroup": "g", "clientId": "c"}
        for opaque in range(600):
            bad.connection.send(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields, opaque=opaque))
        server = master.remoting.server
        assert server is not None
        await until(lambda: server.requests_under_way == 48)
        assert (await good.ask(RequestCode.GET_BROKER_CONFIG)).code == OK


@pytest.mark.parametrize("group", ["", "g h", "g\n", "gr\u00fcn", "g" * 249])
async def test_impossible_groups_are_no_members_and_leave_the_others(
    cluster: BrokerCluster, group: str
) -> None:
    """They were registered, and the other groups of the heartbeat got no retry topics."""
    node = slave_of(cluster)
    wants = [{"topic": "t", "subString": "*"}]
    consumers = [{"groupName": name, "subscriptionDataSet": wants} for name in (group, "good")]
    body = json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()
    async with asking(node.remoting.address) as asker:
        answer = await asker.ask(RequestCode.HEART_BEAT, body)
        assert (answer.code, "767 GROUP_NAME_INVALID" in (answer.remark or "")) == (ILLEGAL, True)
        told = await asker.body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="good")
        assert told["consumerIdList"] == ["c"]
        refused = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
        assert refused.code != OK
        assert (await asker.ask(RequestCode.GET_TOPIC_CONFIG, topic="%RETRY%good")).code == OK


@pytest.mark.slow
@pytest.mark.parametrize("at_master", [True, False])
async def test_four_connections_that_pipeline_leave_the_master_its_leadership(
    cluster: BrokerCluster, at_master: bool
) -> None:
    """Queries of offsets (30): the executor refused most of them, and that took most of the time."""
    master = await cluster.master()
    node = master if at_master else slave_of(cluster)
    term = master.node.term
    query = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"})
    async with asking(node.remoting.address, "127.0.0.2") as good:
        await good.send("t", b"x", 0)
        async with pipelining(node.remoting.address, 4, query) as sent:
            await until(lambda: min(sent) >= 4)
            for _ in range(10):
                await good.send("t", b"x", 0)
        assert await good.end("t", 0) == 11
    assert node.remoting.counts[RequestCode.GET_MAX_OFFSET, BUSY] > 0
    assert (master.node.term, await cluster.master()) == (term, master)


async def test_announced_frames_that_do_not_come_leave_memory_to_other_addresses(
    cluster: BrokerCluster,
) -> None:
    """Each holds its 16 MiB for 30 s, and sixteen connections were all that there is."""
    master = await cluster.master()
    server = master.remoting.server
    assert server is not None
    host, _, port = server.address.rpartition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    for _, writer in opened:
        writer.write((16 << 20).to_bytes(4, "big") + (16).to_bytes(4, "big"))
    await until(lambda: server.waiting_for_memory == 8)
    async with asking(server.address, "127.0.0.2") as good:
        await good.send("t", bytes(500_000), 0)
    for _, writer in opened:
        writer.close()


@pytest.mark.slow
async def test_locks_of_one_address_leave_places_to_others(cluster: BrokerCluster) -> None:
    """All 65,536 of them were of queues that there are not."""
    master = await cluster.master()

    def wanted(group: str, queues: int) -> bytes:
        names = [{"topic": "none", "brokerName": "b", "queueId": i} for i in range(queues)]
        return json.dumps({"consumerGroup": group, "clientId": group, "mqSet": names}).encode()

    async with (
        asking(master.remoting.address) as bad,
        asking(master.remoting.address, "127.0.0.2") as good,
    ):
        for i in range(32):
            answer = await bad.ask(RequestCode.LOCK_BATCH_MQ, wanted(f"g{i}", 2_048))
        assert answer.code == BUSY
        assert (await bad.ask(RequestCode.LOCK_BATCH_MQ, wanted("g0", 2_048))).code == OK, "its own"
        told = await good.body(RequestCode.LOCK_BATCH_MQ, wanted("good", 1))
        assert len(told["lockOKMQSet"]) == 1
        assert (await bad.ask(RequestCode.UNLOCK_BATCH_MQ, wanted("g0", 2_048))).code == OK
        assert (await bad.ask(RequestCode.LOCK_BATCH_MQ, wanted("new", 1))).code == OK


class Listener:
    """A connection of a member; `told` are groups of notices."""

    def __init__(self, number: int) -> None:
        self.peer = f"10.0.0.{number % 250}:{number}"
        self.told: list[str] = []

    def notify(self, command: RemotingCommand) -> None:
        self.told.append(command.fields["consumerGroup"])


def said(client_id: str, groups: int, topic: str) -> bytes:
    wants = [{"topic": topic, "subString": "*"}]
    found = [{"groupName": f"g{i}", "subscriptionDataSet": wants} for i in range(groups)]
    return json.dumps({"clientID": client_id, "consumerDataSet": found}).encode()


async def test_one_heartbeat_that_concerns_thousands_tells_a_few_in_each_turn_of_the_loop() -> None:
    """A hundred groups of a hundred members: 10,000 notices, in one turn, for each heartbeat."""
    clients, members = RemotingClients(), [Listener(i) for i in range(100)]
    for i, one in enumerate(members):
        clients.heard_of(one, heartbeat(said(f"c{i}", 100, "t")))  # type: ignore[arg-type]
    await until(lambda: len(members[0].told) >= 100 and not clients.has_pending_notices)
    before = sum(len(one.told) for one in members)
    assert before < 100 * 100 * 10, "what has changed meanwhile is told once"
    clients.heard_of(members[0], heartbeat(said("c0", 100, "another")))  # type: ignore[arg-type]
    at = sum(len(one.told) for one in members)
    most = at - before
    while clients.has_pending_notices:
        await asyncio.sleep(0)
        now = sum(len(one.told) for one in members)
        most, at = max(most, now - at), now
    assert at - before == 100 * 100
    assert most <= 4 * 32


def test_what_clients_say_of_themselves_takes_the_share_of_their_address() -> None:
    clients = RemotingClients(max_bytes=1 << 20)

    def hear(number: int, groups: int, client_id: str = "") -> Listener:
        one = Listener(number)
        clients.heard_of(one, heartbeat(said(client_id or f"c{number}", groups, "t")))  # type: ignore[arg-type]
        return one

    first = hear(1, 500)
    with pytest.raises(Busy):
        hear(251, 500)  # of the same address
    other = hear(2, 200)
    clients.heard_of(first, heartbeat(said("c1", 500, "t")))  # type: ignore[arg-type]  # again
    for i in range(500):
        clients.gone(first, f"g{i}", "c1", consumes=True)  # type: ignore[arg-type]
    hear(251, 300)
    clients.channel_closed(other, "gone")  # type: ignore[arg-type]
    hear(2, 200)


async def test_a_body_that_takes_long_to_parse_is_refused(cluster: BrokerCluster) -> None:
    master = await cluster.master()
    async with asking(master.remoting.address) as bad:
        lists = b'{"clientID":"c","x":[' + b"[]," * (MAX_BODY_BYTES // 3) + b"[]]}"
        for code in (
            RequestCode.HEART_BEAT,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.QUERY_ASSIGNMENT,
            RequestCode.CHECK_CLIENT_CONFIG,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        ):
            assert "REQUEST_MALFORMED" in str(await bad.ask(code, lists)), code


async def test_silent_members_keep_nobody_from_what_nodes_answer_themselves(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one address come as many questions to members, and answers to clients, as find a place."""
    for name in ("_SAY_S", "_CONSUME_S"):
        monkeypatch.setattr(node_queries, name, 600.0)
    monkeypatch.setattr(replies, "_PUSH_S", 600.0)
    node = slave_of(cluster).remoting.address
    asked = ((RequestCode.GET_CONSUMER_RUNNING_INFO, 48), (RequestCode.CONSUME_MESSAGE_DIRECTLY, 12))

    async def silent(connection: RemotingConnection, request: RemotingCommand) -> None:
        seen[request.code] += 1

    seen = Counter[int]()
    dispatch = Dispatch()
    codes = [code for code, _ in asked] + [RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]
    dispatch.register(codes, silent, Executor("all", 9999, 0))
    member = Asker(await connect(node, timeout_s=10, dispatch=dispatch))
    await member.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
    async with asking(node) as bad, asking(node, "127.0.0.2") as good:
        sent = await good.send("t", b"x", 0)
        of = {"consumerGroup": "g", "clientId": "c1", "msgId": sent["msgId"]}
        reply = send_fields("t", 0, REPLY_TO_CLIENT="c1", MSG_TYPE="reply")
        waiting = [asyncio.ensure_future(bad.ask(code, **of)) for code, _ in asked for _ in range(600)]
        for code, most in asked:
            await until(lambda code=code, most=most: seen[code] == most)  # type: ignore[misc]
        await good.get(RequestCode.GET_BROKER_RUNTIME_INFO)
        for code, most in asked:
            own = asyncio.ensure_future(good.ask(code, **of))
            await until(lambda code=code, most=most: seen[code] > most)  # type: ignore[misc]
            waiting.append(own)
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        waiting += [asyncio.ensure_future(bad.ask(code, **reply)) for _ in range(600)]
        pushed = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        await until(lambda: seen[pushed] == 384)
        waiting.append(asyncio.ensure_future(good.ask(code, **reply)))
        await until(lambda: seen[pushed] == 385)
        for one in waiting:
            one.cancel()
    member.connection.close("done")
