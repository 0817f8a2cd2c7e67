"""PullMessage and offsets, for consumers that keep count themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.delivery.api import MAX_FILTER_STEPS, Filter
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5.calls import queue_calls
from broker_adapter.endpoints.v5.calls.queue_calls import QueueCalls
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from tests.broker_adapter.v5.world import World, resource, world

Code = pb.Code


async def fill(w: World, count: int = 3) -> None:
    messages = [OutgoingMessage(b"%d" % i, {"TAGS": "ab"[i % 2], "n": str(i)}) for i in range(count)]
    await w.cluster.brokers[0].send("t", messages, queue_id=1)


def queue(queue_id: int = 1, topic: str = "t") -> pb.MessageQueue:
    return pb.MessageQueue(topic=resource(topic), id=queue_id)


async def pull(w: World, offset: int = 0, **fields: Any) -> list[Any]:
    fields = {"batch_size": 32, "message_queue": queue(), **fields}
    request = calls.PullMessageRequest(group=resource("g"), offset=offset, **fields)
    return await w.stream("PullMessage", request)


async def test_messages_from_an_offset_on() -> None:
    async with world() as w:
        await fill(w)
        answers = await pull(w, 1)
        assert [a.WhichOneof("content") for a in answers] == ["status", "message", "message", "next_offset"]
        assert answers[0].status.code == Code.OK and answers[-1].next_offset == 3
        assert [a.message.body for a in answers[1:3]] == [b"1", b"2"]
        assert answers[1].message.system_properties.queue_offset == 1


async def test_reads_and_filters_take_the_turns_of_the_client() -> None:
    async with world() as w:
        await fill(w)
        wanted = pb.FilterExpression(type=pb.FilterType.SQL, expression="n > 1")
        answers = await pull(w, filter_expression=wanted)
        assert [a.message.body for a in answers if a.HasField("message")] == [b"2"]
        remotes = w.cluster.brokers[0].remotes
        assert len(remotes) == 2 and {one.rpartition(":")[0] for one in remotes} == {"127.0.0.1"}


async def test_nothing_new_is_a_status() -> None:
    async with world() as w:
        await fill(w)
        first, last = await pull(w, 3)
        assert (first.status.code, last.next_offset) == (Code.MESSAGE_NOT_FOUND, 3)


async def test_filters_pass_over_what_does_not_match() -> None:
    async with world() as w:
        await fill(w)
        for wanted in ({"type": 1, "expression": "b"}, {"type": 2, "expression": "n = 1"}):
            answers = await pull(w, filter_expression=wanted)
            assert [a.message.body for a in answers if a.HasField("message")] == [b"1"]
            assert answers[-1].next_offset == 3


async def test_a_filter_is_never_evaluated_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client decides what its expression costs; one on the loop froze the node."""
    threads = set()

    def matches(properties: Mapping[str, str]) -> bool:
        threads.add(threading.current_thread())
        return True

    monkeypatch.setattr(queue_calls, "filter_of", lambda _: Filter(matches=matches))
    async with world() as w:
        await fill(w)
        assert len(await pull(w)) == 5
    assert threads and threading.current_thread() not in threads


async def test_a_pull_ends_where_its_steps_end_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costly = Filter(matches=lambda properties: properties["n"] == "2", steps=MAX_FILTER_STEPS)
    monkeypatch.setattr(queue_calls, "filter_of", lambda _: costly)
    async with world() as w:
        await fill(w)
        found, offset = [], 0
        for expected in (1, 2, 3):
            answers = await pull(w, offset)
            found += [a.message.body for a in answers if a.HasField("message")]
            offset = answers[-1].next_offset
            assert offset == expected
        assert found == [b"2"]


async def test_an_offset_outside_of_the_queue_says_where_it_is() -> None:
    async with world() as w:
        await fill(w)
        first, last = await pull(w, 9)
        assert (first.status.code, last.next_offset) == (Code.ILLEGAL_OFFSET, 3)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": -1}, Code.ILLEGAL_OFFSET),
        ({"batch_size": 0}, Code.BAD_REQUEST),
        ({"message_queue": queue(-1)}, Code.BAD_REQUEST),
        ({"message_queue": queue(99)}, Code.BAD_REQUEST),
        ({"message_queue": queue(topic="none")}, Code.TOPIC_NOT_FOUND),
        ({"long_polling_timeout": {"seconds": -1}}, Code.ILLEGAL_POLLING_TIME),
    ],
)
async def test_a_pull_that_is_wrong_has_its_code(fields: dict[str, Any], code: int) -> None:
    async with world() as w:
        await fill(w)
        assert [answer.status.code for answer in await pull(w, **fields)] == [code]


async def query(w: World, policy: int, when_ms: int = 0, queue_id: int = 1) -> Any:
    request = calls.QueryOffsetRequest(
        message_queue=queue(queue_id),
        query_offset_policy=policy,  # type: ignore[arg-type]
    )
    request.timestamp.FromMilliseconds(when_ms)
    return await w.call("QueryOffset", request)


async def test_offsets_of_a_queue() -> None:
    async with world() as w:
        await fill(w)
        w.cluster.trim("t", 1, 1)
        policy = pb.QueryOffsetPolicy
        assert (await query(w, policy.BEGINNING)).offset == 1
        assert (await query(w, policy.END)).offset == 3
        assert (await query(w, policy.TIMESTAMP, w.cluster.now_ms + 1)).offset == 3
        assert (await query(w, policy.END, queue_id=9)).status.code == Code.BAD_REQUEST
        assert (await query(w, 99)).status.code == Code.BAD_REQUEST


async def test_an_offset_that_was_updated_is_found() -> None:
    async with world() as w:
        await fill(w)
        group = resource("g")
        get = calls.GetOffsetRequest(group=group, message_queue=queue())
        assert (await w.call("GetOffset", get)).status.code == Code.OFFSET_NOT_FOUND
        update = calls.UpdateOffsetRequest(group=group, message_queue=queue(), offset=2)
        assert (await w.call("UpdateOffset", update)).status.code == Code.OK
        answer = await w.call("GetOffset", get)
        assert (answer.status.code, answer.offset) == (Code.OK, 2)


LARGE = 100_000


async def with_large_message(w: World) -> calls.PullMessageRequest:
    """What is asked for it."""
    await w.cluster.brokers[0].send("t", [OutgoingMessage(bytes(LARGE))], queue_id=1)
    return calls.PullMessageRequest(group=resource("g"), message_queue=queue(), batch_size=1)


async def test_other_work_of_the_loop_comes_between_two_large_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A timer that is due, such as that of a heartbeat, waits for one of them at most."""
    done: list[str] = []
    make = queue_calls.stored_message

    def note(*args: Any) -> pb.Message:
        done.append("large")
        asyncio.get_running_loop().call_soon(done.append, "other")
        return make(*args)

    monkeypatch.setattr(queue_calls, "stored_message", note)
    async with world() as w:
        request = await with_large_message(w)
        service = QueueCalls(w.cluster.brokers[0], ClientServiceSettings())

        async def pull_all() -> int:
            return len([one async for one in service.pull_message(request, CallContext("c"))])

        assert await asyncio.gather(*[pull_all() for _ in range(3)]) == [3, 3, 3]
        await asyncio.sleep(0)
    assert done == ["large", "other"] * 3


async def test_large_answers_that_nobody_takes_are_bounded() -> None:
    async with world(ClientServiceSettings(max_request_bytes=LARGE)) as w:
        request = await with_large_message(w)
        service = w.handlers
        silent = service.stream(Request("PullMessage", request.SerializeToString()), CallContext("c"))
        async with aclosing(silent):
            await anext(silent)
            (refused,) = await w.stream("PullMessage", request)
            assert refused.status.code == Code.TOO_MANY_REQUESTS
            await fill(w)
            assert len(await pull(w, 1)) == 5, "what is small is given all the same"
        assert len(await w.stream("PullMessage", request)) == 3
