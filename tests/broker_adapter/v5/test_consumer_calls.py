"""ReceiveMessage and what consumers do with what they got."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import Busy, NotMaster, PutIndeterminate, ReadFailed, Status
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from tests.broker_adapter.v5.world import (
    QUICK,
    World,
    ack_request,
    message,
    receive_request,
    resource,
    world,
)

Code = pb.Code


async def fill(w: World, count: int) -> None:
    for i in range(count):
        assert (await w.send(message(b"%d" % i, message_id=f"m{i}"))).status.code == Code.OK


def change(handle: str, ms: int, group: str = "g") -> calls.ChangeInvisibleDurationRequest:
    request = calls.ChangeInvisibleDurationRequest(
        group=resource(group), topic=resource("t"), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(ms)
    return request


async def test_nothing_is_a_status_and_a_time() -> None:
    async with world() as w:
        answers = await w.receive()
        assert answers[0].status.code == Code.MESSAGE_NOT_FOUND
        assert [answer.WhichOneof("content") for answer in answers] == ["status", "delivery_timestamp"]


async def test_memory_of_a_batch_is_released_once_its_response_is_written() -> None:
    async with world() as w:
        await fill(w, 2)
        assert len(await w.messages()) == 2 and not await w.messages()
        assert w.delivery.closed == len(w.delivery.batches) == 2


async def test_messages_of_all_queues_come_by_any_of_them() -> None:
    """Quirk: clients in Node.js ask for queue 0 only, those in C++ for -1."""
    async with world() as w:
        await fill(w, 8)
        request = receive_request()
        request.message_queue.id = 0
        answers = await w.stream("ReceiveMessage", request)
        found = {a.message.system_properties.queue_id for a in answers if a.HasField("message")}
        assert len(found) > 1


async def test_the_batch_size_is_kept_and_the_rest_comes_later() -> None:
    async with world() as w:
        await fill(w, 5)
        first = await w.messages(batch_size=3)
        assert len(first) == 3 and len(await w.messages(batch_size=32)) == 2


async def test_topics_come_back_as_they_were_asked_for() -> None:
    async with world() as w:
        given = message()
        given.topic.CopyFrom(resource("t", "ns"))
        await w.send(given)
        assert set(w.delivery.topics) == {"ns%t"}
        request = receive_request()
        request.message_queue.topic.CopyFrom(resource("t", "ns"))
        answers = await w.stream("ReceiveMessage", request)
        assert answers[1].message.topic == resource("t", "ns")


async def test_a_receive_waits_for_a_message() -> None:
    async with world() as w:
        request = receive_request(long_polling_timeout={"seconds": 8})
        call = w.channel.unary_stream("/apache.rocketmq.v2.MessagingService/ReceiveMessage")(
            request.SerializeToString(), metadata=(("x-mq-client-id", "c"),), timeout=10
        )
        first = call.read()
        await w.send(message(b"late"))
        assert calls.ReceiveMessageResponse.FromString(await first).status.code == Code.OK


@pytest.mark.parametrize(
    ("wanted_ms", "timeout_s", "expected"),
    [
        (0, 60.0, 5_000),  # no hot loop for clients that do not want to wait
        (7_000, 60.0, 7_000),
        (60_000, 60.0, 20_000),
        (7_000, 3.0, 2_700),
        (7_000, 0.1, 0),
        (7_000, None, 7_000),
    ],
)
async def test_the_wait_is_within_bounds_and_the_deadline(
    wanted_ms: int, timeout_s: float | None, expected: int
) -> None:
    settings = QUICK.model_copy(update={"min_polling_ms": 5_000})
    async with world(settings) as w:
        await w.send(message())
        request = receive_request()
        request.long_polling_timeout.FromMilliseconds(wanted_ms)
        context = CallContext("c", timeout_s=timeout_s)
        stream = w.handlers.stream(Request("ReceiveMessage", request.SerializeToString()), context)
        assert [answer async for answer in stream]
        assert [wait for *_, wait in w.delivery.receives] == [expected]


async def test_push_consumers_leave_the_time_to_the_server() -> None:
    async with world() as w:
        await w.send(message())
        await w.stream("ReceiveMessage", receive_request(auto_renew=True))
        await w.stream("ReceiveMessage", receive_request(invisible_duration={"seconds": 30}))
        assert [invisible for _, _, invisible, _ in w.delivery.receives] == [0, 30_000]


async def test_an_attempt_that_is_repeated_gets_the_same_messages() -> None:
    async with world() as w:
        await fill(w, 2)
        first = await w.messages(auto_renew=True, attempt_id="a1")
        again = await w.messages(auto_renew=True, attempt_id="a1")
        assert [m.body for m in first] == [m.body for m in again]
        assert [m.system_properties.delivery_attempt for m in again] == [1, 1]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"batch_size": 0}, Code.BAD_REQUEST),
        ({"attempt_id": "x" * 256}, Code.BAD_REQUEST),
        ({"invisible_duration": {"nanos": 1_000_000}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": 13 * 3600}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"long_polling_timeout": {"seconds": -1}}, Code.ILLEGAL_POLLING_TIME),
        ({"group": "no such name"}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"topic": "no such name"}, Code.ILLEGAL_TOPIC),
        ({"filter_expression": {"type": 2, "expression": "a ="}}, Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_a_receive_that_is_wrong_has_its_code(fields: dict[str, Any], code: int) -> None:
    async with world() as w:
        (answer,) = await w.receive(**fields)
        assert answer.status.code == code


async def test_filters_are_those_of_the_request() -> None:
    async with world() as w:
        for tag in ("a", "b", "c"):
            await w.send(message(tag.encode(), message_id=tag, tag=tag, user_properties={"n": "1"}))
        tags = {"type": 1, "expression": "a || c"}
        assert sorted(m.body for m in await w.messages("g1", filter_expression=tags)) == [b"a", b"c"]
        sql = {"type": 2, "expression": "TAGS = 'b' AND n = 1"}
        assert [m.body for m in await w.messages("g2", filter_expression=sql)] == [b"b"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ReadFailed(Status.GROUP_NOT_ENABLED, "no"), Code.FORBIDDEN),
        (NotMaster("no"), Code.HA_NOT_AVAILABLE),
        (ReadFailed(Status.NOT_CONFIRMED, "not yet"), Code.HA_NOT_AVAILABLE),
    ],
)
async def test_errors_of_a_receive_are_its_status(error: Any, code: int) -> None:
    async with world() as w:
        w.delivery.fail_with = error
        (answer,) = await w.receive()
        assert answer.status.code == code


async def test_each_entry_of_an_ack_has_its_status() -> None:
    async with world() as w:
        await fill(w, 2)
        one, two = await w.messages()
        two.system_properties.receipt_handle = "none"
        answer = await w.call("AckMessage", ack_request(one, two))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [e.status.code for e in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
        assert [e.message_id for e in answer.entries] == [
            one.system_properties.message_id,
            two.system_properties.message_id,
        ]
        assert (await w.call("AckMessage", ack_request())).status.code == Code.BAD_REQUEST


async def test_a_handle_is_replaced_and_the_old_one_is_over() -> None:
    async with world() as w:
        await fill(w, 1)
        (got,) = await w.messages()
        old = got.system_properties.receipt_handle
        answer = await w.call("ChangeInvisibleDuration", change(old, 60_000))
        assert answer.status.code == Code.OK and answer.receipt_handle not in ("", old)
        assert (await w.call("AckMessage", ack_request(got))).status.code == Code.INVALID_RECEIPT_HANDLE
        got.system_properties.receipt_handle = answer.receipt_handle
        assert (await w.call("AckMessage", ack_request(got))).status.code == Code.OK


async def test_a_handle_that_cannot_be_changed_is_in_the_answer() -> None:
    """Quirk: clients take over whatever handle they are answered."""
    async with world() as w:
        answer = await w.call("ChangeInvisibleDuration", change("none", 60_000))
        assert (answer.status.code, answer.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, "none")


@pytest.mark.parametrize(
    ("error", "ms"),
    [
        (NotMaster("no"), 60_000),
        (PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"), 60_000),
        (Busy(Status.TOO_MANY_PENDING_BYTES, "later"), 60_000),
        (ZeroDivisionError(), 60_000),
        (None, -1),
    ],
)
async def test_a_handle_is_in_the_answer_whatever_was_wrong(error: Any, ms: int) -> None:
    """Quirk: Python tries again with what it was answered, so without it the message would be lost to it."""
    async with world() as w:
        await fill(w, 1)
        (got,) = await w.messages()
        handle = got.system_properties.receipt_handle
        w.delivery.fail_with = error
        answer = await w.call("ChangeInvisibleDuration", change(handle, ms))
        assert answer.status.code != Code.OK and answer.receipt_handle == handle
        assert (await w.call("ChangeInvisibleDuration", change(handle, 60_000))).status.code == Code.OK


async def test_a_message_that_is_given_back_does_not_come_at_once() -> None:
    """Quirk: clients in Node.js ask for a pause of 0 or 1 ms."""
    async with world(QUICK.model_copy(update={"min_retry_ms": 1_000})) as w:
        await fill(w, 1)
        (got,) = await w.messages()
        handle = got.system_properties.receipt_handle
        assert (await w.call("ChangeInvisibleDuration", change(handle, 0))).status.code == Code.OK
        assert await w.messages() == []
        w.delivery.pass_ms(1_000)
        (again,) = await w.messages()
        assert again.system_properties.delivery_attempt == 2


@pytest.mark.parametrize("ms", [-1, 13 * 3_600_000])
async def test_an_invisible_time_out_of_range(ms: int) -> None:
    async with world() as w:
        answer = await w.call("ChangeInvisibleDuration", change("h", ms))
        assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME


async def test_a_message_is_given_up() -> None:
    async with world() as w:
        await fill(w, 1)
        (got,) = await w.messages()
        request = calls.ForwardMessageToDeadLetterQueueRequest(
            group=resource("g"),
            topic=resource("t"),
            receipt_handle=got.system_properties.receipt_handle,
            message_id="m0",
        )
        assert (await w.call("ForwardMessageToDeadLetterQueue", request)).status.code == Code.OK
        again = await w.call("ForwardMessageToDeadLetterQueue", request)
        assert again.status.code == Code.INVALID_RECEIPT_HANDLE
        (dead,) = await w.messages("g2", "%DLQ%g")
        assert dead.body == b"0"
        assert dead.system_properties.dead_letter_queue == pb.DeadLetterQueue(topic="t", message_id="m0")


async def test_the_handle_of_nothing_is_refused() -> None:
    async with world() as w:
        for handle in ("", "x" * 5_000):
            answer = await w.call("ChangeInvisibleDuration", change(handle, 60_000))
            assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
