"""Clients that impersonate a cluster member or a broker. They send envelopes without the secret, terms that
are far ahead, and registrations of foreign brokers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

import grpc.aio

from broker_adapter.errors import AnswerMissing
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.v1 import forward_pb2 as forward
from chaos.hostile.world import HostileWorld
from dledger.infra.transport.channels import open_channel
from dledger.v1 import peer_pb2 as peer
from dledger.v1 import peer_pb2_grpc as peer_grpc

_TIMEOUT_S = 5.0
_FAR_TERMS = (1, 1_000, 1 << 40, 1 << 61, (1 << 62) - 2, (1 << 63) - 2)
#: Terms more than 2^32 above the highest known one, which are refused. Below that limit, a NameServer in
#: plain text trusts every client (docs/namesrv.md).
_IMPOSSIBLE_TERMS = (1 << 40, 1 << 61, (1 << 63) - 1)
_TOPICS_OF_A_BROKER = 50


async def forged_peers(world: HostileWorld) -> None:
    """Send votes, heartbeats, pushes and fetches in the name of a member, without the cluster's secret or
    with a wrong one."""
    orders = world.orders

    def envelope(sender: str, to: str) -> peer.Envelope:
        return peer.Envelope(
            version=2,
            cluster_id=orders.cluster_id,
            group=orders.group,
            local_id=sender,
            remote_id=to,
            incarnation=world.rng.choice((0, 1, 1 << 30)),
            members=sorted(orders.nodes),
            secret=world.rng.choice((b"", b"0" * 32, world.rng.randbytes(32))),
        )

    async def once(number: int) -> None:
        to = world.rng.choice(sorted(orders.nodes))
        sender = world.rng.choice([node for node in orders.nodes if node != to] or [to])
        async with open_channel(orders.nodes[to]) as channel:
            answer = await _forge(world, channel, envelope(sender, to))
            world.count("forged")
            if answer is not None and answer.refusal.code:
                world.refused(answer.refusal.code)
            elif answer is not None:
                world.count("believed")
            await _forge_forwarding(world, channel, sender, to)

    await world.repeat(once)


async def _forge(world: HostileWorld, channel: grpc.aio.Channel, sender: peer.Envelope) -> Any:
    """Send a forged request. Returns the answer, or None if there is none."""
    stub: Any = peer_grpc.PeerServiceStub(channel)
    term, how = world.rng.choice(_FAR_TERMS), world.rng.randrange(5)
    if how == 0:
        vote = peer.VoteRequest(envelope=sender, term=term, ledger_end_index=1 << 40, ledger_end_term=term)
        vote.transfer = world.rng.random() < 0.5
        return await stub.Vote(vote, timeout=_TIMEOUT_S)
    if how == 1:
        beat = peer.HeartbeatRequest(envelope=sender, term=term, round=1, committed_index=1 << 40)
        return await stub.Heartbeat(beat, timeout=_TIMEOUT_S)
    if how == 2:
        take = peer.TakeLeadershipRequest(envelope=sender, term=term, take_leadership_index=1 << 40)
        return await stub.TakeLeadership(take, timeout=_TIMEOUT_S)
    if how == 3:
        fetch = peer.FetchRequest(envelope=sender, first_index=0, last_index=1 << 40, uncommitted=True)
        async for part in stub.Fetch(fetch, timeout=_TIMEOUT_S):
            return part
        return None
    push = peer.PushRequest(envelope=sender, term=term, stream_id=1, committed_index=1 << 40)
    push.truncate.index = 1
    async for part in stub.Push(iter([push]), timeout=_TIMEOUT_S):
        return part
    return None


async def _forge_forwarding(world: HostileWorld, channel: grpc.aio.Channel, sender: str, to: str) -> None:
    """Send client calls that claim to be forwarded by a member."""
    if not world.orders.namesrv:
        return
    hello = forward.ForwardHello(
        version=1,
        cluster_id=world.orders.cluster_id,
        group=world.orders.group,
        node_id=sender,
        remote_id=to,
        secret=world.rng.randbytes(32),
    )
    call: Any = channel.stream_stream("/dledger.broker.v1.ForwardService/Forward")(timeout=_TIMEOUT_S)
    await call.write(forward.FromNode(hello=hello).SerializeToString())
    answer = await call.read()
    if isinstance(answer, bytes) and (code := forward.FromMaster.FromString(answer).welcome.code):
        world.refused(code)
    call.cancel()


async def forged_registrations(world: HostileWorld) -> None:
    """Register foreign brokers as their master, in unreachable terms."""
    orders = world.orders

    async def once(number: int) -> None:
        fields = {
            "brokerName": "broker-a",
            "clusterName": "DefaultCluster",
            "nodeId": world.rng.choice(sorted(orders.nodes)),
            "term": str(world.rng.choice(_IMPOSSIBLE_TERMS)),
            "roleEpoch": str(1 << 50),
        }
        await _register(world, fields, orders.topics, 1 << 50)

    await world.repeat(once)


async def registration_floods(world: HostileWorld) -> None:
    """Register unknown brokers with topics, up to the NameServer's limit.

    Each registration ends with its connection, but the NameServer remembers the name for a while.
    """
    numbers = count()

    async def once(number: int) -> None:
        name = f"hostile-{next(numbers)}"
        fields = {
            "brokerName": name,
            "clusterName": "hostile",
            "nodeId": "n1",
            "term": "1",
            "roleEpoch": "1",
            "heartbeatTimeoutMillis": "600000",
        }
        await _register(world, fields, [f"{name}-{n}" for n in range(_TOPICS_OF_A_BROKER)], 1)

    await world.repeat(once)


async def _register(world: HostileWorld, fields: dict[str, str], topics: Iterable[str], version: int) -> None:
    table = {
        topic: {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for topic in topics
    }
    wrapper = {"topicConfigTable": table, "dataVersion": {"counter": version}}
    request = RemotingCommand(
        RequestCode.REGISTER_BROKER,
        {**fields, "brokerId": "0", "brokerAddr": "127.0.0.1:1"},
        json.dumps({"topicConfigSerializeWrapper": wrapper}).encode(),
    )
    try:
        connection = await connect(world.rng.choice(world.orders.namesrv), timeout_s=_TIMEOUT_S)
        try:
            answer = await connection.invoke(request, _TIMEOUT_S)
        finally:
            connection.close("it has answered")
    except AnswerMissing as error:
        raise ConnectionError(error.message) from None
    if answer.code:
        world.refused((answer.remark or "").partition(" ")[0] or answer.code)
    else:
        world.count("registered")
