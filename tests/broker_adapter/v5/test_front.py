"""The service on its gRPC server: metadata, deadlines, limits, and callers that do it wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5 import front
from broker_adapter.endpoints.v5.messages.methods import METHODS, SERVICE_NAME
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import NotMaster
from broker_adapter.put.sender import PutResult
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.transport.channels import open_channel
from tests.broker_adapter.namesrv.helpers import until
from tests.broker_adapter.v5.world import (
    HEADERS,
    MAX_BODY,
    QUICK,
    World,
    message,
    receive_request,
    resource,
    world,
)
from tests.rpc.other_address import seen_from

Code = pb.Code
BEAT = calls.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)


class Recorder:
    """Answers every call once it may, and keeps who called."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.may = asyncio.Event()
        self.may.set()
        self.ended = 0
        self.cancelled = 0

    async def unary(self, request: Request, context: CallContext) -> bytes:
        self.contexts.append(context)
        await self.may.wait()
        self.ended += 1
        answer: bytes = request.method.answer(status=pb.Status(code=Code.OK)).SerializeToString()
        return answer

    async def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        self.contexts.append(context)
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        yield request.method.answer(status=pb.Status(code=Code.OK)).SerializeToString()


async def test_the_caller_is_known_by_metadata_and_deadline() -> None:
    recorder = Recorder()
    async with world(answering=recorder) as w:
        await w.call("Heartbeat", BEAT, {**HEADERS, "x-mq-namespace": "ns"}, timeout=5)
        await w.stream("ReceiveMessage", receive_request(), timeout=None)
    first, second = recorder.contexts
    # gRPC sends what is left of a deadline, rounded up, and reckons with two clocks: 5.01 s were seen.
    assert first.timeout_s is not None and 0 < first.timeout_s < 5.5 and second.timeout_s is None
    assert first.remote.startswith("127.0.0.1:")
    assert first._replace(timeout_s=None, remote="") == CallContext("client-1", "ns", "JAVA", "5.0")


@pytest.mark.parametrize(
    ("headers", "language"),
    [
        ({"x-mq-language": "HTTP"}, "NODE_JS"),
        ({"x-mq-language": "python"}, "PYTHON"),
        ({}, ""),
    ],
)
async def test_clients_in_node_js_call_themselves_http(headers: dict[str, str], language: str) -> None:
    recorder = Recorder()
    async with world(answering=recorder) as w:
        await w.call("Heartbeat", BEAT, {"x-mq-client-id": "c", **headers})
    assert [context.language for context in recorder.contexts] == [language]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, Code.CLIENT_ID_REQUIRED),
        ({"x-mq-client-id": "c" * 256}, Code.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
async def test_a_caller_without_a_name_is_refused(headers: dict[str, str], code: int) -> None:
    async with world() as w:
        for name, method in METHODS.items():
            request = method.request()
            if method.streams_answers:
                (answer,) = await w.stream(name, request, headers)
            else:
                answer = await w.call(name, request, headers)
            assert answer.status.code == code, name


async def test_bytes_that_are_no_message_are_answered_in_every_method() -> None:
    async with world() as w:
        for name, method in METHODS.items():
            if method.streams_answers:
                call = w.channel.unary_stream(f"/{SERVICE_NAME}/{name}")
                found = [a async for a in call(b"\xff\xff\xff", metadata=tuple(HEADERS.items()))]
                answer = method.answer.FromString(found[0])
            else:
                answer = method.answer.FromString(await w.raw(name, b"\xff\xff\xff"))
            assert answer.status.code == Code.BAD_REQUEST, name
        assert (await w.call("Heartbeat", BEAT)).status.code == Code.OK


async def test_empty_messages_are_answered_in_every_method() -> None:
    async with world() as w:
        for name, method in METHODS.items():
            if method.streams_answers:
                answer = (await w.stream(name, method.request()))[0]
            else:
                answer = await w.call(name, method.request())
            # Whoever goes may leave the group out.
            expected_ok = name == "NotifyClientTermination"
            assert (answer.status.code == Code.OK) == expected_ok, name
            assert answer.status.code != Code.INTERNAL_SERVER_ERROR, name


async def test_what_no_method_is_for_is_not_implemented() -> None:
    async with world() as w:
        answer = await w.call("SyncLiteSubscription", calls.SyncLiteSubscriptionRequest())
        assert answer.status.code == Code.NOT_IMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await w.channel.unary_unary(f"/{SERVICE_NAME}/Nothing")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_largest_body_passes() -> None:
    """Quirk: gRPC's own limit of 4 MiB would not let such a message through with what is around it."""
    async with world() as w:
        answer = await w.send(message(b"x" * (4 << 20)))
        assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE  # ours to say
        assert (await w.send(message(b"x" * MAX_BODY))).status.code == Code.OK


async def test_a_bug_is_an_answer() -> None:
    class Broken(Recorder):
        async def unary(self, request: Request, context: CallContext) -> bytes:
            raise ZeroDivisionError

    async with world(answering=Broken()) as w:
        assert (await w.call("Heartbeat", BEAT)).status.code == Code.INTERNAL_SERVER_ERROR


async def test_a_bug_in_a_send_does_not_send_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> PutResult:
        raise ZeroDivisionError

    async with world() as w:
        assert (await w.send(message(b"1"))).status.code == Code.OK
        monkeypatch.setattr(w.delivery, "start", broken)
        assert (await w.send(message(b"2", message_id="2"))).status.code == Code.INTERNAL_SERVER_ERROR
        assert sum(map(len, w.delivery.queues.values())) == 1


async def test_calls_beyond_the_limit_are_refused_also_when_callers_have_gone() -> None:
    recorder = Recorder()
    recorder.may.clear()
    async with world(QUICK.model_copy(update={"max_calls": 2}), answering=recorder) as w:
        gone = asyncio.ensure_future(w.call("Heartbeat", BEAT))
        stays = asyncio.ensure_future(w.call("Heartbeat", BEAT))
        await until(lambda: len(recorder.contexts) == 2)
        gone.cancel()
        assert (await w.call("Heartbeat", BEAT)).status.code == Code.TOO_MANY_REQUESTS
        recorder.may.set()
        assert (await stays).status.code == Code.OK
        # What was asked for is done, whoever has gone.
        await until(lambda: recorder.ended == 2)
        assert (await w.call("Heartbeat", BEAT)).status.code == Code.OK


async def test_a_large_call_keeps_its_room_when_its_caller_has_gone() -> None:
    """Its request stays in memory until what was asked for is done."""
    recorder = Recorder()
    recorder.may.clear()
    request = calls.SendMessageRequest(messages=[message(b"x" * (100 << 10))])
    settings = QUICK.model_copy(update={"max_request_bytes": 128 << 10})
    async with world(settings, answering=recorder) as w:
        gone = asyncio.ensure_future(w.call("SendMessage", request))
        await until(lambda: len(recorder.contexts) == 1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await until(lambda: next(iter(w.service._under_way)).cancelled())  # the server knows of it
        assert (await w.call("SendMessage", request)).status.code == Code.TOO_MANY_REQUESTS
        recorder.may.set()
        await until(lambda: recorder.ended == 1)
        assert (await w.call("SendMessage", request)).status.code == Code.OK


async def test_receives_beyond_the_limit_are_refused() -> None:
    recorder = Recorder()
    recorder.may.clear()
    settings = QUICK.model_copy(update={"max_waiting_receives": 1})
    async with world(settings, answering=recorder) as w:
        waits = asyncio.ensure_future(w.stream("ReceiveMessage", receive_request()))
        await until(lambda: w.service.waiting_receives == 1)
        (refused,) = await w.stream("ReceiveMessage", receive_request())
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        recorder.may.set()
        assert [answer.status.code for answer in await waits] == [Code.OK]


async def test_waiting_receives_are_shared_by_address() -> None:
    recorder = Recorder()
    recorder.may.clear()
    settings = QUICK.model_copy(update={"max_waiting_receives": 4})
    async with world(settings, answering=recorder) as w, seen_from("127.0.0.2", w.address) as other:
        waits = [asyncio.ensure_future(w.stream("ReceiveMessage", receive_request())) for _ in range(3)]
        await until(lambda: w.service.waiting_receives == 3)
        (refused,) = await w.stream("ReceiveMessage", receive_request())
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        assert "3 of 4" in refused.status.message
        async with open_channel(other) as channel:
            ask = channel.unary_stream(f"/{SERVICE_NAME}/ReceiveMessage")
            call = ask(receive_request().SerializeToString(), metadata=tuple(HEADERS.items()))
            await until(lambda: w.service.waiting_receives == 4)
            recorder.may.set()
            answer = calls.ReceiveMessageResponse.FromString(await call.read())
            assert answer.status.code == Code.OK
        for wait in waits:
            assert [answer.status.code for answer in await wait] == [Code.OK]
        assert w.service.waiting_receives == 0


async def test_what_waiting_receives_keep_is_shared_by_address() -> None:
    """10,000 may wait, each with its request."""
    recorder = Recorder()
    recorder.may.clear()
    request = receive_request()
    request.message_queue.broker.name = "x" * (20 << 10)
    settings = QUICK.model_copy(update={"max_request_bytes": 64 << 10})
    async with world(settings, answering=recorder) as w:
        waits = [asyncio.ensure_future(w.stream("ReceiveMessage", request)) for _ in range(2)]
        await until(lambda: w.service.waiting_receives == 2)
        (refused,) = await w.stream("ReceiveMessage", request)
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        small = asyncio.ensure_future(w.stream("ReceiveMessage", receive_request()))
        await until(lambda: w.service.waiting_receives == 3)
        recorder.may.set()
        for wait in (*waits, small):
            assert [answer.status.code for answer in await wait] == [Code.OK]
        assert [answer.status.code for answer in await w.stream("ReceiveMessage", request)] == [Code.OK]
        request.message_queue.broker.name = "x" * (32 << 10)
        (too_large,) = await w.stream("ReceiveMessage", request)
        assert too_large.status.code == Code.PAYLOAD_TOO_LARGE


async def test_a_receive_of_a_client_that_has_gone_ends() -> None:
    recorder = Recorder()
    recorder.may.clear()
    async with world(answering=recorder) as w:
        waits = asyncio.ensure_future(w.stream("ReceiveMessage", receive_request()))
        await until(lambda: w.service.waiting_receives == 1)
        waits.cancel()
        await until(lambda: recorder.cancelled == 1 and w.service.waiting_receives == 0)


async def test_what_a_client_has_got_was_passed_on() -> None:
    async with world() as w:
        await w.send(message(b"x"))
        assert [one.body for one in await w.messages(auto_renew=True)] == [b"x"]
        await until(lambda: w.delivery.reached == [b"x"])
        assert w.delivery.given_back == []


@pytest.mark.parametrize("way", ["hangs up", "misses its deadline"])
async def test_what_a_client_has_not_got_to_its_end_is_given_back(way: str) -> None:
    """It does not read: so much of the answer waits for it that the server cannot have written all."""
    async with world() as w:
        bodies = [b"%d" % number * (MAX_BODY - 100) for number in range(8)]
        for number, body in enumerate(bodies):
            await w.send(message(body, message_id=f"id-{number}"))
        stream = w.channel.unary_stream(f"/{SERVICE_NAME}/ReceiveMessage")
        timeout = 1.0 if way == "misses its deadline" else 30.0
        request = receive_request(auto_renew=True).SerializeToString()
        call = stream(request, metadata=tuple(HEADERS.items()), timeout=timeout)
        await call.read()
        if way == "hangs up":
            call.cancel()
        await until(lambda: sorted(w.delivery.given_back) == bodies)
        assert w.delivery.reached == []


async def test_before_the_end_calls_are_answered_and_receives_find_nothing() -> None:
    recorder = Recorder()
    recorder.may.clear()
    async with world(answering=recorder) as w:
        waits = asyncio.ensure_future(w.stream("ReceiveMessage", receive_request()))
        call = asyncio.ensure_future(w.call("Heartbeat", BEAT))
        await until(lambda: len(recorder.contexts) == 2)
        w.service.send_away()
        assert [answer.status.code for answer in await waits] == [Code.MESSAGE_NOT_FOUND]
        drain = asyncio.ensure_future(w.service.drain(10))
        recorder.may.set()
        assert (await w.call("Heartbeat", BEAT)).status.code == Code.OK
        assert (await call).status.code == Code.OK
        await drain


async def test_the_end_answers_what_is_under_way() -> None:
    recorder = Recorder()
    recorder.may.clear()
    async with world(answering=recorder) as w:
        call = asyncio.ensure_future(w.call("Heartbeat", BEAT))
        await until(lambda: len(recorder.contexts) == 1)
        w.service.stop()
        assert (await call).status.code == Code.HA_NOT_AVAILABLE


CHANGE = calls.ChangeInvisibleDurationRequest(group=resource("g"), topic=resource("t"), receipt_handle="h")


async def test_a_handle_is_in_the_answer_of_a_node_without_a_master() -> None:
    """Quirk: clients take over whatever handle they are answered."""

    class Masterless(Recorder):
        async def unary(self, request: Request, context: CallContext) -> bytes:
            raise NotMaster("nobody leads")

    async with world(answering=Masterless()) as w:
        answer = await w.call("ChangeInvisibleDuration", CHANGE)
        assert (answer.status.code, answer.receipt_handle) == (Code.HA_NOT_AVAILABLE, "h")


async def test_a_handle_is_in_the_answer_at_the_end() -> None:
    recorder = Recorder()
    recorder.may.clear()
    async with world(answering=recorder) as w:
        call = asyncio.ensure_future(w.call("ChangeInvisibleDuration", CHANGE))
        await until(lambda: len(recorder.contexts) == 1)
        w.service.stop()
        answer = await call
        assert (answer.status.code, answer.receipt_handle) == (Code.HA_NOT_AVAILABLE, "h")


async def test_a_route_that_the_node_knows_needs_no_master() -> None:
    recorder = Recorder()
    async with world(answering=recorder) as w:
        w.delivery.topics["t"] = TopicConfig("t")
        answer = await w.call("QueryRoute", calls.QueryRouteRequest(topic=resource("t")))
        assert answer.status.code == Code.OK and len(answer.message_queues) == 4
        assert not recorder.contexts
        await w.call("QueryRoute", calls.QueryRouteRequest(topic=resource("unknown")))
        assert len(recorder.contexts) == 1


async def assignments(w: World, topic: str = "t", group: str = "g") -> Any:
    request = calls.QueryAssignmentRequest(topic=resource(topic), group=resource(group))
    return await w.call("QueryAssignment", request)


async def test_assignments_are_the_groups() -> None:
    class OrderlyGroup(GroupConfig):
        consume_orderly = True

    async with world() as w:
        found = await assignments(w)
        assert [one.message_queue.id for one in found.assignments] == [-1]
        w.delivery.groups["g"] = OrderlyGroup("g")
        found = await assignments(w)
        assert [one.message_queue.id for one in found.assignments] == [0, 1, 2, 3]


async def test_whoever_may_not_read_has_no_assignment() -> None:
    async with world() as w:
        w.delivery.topics["t"] = TopicConfig("t", perm=2)
        assert (await assignments(w)).status.code == Code.FORBIDDEN
        w.delivery.topics["t"] = TopicConfig("t")
        w.delivery.groups["g"] = GroupConfig("g", consume_enable=False)
        assert (await assignments(w)).status.code == Code.FORBIDDEN
        w.delivery.auto_create = False
        assert (await assignments(w, "unknown", "other")).status.code == Code.TOPIC_NOT_FOUND


async def test_a_request_without_bodies_is_small() -> None:
    """4 MiB of the smallest fields that there are take long to be read."""
    async with world() as w:
        for method, made in METHODS.items():
            if method == "SendMessage":
                continue
            request = b"\x7a\x00" * ((made.max_bytes >> 1) + 1)  # field 15, empty
            answers = (
                await w.stream(method, Raw(request))
                if made.streams_answers
                else [await w.call(method, Raw(request))]
            )
            assert [answer.status.code for answer in answers] == [Code.PAYLOAD_TOO_LARGE], method


class Raw:
    """Bytes in place of a request."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - as in protobuf
        return self._data


def test_the_front_knows_no_call_by_name() -> None:
    source = Path(front.__file__).read_text()
    assert [
        name
        for name in METHODS
        if re.search(rf"\b({name}|{re.sub('(?<!^)(?=[A-Z])', '_', name).upper()})\b", source)
    ] == []


async def test_a_request_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    class Counted:
        DESCRIPTOR = calls.QueryRouteRequest.DESCRIPTOR

        @staticmethod
        def FromString(data: bytes) -> calls.QueryRouteRequest:  # noqa: N802 - as in protobuf
            parsed.append(data)
            return calls.QueryRouteRequest.FromString(data)

    monkeypatch.setitem(METHODS, "QueryRoute", METHODS["QueryRoute"]._replace(request=Counted))  # type: ignore[arg-type]
    async with world() as w:  # the topic is not known: the front looks, and then the master
        await w.call("QueryRoute", calls.QueryRouteRequest(topic=resource("unknown")))
    assert len(parsed) == 1
