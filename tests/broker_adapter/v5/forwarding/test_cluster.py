"""Three nodes: every one takes every call, whoever is master, and while nobody is."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import dledger
from broker_adapter.api import GroupConfig
from broker_adapter.endpoints.forwarding.frames import METHOD
from broker_adapter.endpoints.forwarding.members import Members
from broker_adapter.v1 import forward_pb2
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger import TlsFiles
from dledger.infra.transport.channels import open_channel
from dledger.infra.transport.tls import ClientTls
from dledger.node.setup.config import parse_config
from tests.broker_adapter.cluster import BrokerCluster, brokers, in_step
from tests.broker_adapter.v5.forwarding.node_calls import NodeCalls, client_of
from tests.broker_adapter.v5.world import HEADERS, ack_request, receive_request, resource
from tests.node.local import CLUSTER, GROUP, until
from tests.tls.world import TlsWorld

Code = pb.Code
QUICK = {"rocketmq_v2": {"min_polling_ms": 0, "min_invisible_ms": 10, "min_retry_ms": 10}}


async def clients_of(cluster: BrokerCluster, stack: AsyncExitStack) -> dict[str, NodeCalls]:
    """One for each node."""
    return {
        node_id: await stack.enter_async_context(client_of(address))
        for node_id, address in cluster.members.items()
    }


async def drained(client: NodeCalls, count: int, group: str = "g", topic: str = "t") -> Counter[str]:
    """How often each message is received until nothing comes any more, each acknowledged."""
    found: Counter[str] = Counter()
    while True:
        messages = await client.receive(group, topic, long_polling_timeout={"seconds": 1})
        if not messages and found.total() >= count:
            return found
        for one in messages:
            found[one.system_properties.message_id] += 1
        if messages:
            answer = await client.call("AckMessage", ack_request(*messages, group=group, topic=topic))
            assert answer.status.code == Code.OK


async def test_every_node_takes_every_call(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, QUICK) as cluster, AsyncExitStack() as stack:
        clients = await clients_of(cluster, stack)
        for node_id, client in clients.items():
            answer = await client.send(f"id-{node_id}", topic=f"t-{node_id}")
            assert answer.status.code == Code.OK
            (found,) = await client.receive(topic=f"t-{node_id}")
            assert found.body == f"id-{node_id}".encode()
            for other in clients.values():
                renewed = await other.call(
                    "ChangeInvisibleDuration",
                    calls.ChangeInvisibleDurationRequest(
                        group=resource("g"),
                        topic=resource(f"t-{node_id}"),
                        receipt_handle=found.system_properties.receipt_handle,
                        invisible_duration={"seconds": 30},
                    ),
                )
                assert renewed.status.code == Code.OK
                found.system_properties.receipt_handle = renewed.receipt_handle
            acked = await client.call("AckMessage", ack_request(found, topic=f"t-{node_id}"))
            assert acked.status.code == Code.OK
        master = await cluster.master()
        others = [p for p in cluster.programs.values() if p is not master]
        assert not master.forwarder.figures.outcomes
        for program in others:
            assert program.forwarder.figures.outcomes["SendMessage", "answered"] == 1


@pytest.mark.slow
async def test_no_send_fails_while_the_master_stops_and_none_is_stored_twice(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, QUICK) as cluster, AsyncExitStack() as stack:
        master = await cluster.master()
        node_id = master.config.node_id
        clients = await clients_of(cluster, stack)
        senders = [client for name, client in clients.items() if name != node_id]
        assert (await senders[0].send("first")).status.code == Code.OK
        is_over = asyncio.Event()
        sent: list[str] = []
        refused: list[pb.Status] = []

        async def keep_sending(number: int, client: NodeCalls) -> None:
            while not is_over.is_set():
                message_id = f"id-{number}-{len(sent)}"
                answer = await client.send(message_id)
                sent.append(message_id)
                if answer.status.code != Code.OK:
                    refused.append(answer.status)

        tasks = [asyncio.create_task(keep_sending(i, senders[i % 2])) for i in range(8)]
        await until(lambda: len(sent) > 50)
        await cluster.stop(node_id)
        await cluster.master(other_than=node_id)
        after = len(sent)
        await until(lambda: len(sent) > after + 50)
        is_over.set()
        await asyncio.gather(*tasks)
        assert refused == []
        found = await drained(senders[0], len(sent) + 1)
        assert found == Counter(["first", *sent])


@pytest.mark.parametrize("of", ["the master", "another node"])
async def test_a_node_that_stops_takes_calls_until_it_closes_its_connections(tmp_path: Path, of: str) -> None:
    """No call is answered with a refusal: clients would use up their tries on it."""
    async with brokers(tmp_path, 3, QUICK) as cluster, AsyncExitStack() as stack:
        master = (await cluster.master()).config.node_id
        node_id = master if of == "the master" else next(n for n in cluster.members if n != master)
        clients = await clients_of(cluster, stack)
        stopping = clients.pop(node_id)
        await stopping.call("QueryRoute", calls.QueryRouteRequest(topic=resource("t-2")))
        sent: list[str] = []
        doubtful: list[str] = []
        refused: list[pb.Status] = []

        async def keep_sending(number: int) -> None:
            while True:
                message_id = f"id-{number}-{len(sent)}"
                try:
                    answer = await stopping.send(message_id)
                except grpc.aio.AioRpcError as error:
                    assert error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
                    doubtful.append(message_id)
                    return
                sent.append(message_id)
                if answer.status.code != Code.OK:
                    refused.append(answer.status)

        tasks = [asyncio.create_task(keep_sending(i)) for i in range(8)]
        await until(lambda: len(sent) > 50)
        waiting = asyncio.create_task(stopping.receive("g", "t-2", long_polling_timeout={"seconds": 9}))
        service = cluster.programs[node_id].clients.service
        await until(lambda: service.waiting_receives == 1)
        await cluster.stop(node_id)
        await asyncio.gather(*tasks)
        assert refused == [] and await waiting == []
        found = await drained(next(iter(clients.values())), len(sent))
        assert Counter(sent) <= found <= Counter([*sent, *doubtful])


async def test_consumers_are_told_at_every_node_when_their_group_changes(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, QUICK) as cluster, AsyncExitStack() as stack:
        master = await cluster.master()
        await master.broker.put_group(GroupConfig("g", retry_max_times=2))
        await in_step(*cluster.programs.values())
        settings = pb.Settings(
            client_type=pb.ClientType.PUSH_CONSUMER, subscription=pb.Subscription(group=resource("g"))
        )
        streams = [client.telemetry() for client in (await clients_of(cluster, stack)).values()]
        for stream in streams:
            await stream.write(calls.TelemetryCommand(settings=settings))
            assert (await stream.read()).settings.backoff_policy.max_attempts == 3
        await master.broker.put_group(GroupConfig("g", retry_max_times=5))
        for stream in streams:
            assert (await stream.read()).settings.backoff_policy.max_attempts == 6
            stream.cancel()


async def test_a_client_that_hangs_up_ends_its_receive_at_the_master(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, QUICK) as cluster, AsyncExitStack() as stack:
        master = await cluster.master()
        clients = await clients_of(cluster, stack)
        follower = next(client for name, client in clients.items() if name != master.config.node_id)
        await follower.send("id-1")
        (found,) = await follower.receive()
        await follower.call("AckMessage", ack_request(found))
        waiting = follower.stream("ReceiveMessage", receive_request(long_polling_timeout={"seconds": 9}))
        reading = asyncio.create_task(waiting.read())
        await until(lambda: master.delivery.figures().waiting_receives == 1)
        waiting.cancel()
        await until(lambda: master.delivery.figures().waiting_receives == 0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_calls_wait_for_a_master_up_to_their_deadline(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, QUICK) as cluster, AsyncExitStack() as stack:
        clients = await clients_of(cluster, stack)
        assert (await clients["n1"].send("id-1")).status.code == Code.OK
        await cluster.stop("n2", "n3")
        await until(lambda: not cluster.masters)
        answer = await clients["n1"].send("id-2", timeout=4.0)
        assert answer.status.code == Code.HA_NOT_AVAILABLE
        late = asyncio.create_task(clients["n1"].send("id-3", timeout=60.0))
        held = cluster.programs["n1"].forwarder.figures
        assert held.held >= 1 and held.held_s > 0
        await cluster.start("n2", "n3")
        assert (await late).status.code == Code.OK


async def test_an_orphan_check_reaches_a_producer_that_another_node_serves(tmp_path: Path) -> None:
    settings = {**QUICK, "delivery": {"check_first_ms": 300, "check_again_ms": 300}}
    async with brokers(tmp_path, 3, settings) as cluster, AsyncExitStack() as stack:
        master = await cluster.master()
        address = next(a for name, a in cluster.members.items() if name != master.config.node_id)
        listener = await stack.enter_async_context(client_of(address, {**HEADERS, "x-mq-client-id": "other"}))
        sender = await stack.enter_async_context(client_of(address, {**HEADERS, "x-mq-client-id": "sender"}))
        talk = listener.telemetry()
        settings_of = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing={"topics": [resource("t")]})
        await talk.write(calls.TelemetryCommand(settings=settings_of))
        assert (await talk.read()).WhichOneof("command") == "settings"
        answer = await sender.send("half", message_type=pb.MessageType.TRANSACTION)
        assert answer.status.code == Code.OK
        asked = await talk.read()
        command = asked.recover_orphaned_transaction_command
        assert command.transaction_id == answer.entries[0].transaction_id
        assert command.message.body == b"half"
        await talk.done_writing()
        ended = calls.EndTransactionRequest(
            topic=resource("t"),
            transaction_id=command.transaction_id,
            resolution=pb.TransactionResolution.COMMIT,
        )
        assert (await listener.call("EndTransaction", ended)).status.code == Code.OK
        assert [one.body for one in await sender.receive(long_polling_timeout={"seconds": 2})] == [b"half"]
        await until(lambda: all("other" not in node.infos for node in master.clients.connected._nodes))


@pytest.mark.parametrize("kind", [pb.MessageType.NORMAL, pb.MessageType.DELAY, pb.MessageType.TRANSACTION])
async def test_a_repetition_over_another_node_is_stored_once(tmp_path: Path, kind: pb.MessageType) -> None:
    async with brokers(tmp_path, 3, QUICK) as cluster, AsyncExitStack() as stack:
        clients = await clients_of(cluster, stack)
        more = {"delivery_timestamp": {"seconds": 1}} if kind == pb.MessageType.DELAY else {}
        answers = [
            (await client.send("same", message_type=kind, **more)).entries[0] for client in clients.values()
        ]
        assert len({(one.offset, one.transaction_id) for one in answers}) == 1
        if kind == pb.MessageType.NORMAL:
            assert await drained(clients["n1"], 1) == Counter(["same"])


async def test_with_mutual_tls_only_a_members_certificate_may_forward(tmp_path: Path) -> None:
    tls = TlsWorld(tmp_path)
    sections = {node: tls.section(tls.files(node)) for node in tls.members}
    app = tls.client_files()

    async def welcome_of(node_id: str, files: TlsFiles) -> int:
        """What n1 says to a stream with these files, in the name of n2."""
        config = parse_config(
            {
                "directory": str(tmp_path),
                "node_id": node_id,
                "cluster_id": CLUSTER,
                "group": GROUP,
                "members": cluster.members,
                "tls": tls.section(files),
            }
        )
        members = Members(config)
        async with open_channel(members.address("n1"), members.security("n1")) as channel:
            method: Any = channel.stream_stream(
                METHOD,
                request_serializer=forward_pb2.FromNode.SerializeToString,
                response_deserializer=forward_pb2.FromMaster.FromString,
            )
            stream = method()
            await stream.write(forward_pb2.FromNode(hello=members.hello("n1")))
            return int((await stream.read()).welcome.code)

    async with brokers(tmp_path, 3, QUICK, tls_of=sections) as cluster, AsyncExitStack() as stack:
        security = ClientTls(app)()
        for node_id, address in cluster.members.items():
            client = await stack.enter_async_context(client_of(address, security=security))
            assert (await client.send(f"id-{node_id}")).status.code == Code.OK
        assert await welcome_of("n2", app) == dledger.Code.CERTIFICATE_REFUSED
        n2 = sections["n2"]
        assert await welcome_of("n2", TlsFiles(n2["ca"], n2["certificate"], n2["key"])) == 0
