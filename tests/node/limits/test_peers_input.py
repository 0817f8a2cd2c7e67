"""What other members may send: what is foreign, wrong or broken gets a number and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dledger.core.values import RULES_VERSION
from dledger.errors import Code
from dledger.infra.transport.channels import open_channel
from dledger.node.server import NodeServer
from dledger.rpc.envelope import PROTOCOL_VERSION
from dledger.v1 import peer_pb2 as pb
from dledger.v1 import peer_pb2_grpc
from tests.node.local import CLUSTER, GROUP, make_server
from tests.process.cluster import free_ports


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[NodeServer]:
    """n1 of three, alone: it never leads, and we play the others."""
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3), 1)}
    slow = {"timing": {"heartbeat_ms": 1000, "election_min_ms": 60_000, "election_max_ms": 90_000}}
    server = make_server(tmp_path, "n1", members, slow)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def channel(follower: NodeServer) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(follower.address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return peer_pb2_grpc.PeerServiceStub(channel)


def envelope(**fields: Any) -> pb.Envelope:
    good = {
        "version": PROTOCOL_VERSION,
        "rules_version": RULES_VERSION,
        "cluster_id": CLUSTER,
        "group": GROUP,
        "local_id": "n2",
        "remote_id": "n1",
        "members": ["n1", "n2", "n3"],
    }
    return pb.Envelope(**{**good, **fields})


WRONG = [
    ({"version": 9}, Code.UNSUPPORTED_VERSION),
    ({"version": 2}, Code.UNSUPPORTED_VERSION),
    ({"rules_version": 9}, Code.UNSUPPORTED_VERSION),
    ({"cluster_id": "other"}, Code.UNKNOWN_CLUSTER),
    ({"group": "other"}, Code.UNKNOWN_GROUP),
    ({"local_id": "n9"}, Code.UNKNOWN_MEMBER),
    ({"remote_id": "n3"}, Code.UNEXPECTED_MEMBER),
    ({"members": ["n1", "n2", "n3", "n4", "n5"]}, Code.MEMBERS_DIFFER),
    ({"members": ["n1", "n2", "n3", "n4", "n5"], "local_id": "n5"}, Code.MEMBERS_DIFFER),
    ({"members": [], "version": 1}, Code.UNSUPPORTED_VERSION),
]


@pytest.mark.parametrize(("fields", "code"), WRONG)
async def test_wrong_envelopes(follower: NodeServer, stub: Any, fields: dict[str, Any], code: Code) -> None:
    wrong = envelope(**fields)
    assert (await stub.Vote(pb.VoteRequest(envelope=wrong, term=99))).refusal.code == code
    assert (await stub.Heartbeat(pb.HeartbeatRequest(envelope=wrong, term=99))).refusal.code == code
    take = await stub.TakeLeadership(pb.TakeLeadershipRequest(envelope=wrong, term=99))
    assert take.refusal.code == code
    position = await stub.Position(pb.PositionRequest(envelope=wrong, term=99))
    assert position.refusal.code == code
    fetch = stub.Fetch(pb.FetchRequest(envelope=wrong, max_bytes=1))
    assert (await fetch.read()).refusal.code == code
    push = stub.Push()
    await push.write(pb.PushRequest(envelope=wrong, term=99, stream_id=1))
    assert (await push.read()).refusal.code == code
    assert await push.read() is grpc.aio.EOF
    assert follower.node_status().term == 0


async def test_bytes_that_are_no_protobuf(follower: NodeServer, channel: grpc.aio.Channel) -> None:
    garbage = b"\xff\xff\xff\xff"
    for method, answer_type in (
        ("Vote", pb.VoteResponse),
        ("Heartbeat", pb.HeartbeatResponse),
        ("TakeLeadership", pb.TakeLeadershipResponse),
    ):
        answer = answer_type.FromString(
            await channel.unary_unary(f"/dledger.v1.PeerService/{method}")(garbage)
        )
        assert answer.refusal.code == Code.UNEXPECTED_ARGUMENT
    push = channel.stream_stream("/dledger.v1.PeerService/Push")()
    await push.write(garbage)
    assert pb.PushResponse.FromString(await push.read()).refusal.code == Code.UNEXPECTED_ARGUMENT
    assert follower.node_status().term == 0


async def open_push(stub: Any, stream_id: int, sender: str = "n2", incarnation: int = 1) -> Any:
    push = stub.Push()
    hello = envelope(local_id=sender, incarnation=incarnation)
    await push.write(pb.PushRequest(envelope=hello, stream_id=stream_id))
    hello = await push.read()
    assert hello.refusal.code == 0 and hello.incarnation == 1
    return push


@pytest.mark.parametrize(
    "broken",
    [
        pb.PushRequest(term=1, stream_id=5),  # no oneof
        pb.PushRequest(term=-1, stream_id=5, commit=pb.Commit()),
        pb.PushRequest(term=1, stream_id=6, commit=pb.Commit()),  # another stream's
        pb.PushRequest(term=1, stream_id=5, append=pb.Append(prev_index=-1, first_index=0, last_index=0)),
        pb.PushRequest(term=1, stream_id=5, truncate=pb.Truncate(index=-4)),
    ],
)
async def test_a_broken_push_ends_its_stream_only(
    follower: NodeServer, stub: Any, broken: pb.PushRequest
) -> None:
    push = await open_push(stub, 5)
    await push.write(broken)
    assert (await push.read()).refusal.code == Code.UNEXPECTED_ARGUMENT
    assert await push.read() is grpc.aio.EOF
    again = await open_push(stub, 7)
    await again.write(pb.PushRequest(term=1, stream_id=7, compare=pb.Compare(index=-1, index_term=-1)))
    answer = await again.read()
    assert (answer.code, answer.index, answer.term) == (Code.SUCCESS, -1, 1)
    assert follower.node_status().leader_id == "n2"


async def test_frames_that_do_not_check_out_change_nothing(follower: NodeServer, stub: Any) -> None:
    push = await open_push(stub, 1)
    await push.write(pb.PushRequest(term=1, stream_id=1, compare=pb.Compare(index=-1, index_term=-1)))
    assert (await push.read()).code == Code.SUCCESS
    header = (1).to_bytes(4, "big") + (49).to_bytes(4, "big") + bytes(8) + (1).to_bytes(8, "big")
    bad = pb.Append(prev_index=-1, prev_term=-1, first_index=0, last_index=0, frames=header + bytes(25))
    await push.write(pb.PushRequest(term=1, stream_id=1, append=bad))
    assert (await push.read()).code not in (0, Code.SUCCESS)
    assert follower.node_status().ledger_end_index == -1


async def test_a_newer_stream_replaces_the_older_one(follower: NodeServer, stub: Any) -> None:
    older = await open_push(stub, 10)
    newer = await open_push(stub, 11)
    await newer.write(pb.PushRequest(term=1, stream_id=11, compare=pb.Compare(index=-1, index_term=-1)))
    assert (await newer.read()).stream_id == 11
    # The end of the older one is no news of the leader.
    older.cancel()
    await newer.write(pb.PushRequest(term=1, stream_id=11, compare=pb.Compare(index=-1, index_term=-1)))
    assert (await newer.read()).stream_id == 11
    assert follower.node_status().role == "FOLLOWER"
    overtaken = stub.Push()
    await overtaken.write(pb.PushRequest(envelope=envelope(), stream_id=9))
    assert (await overtaken.read()).incarnation == 1


#: Of n2 before it lost its directory and after it rejoined: drawn at random, and lower by chance.
BEFORE, AFTER = 9, 5


def stream_ids(incarnation: int) -> int:
    return incarnation << 32


async def compare_on(push: Any, stream_id: int, term: int = 1) -> int:
    """The number of the answer to a COMPARE that matches."""
    compare = pb.Compare(index=-1, index_term=-1)
    await push.write(pb.PushRequest(term=term, stream_id=stream_id, compare=compare))
    answer = await push.read()
    assert answer is not grpc.aio.EOF, "the stream was ended"
    return int(answer.code)


async def test_a_rejoined_leader_pushes_after_a_goodbye_of_its_former_incarnation(
    follower: NodeServer, stub: Any
) -> None:
    old = stream_ids(BEFORE)
    push = await open_push(stub, old, incarnation=BEFORE)
    assert await compare_on(push, old) == Code.SUCCESS
    await push.write(pb.PushRequest(term=1, stream_id=old, goodbye=pb.Goodbye(reason="handed over")))
    await push.done_writing()
    assert await push.read() is grpc.aio.EOF
    new = stream_ids(AFTER)
    push = await open_push(stub, new, incarnation=AFTER)
    assert await compare_on(push, new, term=2) == Code.SUCCESS


async def test_a_stream_that_said_goodbye_is_forgotten_when_it_ends(follower: NodeServer, stub: Any) -> None:
    """Whatever its id: a lower one of the same incarnation gets through after it."""
    push = await open_push(stub, 10)
    assert await compare_on(push, 10) == Code.SUCCESS
    await push.write(pb.PushRequest(term=1, stream_id=10, goodbye=pb.Goodbye(reason="handed over")))
    await push.done_writing()
    assert await push.read() is grpc.aio.EOF
    push = await open_push(stub, 9)
    assert await compare_on(push, 9, term=2) == Code.SUCCESS


async def test_a_rejoined_leader_pushes_while_its_old_connection_is_half_open(
    follower: NodeServer, stub: Any
) -> None:
    old, new = stream_ids(BEFORE), stream_ids(AFTER)
    half_open = await open_push(stub, old, incarnation=BEFORE)
    assert await compare_on(half_open, old) == Code.SUCCESS
    push = await open_push(stub, new, incarnation=AFTER)
    assert await compare_on(push, new, term=2) == Code.SUCCESS
    assert await half_open.read() is grpc.aio.EOF, "nothing is left behind for a connection nobody uses"


async def test_a_delayed_stream_of_a_former_incarnation_costs_the_live_leader_one_stream(
    follower: NodeServer, stub: Any
) -> None:
    """The live leader learns of it without sending anything: it may be waiting for an answer."""
    old, new = stream_ids(BEFORE), stream_ids(AFTER)
    live = await open_push(stub, new, incarnation=AFTER)
    assert await compare_on(live, new, term=2) == Code.SUCCESS
    delayed = await open_push(stub, old, incarnation=BEFORE)
    assert await live.read() is grpc.aio.EOF
    again = await open_push(stub, new + 1, incarnation=AFTER)
    assert await compare_on(again, new + 1, term=2) == Code.SUCCESS
    assert await delayed.read() is grpc.aio.EOF
    assert follower.node_status().leader_id == "n2"


@pytest.mark.parametrize("term", [2**63 - 2, 2**62 + 1, 2**61])
async def test_a_term_bomb_is_refused_with_a_number_and_told(
    follower: NodeServer, stub: Any, term: int
) -> None:
    good = envelope()
    for _ in range(80):  # more than may wait for an answer
        vote = await stub.Vote(pb.VoteRequest(envelope=good, term=term, ledger_end_term=3))
        assert vote.refusal.code == Code.TERM_REFUSED
    beat = await stub.Heartbeat(pb.HeartbeatRequest(envelope=good, term=term, committed_index=-1))
    assert beat.refusal.code == Code.TERM_REFUSED
    take = await stub.TakeLeadership(pb.TakeLeadershipRequest(envelope=good, term=term))
    assert take.refusal.code == Code.TERM_REFUSED
    position = await stub.Position(pb.PositionRequest(envelope=good, term=term))
    assert position.refusal.code == Code.TERM_REFUSED
    push = await open_push(stub, 5)
    await push.write(pb.PushRequest(term=term, stream_id=5, commit=pb.Commit()))
    assert (await push.read()).refusal.code == Code.TERM_REFUSED
    assert await push.read() is grpc.aio.EOF
    status = follower.node_status()
    assert status.term == 0
    assert status.limits_hit["term_advance"] == 84
    # It goes on with terms that can be.
    vote = await stub.Vote(pb.VoteRequest(envelope=good, term=1, ledger_end_index=-1, ledger_end_term=-1))
    assert vote.refusal.code == 0 and vote.vote_result == 0
