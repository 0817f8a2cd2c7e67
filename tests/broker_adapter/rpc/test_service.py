"""The gRPC face of a broker: every call, and what is answered to callers that do it wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from broker_adapter.api import (
    BrokerRole,
    GroupConfig,
    OutgoingMessage,
    PullStatus,
    QueueOffset,
    SendResult,
    TopicConfig,
)
from broker_adapter.errors import (
    Busy,
    GroupRefused,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    ReadFailed,
    ResponseCode,
    Status,
)
from broker_adapter.format.message import decode
from broker_adapter.format.properties import split_properties
from broker_adapter.rpc import send_service
from broker_adapter.rpc.broker_client import BrokerClient, NoAnswer, NotConnected
from broker_adapter.rpc.calls import LargeAnswers
from broker_adapter.rpc.convert import send_result_from_pb
from broker_adapter.rpc.limits import BrokerLimits
from broker_adapter.rpc.pull_service import PullService
from broker_adapter.rpc.service import SERVICE_NAME
from broker_adapter.v1 import broker_pb2 as pb
from broker_adapter.v1 import broker_pb2_grpc
from dledger.platform import LARGE_BYTES, open_channel
from tests.broker_adapter.client.helpers import Held, until
from tests.broker_adapter.memory_broker import MemoryBroker, MemoryBrokers, MemoryNode

T = 5.0  # seconds that no call needs


class World:
    def __init__(self, brokers: MemoryBrokers, client: BrokerClient, stub: Any, channel: Any) -> None:
        self.cluster = brokers.cluster
        self.node: MemoryNode = brokers.nodes[0]
        self.broker: MemoryBroker = self.node.broker
        self.client = client
        self.stub = stub
        self.channel = channel

    def raw(self, method: str) -> Any:
        """A unary call of bytes, which need not be a message."""
        return self.channel.unary_unary(f"/{SERVICE_NAME}/{method}")


@asynccontextmanager
async def world(limits: BrokerLimits | None = None) -> AsyncIterator[World]:
    async with MemoryBrokers(2, limits) as brokers, open_channel(brokers.addresses[0]) as channel:
        client = BrokerClient(brokers.addresses[0])
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t"))
        try:
            yield World(brokers, client, broker_pb2_grpc.BrokerServiceStub(channel), channel)  # type: ignore[no-untyped-call]
        finally:
            await client.close()


def messages(*bodies: bytes) -> list[OutgoingMessage]:
    return [OutgoingMessage(body) for body in bodies]


# -- every call


async def test_a_batch_comes_back_as_records() -> None:
    async with world() as w:
        result = await w.client.send("t", 1, messages(b"a", b"b"), T)
        assert (result.queue_id, result.queue_offset, result.term) == (1, 0, 1)
        found = await w.client.pull("t", 1, 0)
        assert (found.status, found.next_offset, found.max_offset) == (PullStatus.FOUND, 2, 2)
        decoded = [decode(record) for record in found.records]
        assert [message.body for message in decoded] == [b"a", b"b"]
        assert [message.physical_offset for message in decoded] == result.physical_offsets
        assert [message.offset_id for message in decoded] == result.offset_ids
        assert str(decoded[0].born_host).startswith("127.0.0.1:")
        assert await w.client.message_at(result.physical_offsets[1], T) == found.records[1]


@pytest.mark.parametrize(
    "request_",
    [
        pb.SendRequest(topic="t", messages=[pb.OutgoingMessage()] * 9),
        pb.SendRequest(topic="t", columns=pb.MessageColumns(bodies=[b""] * 9)),
        pb.SendRequest(topic="t", columns=pb.MessageColumns(bodies=[b"x"], properties=[""] * 9)),
        pb.SendRequest(topic="t", columns=pb.MessageColumns(bodies=[b"x"], sys_flags=[0] * 9)),
        pb.SendRequest(topic="t", messages=[pb.OutgoingMessage(properties={f"{i}": "" for i in range(9)})]),
    ],
    ids=["messages", "bodies", "properties", "flags", "properties of one"],
)
async def test_a_batch_is_counted_before_anything_is_made_of_it(
    request_: pb.SendRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MiB hold two million empty messages."""
    monkeypatch.setattr(send_service, "messages_from_pb", lambda _: pytest.fail("it was made"))
    async with world(BrokerLimits(max_batch_messages=8, max_properties=8)) as w:
        answer = await w.stub.Send(request_, timeout=T)
        assert answer.status.code == Status.FIELD_OUT_OF_RANGE


async def test_whatever_is_large_in_an_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = LargeAnswers.take

    async def note(self: LargeAnswers, size: int, context: Any) -> None:
        taken.append(size)
        await take(self, size, context)

    monkeypatch.setattr(LargeAnswers, "take", note)
    async with world() as w:
        sent = await w.client.send("t", 1, [OutgoingMessage(bytes(100_000), {"KEYS": "k"})], T)
        assert (await w.client.pull("t", 1, 0)).records
        assert await w.client.message_at(sent.physical_offsets[0], T)
        assert await w.client.query("t", "k", 0, 1 << 60, 1, T)
        assert sum(size > 100_000 for size in taken) == 3


async def test_an_acknowledgement_says_who_has_stored_the_batch_and_at_which_index() -> None:
    async with world() as w:
        told = []
        for _ in range(2):
            told.append(await w.client.send("t", 1, messages(b"a", b"b"), T))
        assert [one.node_id for one in told] == [w.broker.info().node_id] * 2
        assert told[1].index == told[0].index + 2


async def test_an_older_broker_says_neither_node_nor_index() -> None:
    result = send_result_from_pb(pb.SendResponse(queue_id=1, queue_offset=2, term=3))
    assert (result.node_id, result.index) == ("", -1)


async def test_flags_times_and_properties_of_a_message_are_kept() -> None:
    async with world() as w:
        await w.client.send("t", 0, [OutgoingMessage(b"x", {"a": "1", "b": "ü"}, 7, 0x1, 1234)], T)
        message = decode((await w.client.pull("t", 0, 0)).records[0])
        assert (message.flag, message.sys_flag, message.born_timestamp) == (7, 1, 1234)
        assert split_properties(message.properties) == {"a": "1", "b": "ü"}


async def test_the_unary_send_answers_its_request_id() -> None:
    async with world() as w:
        request = pb.SendRequest(request_id=9, topic="t", messages=[pb.OutgoingMessage(body=b"x")])
        answer = await w.stub.Send(request)
        assert answer.request_id == 9 and not answer.HasField("status") and answer.queue_offset == 0


async def test_rows_and_columns_store_the_same_records() -> None:
    async with world() as w:
        sent = [
            OutgoingMessage(b"%d" % i, {"TAGS": "a", "n": str(i % 2)}, i, i % 2, 1000 + i) for i in range(3)
        ]
        rows = pb.SendRequest(topic="t", queue_id=0)
        for m in sent:
            rows.messages.add(
                body=m.body, flag=m.flag, sys_flag=m.sys_flag, born_timestamp=m.born_timestamp
            ).properties.update(m.properties)
        assert not (await w.stub.Send(rows)).HasField("status")
        await w.client.send("t", 1, sent, T)
        found = [[decode(r) for r in (await w.client.pull("t", q, 0)).records] for q in (0, 1)]
        kept = [  # as OutgoingMessages
            [(m.body, split_properties(m.properties), m.flag, m.sys_flag, m.born_timestamp) for m in one]
            for one in found
        ]
        assert (
            kept[0] == kept[1] == [(m.body, m.properties, m.flag, m.sys_flag, m.born_timestamp) for m in sent]
        )


@pytest.mark.parametrize(
    "columns",
    [
        pb.MessageColumns(),
        pb.MessageColumns(bodies=[b"a"] * 3, flags=[1, 2]),
        pb.MessageColumns(bodies=[b"a"], properties=["a\x01b\x02"] * 2),
        pb.MessageColumns(bodies=[b"a"], born_timestamps=[-1]),
        pb.MessageColumns(bodies=[b"a"], properties=["a\x01b\x02" * 2000]),
    ],
)
async def test_columns_that_make_no_batch_are_refused(columns: pb.MessageColumns) -> None:
    async with world() as w:
        answer = await w.stub.Send(pb.SendRequest(topic="t", queue_id=0, columns=columns))
        assert answer.status.code == Status.FIELD_OUT_OF_RANGE
        both = pb.SendRequest(topic="t", columns=pb.MessageColumns(bodies=[b"a"]))
        both.messages.add(body=b"a")
        assert (await w.stub.Send(both)).status.code == Status.FIELD_OUT_OF_RANGE


async def test_topics_groups_offsets_and_queries_pass_through() -> None:
    async with world() as w:
        client = w.client
        config = TopicConfig("u", 2, 3, 4, 1, True)
        await client.put_topic(config, T)
        assert await client.topics(T) == [TopicConfig("t"), config]
        await client.delete_topic("u", T)
        assert await client.topics(T) == [TopicConfig("t")]
        group = GroupConfig("g", False, True, False, 2, 3)
        await client.put_group(group, T)
        assert await client.groups(T) == [group]
        await client.delete_group("g", T)
        assert await client.groups(T) == []
        await client.send("t", 2, [OutgoingMessage(b"x", {"KEYS": "k1 k2"})], T)
        stats = await client.topic_stats("t", T)
        assert [(s.topic, s.queue_id, s.min_offset, s.max_offset) for s in stats] == [
            ("t", q, 0, 1 if q == 2 else 0) for q in range(4)
        ]
        now = w.cluster.now_ms
        assert len(await client.query("t", "k2", 0, now, 10, T)) == 1
        assert await client.query("t", "k3", 0, now, 10, T) == []
        assert await client.offset_by_time("t", 2, now, T) == 0
        assert await client.offset_by_time("t", 2, now + 1, T) == 1
        info = await client.info(T)
        assert (info.role, info.broker_id, info.address) == (BrokerRole.SYNC_MASTER, 0, w.broker.address)


async def test_members_join_commit_and_leave() -> None:
    async with world() as w:
        client = w.client
        await client.commit_offsets("g", -1, [QueueOffset("t", 0, 3)], T)
        assignment = await client.join("g", "m", ["t"], 3000, T)
        assert assignment.queues == [("t", q) for q in range(4)]
        assert (assignment.members, assignment.heartbeat_ms) == (1, 1000)
        with pytest.raises(GroupRefused):
            await client.commit_offsets("g", -1, [QueueOffset("t", 0, 4)], T)
        await client.commit_offsets("g", assignment.generation, [QueueOffset("t", 0, 5)], T)
        assert await client.offsets("g", T) == (assignment.generation, [QueueOffset("t", 0, 5)])
        assert await client.reset_offsets("g", [QueueOffset("t", 0, 1)], T) == assignment.generation + 1
        await client.leave("g", "m", T)
        assert not w.cluster.groups["g"].members


# -- refusals


async def test_a_slave_names_the_master_and_both_numbers() -> None:
    async with world() as w:
        w.cluster.lead(1)
        with pytest.raises(NotMaster) as refused:
            await w.client.send("t", 0, messages(b"x"), T)
        assert refused.value.master_address == w.cluster.brokers[1].address
        answer = await w.stub.Send(pb.SendRequest(topic="t", messages=[pb.OutgoingMessage(body=b"x")]))
        assert answer.status.code == Status.NOT_MASTER
        assert answer.status.response_code == ResponseCode.SERVICE_NOT_AVAILABLE


METHODS = [
    ("Send", pb.SendResponse),
    ("Pull", pb.PullResponse),
    ("MessageAt", pb.MessageAtResponse),
    ("Query", pb.QueryResponse),
    ("OffsetByTime", pb.OffsetByTimeResponse),
    ("GetBroker", pb.GetBrokerResponse),
    ("PutTopic", pb.PutTopicResponse),
    ("DeleteTopic", pb.DeleteTopicResponse),
    ("ListTopics", pb.ListTopicsResponse),
    ("TopicStats", pb.TopicStatsResponse),
    ("PutGroup", pb.PutGroupResponse),
    ("DeleteGroup", pb.DeleteGroupResponse),
    ("ListGroups", pb.ListGroupsResponse),
    ("CommitOffsets", pb.CommitOffsetsResponse),
    ("FetchOffsets", pb.FetchOffsetsResponse),
    ("ResetOffsets", pb.ResetOffsetsResponse),
    ("Join", pb.JoinResponse),
    ("Leave", pb.LeaveResponse),
]


@pytest.mark.parametrize(("method", "response_type"), METHODS)
async def test_bytes_that_are_no_message_get_a_number(method: str, response_type: Any) -> None:
    async with world() as w:
        answer = response_type.FromString(await w.raw(method)(b"\x0a\xff\xff"))
        assert answer.status.code == Status.REQUEST_MALFORMED


async def test_a_stopping_broker_says_so_to_every_call() -> None:
    async with world() as w:
        w.node.service.stop()
        for method, response_type in METHODS:
            answer = response_type.FromString(await w.raw(method)(b""))
            assert answer.status.code == Status.SHUTTING_DOWN, method


async def test_malformed_bytes_end_a_stream_with_a_number() -> None:
    async with world() as w:
        sends = w.channel.stream_stream(f"/{SERVICE_NAME}/SendStream")()
        await sends.write(b"\x0a\xff\xff")
        answer = pb.SendResponse.FromString(await sends.read())
        assert answer.status.code == Status.REQUEST_MALFORMED
        assert await sends.read() is grpc.aio.EOF
        pulls = w.channel.unary_stream(f"/{SERVICE_NAME}/PullStream")(b"\x0a\xff\xff")
        assert pb.PullResponse.FromString(await pulls.read()).status.code == Status.REQUEST_MALFORMED
        assert await pulls.read() is grpc.aio.EOF


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Send", pb.SendRequest(topic="t")),
        ("Send", pb.SendRequest(topic="t", queue_id=-2, messages=[pb.OutgoingMessage()])),
        ("Send", pb.SendRequest(topic="t", messages=[pb.OutgoingMessage(born_timestamp=-1)])),
        ("Send", pb.SendRequest(topic="t", messages=[pb.OutgoingMessage()] * 5)),
        ("Pull", pb.PullRequest(topic="t", queue_id=-1)),
        ("Pull", pb.PullRequest(topic="t", offset=-1)),
        ("Pull", pb.PullRequest(topic="t", tags=["x"] * 65)),
        ("MessageAt", pb.MessageAtRequest(physical_offset=-1)),
        ("Query", pb.QueryRequest(topic="t", key="k", begin_ms=-1)),
        ("OffsetByTime", pb.OffsetByTimeRequest(topic="t", queue_id=-1)),
        ("PutTopic", pb.PutTopicRequest(topic=pb.TopicSettings(name="u", read_queues=-1))),
        ("PutTopic", pb.PutTopicRequest(topic=pb.TopicSettings(name="u", perm=8))),
        ("PutGroup", pb.PutGroupRequest(group=pb.GroupSettings(name="u", retry_queues=-1))),
        ("CommitOffsets", pb.CommitOffsetsRequest(group="g", generation=-2)),
        (
            "CommitOffsets",
            pb.CommitOffsetsRequest(group="g", offsets=[pb.QueueOffsetEntry(topic="t", offset=-1)]),
        ),
        (
            "ResetOffsets",
            pb.ResetOffsetsRequest(group="g", offsets=[pb.QueueOffsetEntry(topic="t", queue_id=-1)]),
        ),
        ("Join", pb.JoinRequest(group="g", member_id="", topics=["t"], lease_ms=3000)),
        ("Join", pb.JoinRequest(group="g", member_id="m", topics=["t"], lease_ms=1)),
        ("Join", pb.JoinRequest(group="g", member_id="m", topics=["t"] * 300, lease_ms=3000)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_numbers_out_of_range_are_refused(method: str, request_: Any) -> None:
    async with world(BrokerLimits(max_batch_messages=4)) as w:
        answer = await getattr(w.stub, method)(request_)
        assert answer.status.code == Status.FIELD_OUT_OF_RANGE
        assert answer.status.message


async def test_batches_beyond_the_limit_are_refused() -> None:
    async with world(BrokerLimits(max_batch_bytes=1000)) as w:
        with pytest.raises(IllegalMessage) as refused:
            await w.client.send("t", 0, messages(bytes(600), bytes(600)), T)
        assert refused.value.status is Status.BODY_TOO_LARGE
        await w.client.send("t", 0, messages(bytes(1000)), T)


async def test_a_bug_in_the_broker_is_answered_as_unknown_outcome() -> None:
    async with world() as w:

        def fail() -> None:
            raise ZeroDivisionError

        w.broker.before_send = fail
        with pytest.raises(PutIndeterminate, match="ZeroDivisionError"):
            await w.client.send("t", 0, messages(b"x"), T)


async def test_a_status_of_a_newer_broker_leaves_the_outcome_unknown() -> None:
    from broker_adapter.rpc.convert import error_from_pb

    error = error_from_pb(pb.BrokerStatus(code=999, message="new"))
    assert isinstance(error, PutIndeterminate) and "999" in error.message


async def test_values_that_no_field_holds_are_refused_before_they_are_sent() -> None:
    async with world() as w:
        with pytest.raises(IllegalMessage):
            await w.client.pull("t", 0, 1 << 70)
        with pytest.raises(IllegalMessage):
            await w.client.send("t", 1 << 40, messages(b"x"), T)
        with pytest.raises(IllegalMessage):
            await w.client.put_topic(TopicConfig("u", read_queues=1 << 40), T)
        with pytest.raises(IllegalMessage):
            await w.client.commit_offsets("g", -1, [QueueOffset("t", 0, 1 << 70)], T)


async def test_a_broker_that_is_not_there_is_a_definite_failure_for_a_send() -> None:
    client = BrokerClient("127.0.0.1:1")
    with pytest.raises(NotConnected):
        await client.send("t", 0, messages(b"x"), T)
    with pytest.raises(NoAnswer):
        await client.info(T)
    await client.close()


# -- streams of sends


async def test_answers_of_a_stream_come_as_batches_are_stored() -> None:
    async with world() as w:
        held = Held(w.broker)
        first = asyncio.ensure_future(w.client.send("t", 0, messages(b"a"), T))
        await held.arrived.wait()
        w.broker.before_send = None
        await w.client.send("t", 1, messages(b"b"), T)
        assert not first.done()
        held.go.set()
        assert (await first).queue_id == 0
        assert w.node.service.sends.open_streams == 1


async def test_more_streams_than_allowed_are_refused_with_a_number() -> None:
    async with world(BrokerLimits(max_send_streams=1)) as w:
        await w.client.send("t", 0, messages(b"a"), T)
        other = BrokerClient(w.broker.address)
        with pytest.raises(Busy) as refused:
            await other.send("t", 0, messages(b"b"), T)
        assert refused.value.status is Status.TOO_MANY_CALLS
        await w.client.close()
        await until(lambda: w.node.service.sends.open_streams == 0)
        await other.send("t", 0, messages(b"b"), T)
        await other.close()


async def test_a_stream_takes_no_more_than_its_limit_before_it_answers() -> None:
    async with world(BrokerLimits(max_unanswered_per_stream=2)) as w:
        held, entered = Held(w.broker), []
        inner = w.broker.before_send
        assert inner is not None
        w.broker.before_send = lambda: (entered.append(1), inner())[1]
        sends = [asyncio.ensure_future(w.client.send("t", 0, messages(b"%d" % i), T)) for i in range(6)]
        await until(lambda: len(entered) == 2)
        await w.client.info(T)  # a round trip: nothing more was taken
        assert len(entered) == 2
        held.go.set()
        await asyncio.gather(*sends)
        assert len(w.cluster.queues["t", 0]) == 6


async def test_batches_sent_at_once_travel_together_and_are_answered_each() -> None:
    async with world() as w:
        sends = [w.client.send("t", 0, messages(b"%d" % i), T) for i in range(5)]
        unknown = w.client.send("t", 0, [OutgoingMessage(b"x", flag=1 << 40)], T)  # no field holds this
        *results, refused = await asyncio.gather(*sends, unknown, return_exceptions=True)
        stored = {r.queue_offset: b"%d" % i for i, r in enumerate(results) if isinstance(r, SendResult)}
        assert [stored[offset] for offset in range(5)] == w.cluster.bodies("t", 0)
        assert isinstance(refused, IllegalMessage)


def several(*request_ids: int) -> pb.SendRequest:
    first, *others = [
        pb.SendRequest(request_id=n, topic="t", messages=[pb.OutgoingMessage(body=b"%d" % n)])
        for n in request_ids
    ]
    for one in reversed(others[:-1]):
        one.more.append(others.pop())
    first.more.extend(others)
    return first


async def test_requests_in_one_message_are_answered_whatever_way_they_are_nested() -> None:
    async with world(BrokerLimits(max_unanswered_per_stream=2)) as w:
        call = w.stub.SendStream()
        await call.write(several(1, 2, 3, 4, 5))
        answered: list[int] = []
        while len(answered) < 5:
            answer = await call.read()
            assert not answer.HasField("status")
            answered += [answer.request_id, *(one.request_id for one in answer.more)]
        assert sorted(answered) == [1, 2, 3, 4, 5]
        call.cancel()


async def test_a_client_that_sends_one_by_one_is_answered_one_by_one() -> None:
    async with world() as w:
        held = Held(w.broker)
        call = w.stub.SendStream()
        for n in (1, 2, 3):
            await call.write(several(n))
        await held.arrived.wait()
        held.go.set()
        answers = [await call.read() for _ in range(3)]
        assert all(not answer.more for answer in answers)
        assert sorted(answer.request_id for answer in answers) == [1, 2, 3]
        call.cancel()


async def test_the_unary_send_takes_one_batch() -> None:
    async with world() as w:
        answer = await w.stub.Send(several(1, 2))
        assert answer.status.code == Status.FIELD_OUT_OF_RANGE


async def test_a_drained_service_takes_nothing_new_and_answers_what_is_under_way() -> None:
    async with world() as w:
        held = Held(w.broker)
        sending = asyncio.ensure_future(w.client.send("t", 0, messages(b"a"), T))
        await held.arrived.wait()
        draining = asyncio.create_task(w.node.service.drain(10))
        await asyncio.wait([draining], timeout=0)
        with pytest.raises(PutRefused) as caught:
            await w.client.send("t", 0, messages(b"b"), T)
        assert caught.value.status is Status.SHUTTING_DOWN and not draining.done()
        held.go.set()
        assert (await sending).queue_offset == 0
        await draining


async def test_stop_answers_sends_under_way_as_unknown() -> None:
    async with world() as w:
        held = Held(w.broker)
        send = asyncio.ensure_future(w.client.send("t", 0, messages(b"a"), T))
        await held.arrived.wait()
        w.node.service.stop()
        with pytest.raises(PutIndeterminate, match="shutting down"):
            await send
        await until(lambda: w.node.service.sends.open_streams == 0)


async def test_a_send_whose_client_went_away_is_finished_all_the_same() -> None:
    async with world() as w:
        held = Held(w.broker)
        send = asyncio.ensure_future(w.client.send("t", 0, messages(b"a"), T))
        await held.arrived.wait()
        w.client.break_off()
        with pytest.raises(NoAnswer):
            await send
        await until(lambda: w.node.service.sends.open_streams == 0)
        held.go.set()
        await until(lambda: len(w.cluster.queues["t", 0]) == 1)


# -- pulls that wait


async def test_a_waiting_pull_is_answered_by_the_next_message() -> None:
    async with world() as w:
        pull = asyncio.ensure_future(w.client.pull("t", 0, 0, wait_ms=30_000))
        await until(lambda: w.node.service.pulls.waiting_pulls == 1)
        await w.client.send("t", 0, messages(b"a"), T)
        assert (await pull).status is PullStatus.FOUND
        assert w.node.service.pulls.waiting_pulls == 0


async def test_a_wait_that_is_over_says_so() -> None:
    async with world() as w:
        found = await w.client.pull("t", 0, 0, wait_ms=20)
        assert (found.status, found.next_offset, found.records) == (PullStatus.NO_NEW_MESSAGE, 0, [])


async def test_a_cancelled_pull_frees_its_place() -> None:
    async with world(BrokerLimits(max_waiting_pulls=1)) as w:
        pull = asyncio.ensure_future(w.client.pull("t", 0, 0, wait_ms=30_000))
        await until(lambda: w.node.service.pulls.waiting_pulls == 1)
        with pytest.raises(Busy) as refused:
            await w.client.pull("t", 0, 0, wait_ms=30_000)
        assert refused.value.status is Status.TOO_MANY_CALLS
        pull.cancel()
        await until(lambda: w.node.service.pulls.waiting_pulls == 0 and w.broker.pulls == 0)
        await w.client.pull("t", 0, 0, wait_ms=1)


async def test_stop_answers_waiting_pulls_and_ends_streams() -> None:
    async with world() as w:
        pull = asyncio.ensure_future(w.client.pull("t", 0, 0, wait_ms=30_000))
        stream = w.client.pull_stream("t", 0, 0, wait_ms=30_000)
        following = asyncio.ensure_future(anext(stream))
        await until(lambda: w.broker.pulls == 2)
        w.node.service.stop()
        for waiting in (pull, following):
            with pytest.raises(PutRefused) as refused:
                await waiting
            assert refused.value.status is Status.SHUTTING_DOWN
        await until(lambda: w.broker.pulls == 0 and w.node.service.pulls.open_streams == 0)


async def test_break_off_ends_pulls_under_way() -> None:
    async with world() as w:
        pull = asyncio.ensure_future(w.client.pull("t", 0, 0, wait_ms=30_000))
        await until(lambda: w.broker.pulls == 1)
        w.client.break_off()
        with pytest.raises(NoAnswer):
            await pull
        await until(lambda: w.broker.pulls == 0)


# -- streams of messages


async def test_a_stream_delivers_what_is_there_and_follows() -> None:
    async with world() as w:
        await w.client.send("t", 0, messages(*(b"%d" % i for i in range(10))), T)
        stream = w.client.pull_stream("t", 0, 3, max_messages=4)
        got: list[bytes] = []
        async for result in stream:
            got += [decode(record).body for record in result.records]
            if len(got) == 7:
                await w.client.send("t", 0, messages(b"new"), T)
            if len(got) == 8:
                break
        await stream.aclose()
        assert got == [b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"new"]
        await until(lambda: w.node.service.pulls.open_streams == 0)


async def test_an_illegal_offset_ends_a_stream_with_the_bounds() -> None:
    async with world() as w:
        results = [result async for result in w.client.pull_stream("t", 0, 5)]
        assert [(r.status, r.next_offset) for r in results] == [(PullStatus.OFFSET_ILLEGAL, 0)]


async def test_a_slow_reader_holds_up_only_its_own_stream() -> None:
    async with world() as w:
        for _ in range(20):
            await w.client.send("t", 0, messages(*[bytes(10_000)] * 50), T)
        slow = w.client.pull_stream("t", 0, 0, max_messages=50)
        await anext(slow)
        pulls = w.broker.pulls
        total = 0
        async for result in w.client.pull_stream("t", 0, 0, max_messages=50):
            total += len(result.records)
            if total == 1000:
                break
        assert total == 1000 and pulls <= 1
        await slow.aclose()


async def test_more_streams_of_messages_than_allowed_are_refused() -> None:
    async with world(BrokerLimits(max_pull_streams=1)) as w:
        await w.client.send("t", 0, messages(b"a"), T)
        stream = w.client.pull_stream("t", 0, 0)
        await anext(stream)
        with pytest.raises(Busy):
            await anext(w.client.pull_stream("t", 0, 0))
        await stream.aclose()
        await until(lambda: w.node.service.pulls.open_streams == 0)


async def test_what_is_not_found_is_a_read_failure() -> None:
    async with world() as w:
        with pytest.raises(ReadFailed):
            await w.client.message_at(77, T)


@pytest.mark.parametrize("wrong", [{"max_calls": 0}, {"max_batch_bytes": 1 << 30}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at "):
        BrokerLimits(**wrong)


class Reader:
    """The caller of a stream, who takes what is written as long as he `reads`."""

    def __init__(self, *, reads: bool) -> None:
        self.answers: list[pb.PullResponse] = []
        self._reads = reads

    def peer(self) -> str:
        return "unix:"

    async def write(self, answer: pb.PullResponse) -> None:
        self.answers.append(answer)
        if not self._reads:
            await asyncio.get_running_loop().create_future()


async def test_who_does_not_read_a_stream_leaves_others_what_is_small() -> None:
    limits = BrokerLimits(max_answer_bytes=100_000)
    async with world() as w:
        for _ in range(3):
            await w.client.send("t", 0, messages(bytes(30_000)), T)
        await w.client.send("t", 1, messages(bytes(90_000)), T)
        pulls = PullService(w.broker, limits, LargeAnswers(limits.max_answer_bytes))
        silent, reader, unlucky = Reader(reads=False), Reader(reads=True), Reader(reads=True)

        def stream(queue_id: int, context: Any) -> asyncio.Task[None]:
            request = pb.PullRequest(topic="t", queue_id=queue_id)
            return asyncio.create_task(pulls.pull_stream(request, context))

        tasks = [stream(0, silent)]
        await until(lambda: len(silent.answers) == 1)
        assert len(silent.answers[0].records) == 3
        tasks.append(stream(0, reader))
        await until(lambda: sum(len(answer.records) for answer in reader.answers) == 3)
        assert all(sum(map(len, answer.records)) < LARGE_BYTES for answer in reader.answers)
        await stream(1, unlucky)
        assert [answer.status.code for answer in unlucky.answers] == [Status.TOO_MANY_PENDING_BYTES]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stream_once(pulls, unlucky)
        assert len(unlucky.answers[-1].records) == 1, "the room is free again"


async def stream_once(pulls: PullService, reader: Reader) -> None:
    task = asyncio.create_task(pulls.pull_stream(pb.PullRequest(topic="t", queue_id=1), reader))  # type: ignore[arg-type]
    await until(lambda: len(reader.answers) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
