"""Who pretends to be a member of the cluster, or a broker: envelopes without the secret, terms out of reach,
registrations in other names."""

from __future__ import annotations

from itertools import count
from typing import Any

import grpc.aio

from broker_adapter.v1 import forward_pb2 as forward
from broker_adapter.v1 import namesrv_pb2 as namesrv
from broker_adapter.v1 import namesrv_pb2_grpc as namesrv_grpc
from chaos.hostile.world import World
from dledger.platform import open_channel
from dledger.v1 import peer_pb2 as peer
from dledger.v1 import peer_pb2_grpc as peer_grpc

_TIMEOUT_S = 5.0
_FAR_TERMS = (1, 1_000, 1 << 40, 1 << 61, (1 << 62) - 2, (1 << 63) - 2)
#: Beyond the 2^32 by which a term may lie above the greatest that is known; below that a NameServer in plain
#: text believes whoever can connect (docs/namesrv.md).
_IMPOSSIBLE_TERMS = (1 << 40, 1 << 61, (1 << 63) - 1)
_TOPICS_OF_A_BROKER = 50


async def forged_peers(world: World) -> None:
    """Votes, heartbeats, pushes and questions in the name of a member, without the secret of the cluster or
    with another one."""
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


async def _forge(world: World, channel: grpc.aio.Channel, sender: peer.Envelope) -> Any:
    """The answer, None without one."""
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


async def _forge_forwarding(world: World, channel: grpc.aio.Channel, sender: str, to: str) -> None:
    """Calls of clients that seem to come by way of a member."""
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


async def forged_registrations(world: World) -> None:
    """The brokers of others, registered as their master in terms that nobody can reach."""
    orders = world.orders

    async def once(number: int) -> None:
        node = world.rng.choice(sorted(orders.nodes))
        request = namesrv.RegisterBrokerRequest(
            cluster="DefaultCluster",
            broker_name="broker-a",
            node_id=node,
            broker_id=0,
            role="SYNC_MASTER",
            address="127.0.0.1:1",
            term=world.rng.choice(_IMPOSSIBLE_TERMS),
            role_epoch=1 << 50,
            data_version=1 << 50,
            topics=[
                namesrv.TopicQueues(topic=t, read_queues=1, write_queues=1, perm=6) for t in orders.topics
            ],
        )
        await _register(world, request)

    await world.repeat(once)


async def registration_floods(world: World) -> None:
    """Brokers of names that nobody has, with topics, as many as the NameServer takes."""
    numbers = count()

    async def once(number: int) -> None:
        name = f"hostile-{next(numbers)}"
        topics = [_queues_of(f"{name}-{n}") for n in range(_TOPICS_OF_A_BROKER)]
        request = namesrv.RegisterBrokerRequest(
            cluster="hostile",
            broker_name=name,
            node_id="n1",
            broker_id=0,
            role="SYNC_MASTER",
            address="127.0.0.1:1",
            term=1,
            role_epoch=1,
            data_version=1,
            topics=topics,
            expire_ms=600_000,
        )
        await _register(world, request)

    await world.repeat(once)


def _queues_of(topic: str) -> namesrv.TopicQueues:
    return namesrv.TopicQueues(topic=topic, read_queues=1, write_queues=1, perm=6)


async def _register(world: World, request: namesrv.RegisterBrokerRequest) -> None:
    address = world.rng.choice(world.orders.namesrv)
    async with open_channel(address) as channel:
        stub: Any = namesrv_grpc.NameServerServiceStub(channel)
        answer = await stub.Register(request, timeout=_TIMEOUT_S)
    if answer.status.code:
        world.refused(answer.status.code)
    else:
        world.count("registered")
