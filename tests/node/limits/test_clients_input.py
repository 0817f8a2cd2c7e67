"""What clients may send: every wrong request gets its number, over real gRPC, and the node lives on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dledger.errors import Code
from dledger.infra.transport.channels import open_channel
from dledger.node.server import NodeServer
from dledger.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc
from tests.node.local import GROUP, running_nodes

LIMITS = {
    "max_body_bytes": 1000,
    "max_batch_bytes": 2000,
    "max_batch_entries": 5,
    "max_append_streams": 2,
    "max_read_streams": 1,
    "max_unanswered_per_stream": 4,
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeServer]:
    async with running_nodes(tmp_path, settings={"limits": LIMITS}) as servers:
        yield servers[0]


@pytest.fixture
async def channel(node: NodeServer) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(node.address) as channel:
        yield channel


@pytest.fixture
def log(channel: grpc.aio.Channel) -> Any:
    return log_pb2_grpc.LogServiceStub(channel)


def request(*bodies: bytes, **fields: Any) -> log_pb2.AppendRequest:
    return log_pb2.AppendRequest(**{"group": GROUP, "request_id": 7, "bodies": bodies, **fields})


async def assert_lives(log: Any) -> None:
    answer = await log.Append(request(b"still here"))
    assert answer.status.code == 0 and answer.index > 0, answer


BAD_APPENDS = [
    (request(b"x", group="other"), Code.UNKNOWN_GROUP),
    (request(), Code.REQUEST_WITH_EMPTY_BODYS),
    (request(b"x" * 1001), Code.BODY_TOO_LARGE),
    (request(*[b"x" * 700] * 3), Code.BATCH_TOO_LARGE),
    (request(*[b"x"] * 6), Code.BATCH_TOO_LARGE),
    (request(b"x", open_session=True), Code.UNEXPECTED_ARGUMENT),
    (request(b"x", session=log_pb2.SessionRef(session_id=-1, seq=1)), Code.UNEXPECTED_ARGUMENT),
    (request(b"x", session=log_pb2.SessionRef(session_id=1, seq=0)), Code.UNEXPECTED_ARGUMENT),
    (request(b"x", session=log_pb2.SessionRef(session_id=999, seq=1)), Code.SESSION_EXPIRED),
]


@pytest.mark.parametrize(("bad", "code"), BAD_APPENDS, ids=lambda v: getattr(v, "name", ""))
async def test_bad_appends(log: Any, bad: log_pb2.AppendRequest, code: Code) -> None:
    answer = await log.Append(bad)
    assert (answer.request_id, answer.status.code) == (7, code)
    assert answer.status.message
    await assert_lives(log)


async def test_bad_appends_on_a_stream_do_not_end_it(log: Any) -> None:
    stream = log.AppendStream()
    for bad, code in BAD_APPENDS:
        await stream.write(bad)
        assert (await stream.read()).status.code == code
    await stream.write(request(b"good", request_id=8))
    answer = await stream.read()
    assert (answer.request_id, answer.status.code, answer.count) == (8, 0, 1)
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_answers_are_waited_for_after_the_client_has_ended_its_side(log: Any) -> None:
    stream = log.AppendStream()
    for i in range(3):
        await stream.write(request(b"x", request_id=i))
    await stream.done_writing()
    answers = [answer async for answer in stream]
    assert [(a.request_id, a.status.code) for a in answers] == [(0, 0), (1, 0), (2, 0)]


async def test_bytes_that_are_no_protobuf_get_a_number(channel: grpc.aio.Channel, log: Any) -> None:
    garbage = b"\xff\xff\xff\xff"
    append = channel.unary_unary("/dledger.v1.LogService/Append")
    answer = log_pb2.AppendResponse.FromString(await append(garbage))
    assert answer.status.code == Code.UNEXPECTED_ARGUMENT
    stream = channel.stream_stream("/dledger.v1.LogService/AppendStream")()
    await stream.write(garbage)
    answer = log_pb2.AppendResponse.FromString(await stream.read())
    assert answer.status.code == Code.UNEXPECTED_ARGUMENT
    assert await stream.read() is grpc.aio.EOF
    reading = channel.unary_stream("/dledger.v1.LogService/ReadStream")(garbage)
    read = log_pb2.ReadResponse.FromString(await reading.read())
    assert read.status.code == Code.UNEXPECTED_ARGUMENT
    index = channel.unary_unary("/dledger.v1.LogService/ReadIndex")
    found = log_pb2.ReadIndexResponse.FromString(await index(garbage))
    assert found.status.code == Code.UNEXPECTED_ARGUMENT
    status = channel.unary_unary("/dledger.v1.AdminService/GetStatus")
    told = admin_pb2.GetStatusResponse.FromString(await status(garbage))
    assert told.status.code == Code.UNEXPECTED_ARGUMENT
    await assert_lives(log)


async def test_a_message_above_the_grpc_limit_costs_one_call(log: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await log.Append(request(b"x" * (8 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await assert_lives(log)


async def test_append_streams_are_limited(node: NodeServer, log: Any) -> None:
    held = [log.AppendStream() for _ in range(2)]
    for stream in held:
        await stream.write(request(b"x"))
        assert (await stream.read()).status.code == 0
    third = log.AppendStream()
    await third.write(request(b"x", request_id=5))
    answer = await third.read()
    assert (answer.request_id, answer.status.code) == (5, Code.TOO_MANY_CONNECTIONS)
    assert await third.read() is grpc.aio.EOF
    assert node.node_status().limits_hit["max_append_streams"] == 1
    await held[0].done_writing()
    assert await held[0].read() is grpc.aio.EOF
    fourth = log.AppendStream()
    await fourth.write(request(b"x"))
    assert (await fourth.read()).status.code == 0


def read(**fields: Any) -> log_pb2.ReadRequest:
    return log_pb2.ReadRequest(**{"group": GROUP, **fields})


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (read(group="other"), Code.UNKNOWN_GROUP),
        (read(from_index=-2), Code.UNEXPECTED_ARGUMENT),
        (read(count=-1), Code.UNEXPECTED_ARGUMENT),
        (read(mode=9), Code.UNEXPECTED_ARGUMENT),
        (read(format=9), Code.UNEXPECTED_ARGUMENT),
        (read(from_index=1000), Code.INDEX_OUT_OF_RANGE),
        (read(from_index=1000, follow=True), Code.INDEX_OUT_OF_RANGE),
    ],
)
async def test_bad_reads(log: Any, bad: log_pb2.ReadRequest, code: Code) -> None:
    await assert_lives(log)
    answers = [answer async for answer in log.ReadStream(bad)]
    assert [a.status.code for a in answers] == [code]
    if code is Code.INDEX_OUT_OF_RANGE:
        assert "0..1" in answers[0].status.message


async def test_read_streams_are_limited_and_follow_delivers_what_comes(log: Any) -> None:
    first = log.ReadStream(read(from_index=1, follow=True))
    await log.Append(request(b"one"))
    got = await first.read()
    assert [e.body for e in got.entries] == [b"one"]
    refused = await log.ReadStream(read(from_index=0)).read()
    assert refused.status.code == Code.TOO_MANY_CONNECTIONS
    await log.Append(request(b"two"))
    got = await first.read()
    assert ([e.body for e in got.entries], got.next_index) == ([b"two"], 3)


async def test_reads_in_both_formats(log: Any) -> None:
    for i in range(4):
        await log.Append(request(b"a%d" % i, b"b%d" % i))
    entries = [e async for r in log.ReadStream(read()) for e in r.entries]
    assert [e.body for e in entries] == [b"%s%d" % (c, i) for i in range(4) for c in (b"a", b"b")]
    internal = [e async for r in log.ReadStream(read(include_internal=True)) for e in r.entries]
    assert internal[0].magic == 2 and internal[1:] == entries
    some = [e async for r in log.ReadStream(read(from_index=-1, count=3)) for e in r.entries]
    assert some == entries[:3]
    frames = [r async for r in log.ReadStream(read(format=log_pb2.READ_FORMAT_FRAMES, count=3))]
    assert frames[-1].next_index == 4
    empty = [r async for r in log.ReadStream(read(from_index=9))]
    assert [(r.status.code, r.next_index, r.committed_index) for r in empty] == [(0, 9, 8)]


async def test_admin_checks_its_group_and_its_members(channel: grpc.aio.Channel) -> None:
    admin: Any = admin_pb2_grpc.AdminServiceStub(channel)
    answer = await admin.GetStatus(admin_pb2.GetStatusRequest(group="other"))
    assert answer.status.code == Code.UNKNOWN_GROUP
    answer = await admin.GetStatus(admin_pb2.GetStatusRequest())
    assert (answer.node.node_id, answer.node.group, answer.node.role) == ("n1", GROUP, "LEADER")
    transfer = await admin.TransferLeadership(admin_pb2.TransferLeadershipRequest(group=GROUP, to="n9"))
    assert transfer.status.code == Code.UNKNOWN_MEMBER
