"""A message there and back, as the simplest client would."""

from __future__ import annotations

import asyncio

from google.protobuf.duration_pb2 import Duration

from broker_adapter.api import OutgoingMessage
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from tests.broker_adapter.v5.world import ack_request, message, receive_request, resource, world

OK = pb.Code.OK


async def test_a_message_is_sent_received_and_acknowledged() -> None:
    async with world() as w:
        sent = await w.send(message(b"hello", tag="a", keys=["k1", "k2"], user_properties={"p": "1"}))
        assert sent.status.code == OK
        assert [entry.status.code for entry in sent.entries] == [OK]
        answers = await w.receive()
        assert [answer.WhichOneof("content") for answer in answers] == [
            "status",
            "message",
            "delivery_timestamp",
        ]
        got = answers[1].message
        system = got.system_properties
        assert got.body == b"hello" and dict(got.user_properties) == {"p": "1"}
        assert (system.tag, list(system.keys), system.message_id) == ("a", ["k1", "k2"], "id-1")
        assert system.delivery_attempt == 1 and system.receipt_handle
        acked = await w.call("AckMessage", ack_request(got))
        assert acked.status.code == OK
        again = await w.call("AckMessage", ack_request(got))
        assert again.status.code == pb.Code.INVALID_RECEIPT_HANDLE
        assert await w.messages() == []


async def test_what_a_request_has_in_fields_that_are_not_known_is_in_no_answer() -> None:
    """It would be in each of thousands of queues or messages, as the topic is."""
    fat = resource("t")
    fat.MergeFromString(b"\x7a\x64" + b"A" * 100)  # field 15, 100 bytes
    queue = pb.MessageQueue(topic=fat, id=0)
    received = receive_request()
    received.message_queue.CopyFrom(queue)
    async with world() as w:
        await w.send(message(b"hello"))
        await w.cluster.brokers[0].send("t", [OutgoingMessage(b"hello")], queue_id=0)
        group = resource("g")
        answers = [
            await w.call("QueryRoute", calls.QueryRouteRequest(topic=fat)),
            await w.call("QueryAssignment", calls.QueryAssignmentRequest(topic=fat, group=group)),
            *await w.stream("ReceiveMessage", received),
            *await w.stream(
                "PullMessage", calls.PullMessageRequest(group=group, message_queue=queue, batch_size=1)
            ),
        ]
        assert sum(b"hello" in answer.SerializeToString() for answer in answers) == 2
        assert not [answer for answer in answers if b"AAAA" in answer.SerializeToString()]


async def test_a_topic_that_nobody_has_sent_to_has_a_route_and_is_not_created_by_asking_for_it() -> None:
    async with world() as w:
        route = await w.call("QueryRoute", calls.QueryRouteRequest(topic=resource("fresh")))
        assert route.status.code == OK
        assert {queue.topic.name for queue in route.message_queues} == {"fresh"}
        assert not w.delivery.topics
        sent = await w.send(message(topic="fresh"))
        assert sent.status.code == OK
        assert route == await w.call("QueryRoute", calls.QueryRouteRequest(topic=resource("fresh")))


async def test_a_consumer_waits_for_a_topic_that_nobody_has_sent_to() -> None:
    async with world() as w:
        assert await w.messages(topic="fresh") == []
        assert not w.delivery.topics
        wait = Duration(seconds=9)
        waiting = asyncio.create_task(w.messages(topic="fresh", long_polling_timeout=wait))
        await asyncio.sleep(0)
        await w.send(message(b"first", topic="fresh"))
        (got,) = await waiting
        assert got.body == b"first"


async def test_heartbeat_and_termination_reach_the_delivery() -> None:
    async with world() as w:
        beat = calls.HeartbeatRequest(group=resource("g"), client_type=pb.ClientType.PUSH_CONSUMER)
        assert (await w.call("Heartbeat", beat)).status.code == OK
        gone = calls.NotifyClientTerminationRequest(group=resource("g"))
        assert (await w.call("NotifyClientTermination", gone)).status.code == OK
        assert w.delivery.heard == [("client-1", "g")] and w.delivery.released == [("client-1", "g")]
