"""Messages of 4 MiB, RocketMQ's limit, through every door, with default limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig
from broker_adapter.client import Admin, ClientOptions, Message, MessageQueue, Producer, PullConsumer
from broker_adapter.client.core.queue_choice import QueueNumber
from broker_adapter.server.program import BrokerProgram
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger import AsyncClient, ConfigError
from tests.broker_adapter.cluster import BrokerCluster, bodies, brokers, in_step
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import LISTEN
from tests.broker_adapter.v5.forwarding.node_calls import NodeCalls, client_of
from tests.broker_adapter.v5.world import ack_request, message, resource
from tests.node.local import until

pytestmark = pytest.mark.timeout(120)

LARGEST = 4 << 20
BODY = b"x" * LARGEST
#: As many as a client may have.
PROPERTIES = {"k": "v" * (16 * 1024 - 1)}
FILE = 16 << 20
KINDS, Code = pb.MessageType, pb.Code
QUICK: dict[str, Any] = {"rocketmq_v2": {"min_polling_ms": 0, "min_invisible_ms": 10, "min_retry_ms": 10}}


@asynccontextmanager
async def world(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[BrokerCluster, NodeCalls]]:
    """Three nodes, and a client at one that is not the master."""
    async with brokers(tmp_path, 3, QUICK, data_file_size=FILE, **more) as cluster:
        master = await cluster.master()
        other = next(node for node in cluster.members if node != master.config.node_id)
        async with client_of(cluster.members[other]) as client:
            yield cluster, client


def largest(topic: str, message_id: str, body: bytes = BODY, **system: Any) -> calls.SendMessageRequest:
    made = message(body, topic, message_id, user_properties=PROPERTIES, **system)
    return calls.SendMessageRequest(messages=[made])


async def sent(client: NodeCalls, request: calls.SendMessageRequest) -> calls.SendMessageResponse:
    answer: calls.SendMessageResponse = await client.call("SendMessage", request, 30)
    return answer


async def received(client: NodeCalls, topic: str, group: str = "g") -> pb.Message:
    (found,) = await client.receive(group, topic)
    assert found.body == BODY and found.user_properties["k"] == PROPERTIES["k"]
    return found


async def test_sends_of_all_kinds_and_receives_reach_the_master_through_other_nodes(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, client):
        plain = await sent(client, largest("plain", "1"))
        assert plain.status.code == Code.OK
        answer = await client.call("AckMessage", ack_request(await received(client, "plain"), topic="plain"))
        assert answer.status.code == Code.OK
        ordered = largest("ordered", "2", message_type=KINDS.FIFO, message_group="g")
        assert (await sent(client, ordered)).status.code == Code.OK
        await received(client, "ordered")
        delayed = largest("delayed", "3", message_type=KINDS.DELAY)
        delayed.messages[0].system_properties.delivery_timestamp.GetCurrentTime()
        assert (await sent(client, delayed)).status.code == Code.OK
        await received(client, "delayed")
        half = await sent(client, largest("halves", "4", message_type=KINDS.TRANSACTION))
        assert half.status.code == Code.OK
        commit = calls.EndTransactionRequest(
            topic=resource("halves"),
            message_id="4",
            transaction_id=half.entries[0].transaction_id,
            resolution=pb.TransactionResolution.COMMIT,
        )
        assert (await client.call("EndTransaction", commit)).status.code == Code.OK
        await received(client, "halves")
        more = await sent(client, largest("plain", "5", BODY + b"x"))
        assert more.status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_it_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with world(tmp_path) as (cluster, client):
        master = await cluster.master()
        await master.broker.put_group(GroupConfig("g", retry_max_times=0))
        assert (await sent(client, largest("t", "1"))).status.code == Code.OK
        found = await received(client, "t")
        give_up = calls.ForwardMessageToDeadLetterQueueRequest(
            group=resource("g"),
            topic=resource("t"),
            receipt_handle=found.system_properties.receipt_handle,
            message_id="1",
        )
        answer = await client.call("ForwardMessageToDeadLetterQueue", give_up)
        assert answer.status.code == Code.OK
        await received(client, "%DLQ%g", "other")


async def test_a_producer_is_asked_about_its_transaction(tmp_path: Path) -> None:
    settings = {**QUICK, "delivery": {"check_first_ms": 100, "check_again_ms": 100}}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(brokers(tmp_path, 1, settings, data_file_size=FILE))
        client = await stack.enter_async_context(client_of(cluster.members["n1"]))
        stream = client.telemetry()
        publishing = pb.Publishing(topics=[resource("t")])
        settled = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing)
        await stream.write(calls.TelemetryCommand(settings=settled))
        assert (await stream.read()).settings.publishing.max_body_size == LARGEST
        half = await sent(client, largest("t", "1", message_type=KINDS.TRANSACTION))
        assert half.status.code == Code.OK
        asked = (await stream.read()).recover_orphaned_transaction_command
        assert asked.message.body == BODY
        stream.cancel()


async def test_producers_and_consumers_of_the_remoting_protocol(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(name_server(tmp_path / "namesrv"))
        settings = {**LISTEN, "namesrv": [server.address]}
        await stack.enter_async_context(brokers(tmp_path, 3, settings, data_file_size=FILE))
        names = server.address
        admin = await stack.enter_async_context(Admin(names, options=ClientOptions(timeout=60.0)))
        await admin.create_topic("t", queues=1)
        # Compressed it would not be large.
        plain = ClientOptions(compress_above_bytes=LARGEST + 1)
        producer = await stack.enter_async_context(Producer("p", names, options=plain))
        consumer = await stack.enter_async_context(PullConsumer("g", names))
        result = await producer.send(Message("t", BODY), selector=QueueNumber(0))
        found = await consumer.pull(MessageQueue("t", "broker-a", 0), result.queue_offset, timeout=10)
        assert [one.body for one in found.messages] == [BODY]


@pytest.mark.slow
async def test_a_delayed_one_outlives_the_log_that_held_it(tmp_path: Path) -> None:
    """In the image, on all nodes."""
    async with world(tmp_path, retention={"check_interval": "200ms"}) as (cluster, client):
        delayed = largest("t", "1", message_type=KINDS.DELAY)
        delayed.messages[0].system_properties.delivery_timestamp.GetCurrentTime()
        delayed.messages[0].system_properties.delivery_timestamp.seconds += 3600
        handle = (await sent(client, delayed)).entries[0].recall_handle
        for number in range(2 * FILE // LARGEST):
            assert (await sent(client, largest("u", f"u{number}"))).status.code == Code.OK
        await in_step(*cluster.programs.values())
        for program in cluster.programs.values():
            found = [await bodies(program, "u", queue_id) for queue_id in range(2)]
            assert sum(map(len, found)) == 2 * FILE // LARGEST
            assert all(body == BODY for of_queue in found for body in of_queue)
        await purged(cluster, await cluster.master())
        await cluster.stop()
        await cluster.start()
        master = await cluster.master()
        assert len(master.delivery_state.deferred) == 1
        recall = calls.RecallMessageRequest(topic=resource("t"), recall_handle=handle)
        answer = await client.call("RecallMessage", recall, 10)
        assert answer.status.code == Code.OK and answer.message_id == "1"


async def purged(cluster: BrokerCluster, master: BrokerProgram) -> None:
    """Until an image stands for all that was written so far."""
    begin = master.node.begin_pos
    async with AsyncClient(list(cluster.members.values()), group=master.config.group) as admin:
        await admin.purge(master.node.committed_index)
    await until(lambda: all(p.node.begin_pos > begin for p in cluster.programs.values()))


async def test_small_data_files_and_smaller_limits_bound_what_is_told_to_clients(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, data_file_size=1 << 20) as cluster:
        master = await cluster.master()
        most = master.writer.max_body_bytes
        assert 900_000 < most < 1 << 20
        async with client_of(cluster.members["n1"]) as client:
            assert (await sent(client, largest("t", "1", b"x" * most))).status.code == Code.OK
            refused = await sent(client, largest("t", "2", b"x" * (most + 1)))
            assert refused.status.code == Code.MESSAGE_BODY_TOO_LARGE
    with pytest.raises(ConfigError, match="max_batch_bytes"):
        async with brokers(tmp_path / "tiny", 1, data_file_size=16 << 10):
            raise AssertionError("a broker without room for a message has started")


@pytest.mark.slow
async def test_many_at_once_are_stored_or_refused(tmp_path: Path) -> None:
    """What waits is bounded in bytes; who is refused may try again."""
    async with world(tmp_path) as (cluster, client):
        await client.send("first")
        answers = await asyncio.gather(*[sent(client, largest("t", f"id{i}")) for i in range(32)])
        codes = {answer.status.code for answer in answers}
        assert Code.OK in codes and codes <= {Code.OK, Code.TOO_MANY_REQUESTS}
        stored = [a for a in answers if a.status.code == Code.OK]
        master = await cluster.master()
        await in_step(master)
        found = [await bodies(master, "t", queue_id) for queue_id in range(2)]
        assert sum(map(len, found)) == len(stored) + 1
