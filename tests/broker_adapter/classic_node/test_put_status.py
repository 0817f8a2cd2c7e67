"""What a classic master says of messages that no slave has, whichever way they are kept."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from broker_adapter.api import QueueOffset, TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import PutIndeterminate, Status
from broker_adapter.server.program import BrokerProgram
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.wire.topic_names import HALF_TOPIC
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.classic_node.test_system_queues import (
    bodies,
    delayed,
    half,
    outgoing,
    read,
    started,
)
from tests.broker_adapter.sending import send_to
from tests.node.local import until

KINDS = ("at once", "by a level", "at a time", "half")


async def sent(program: BrokerProgram, kind: str) -> Status | None:
    """What is short of a message that is sent so."""
    delivery, message = program.delivery, outgoing(kind)
    if kind == "at once":
        return (await send_to(program, "t", message, message_id=kind)).put_status
    if kind == "half":
        return (await delivery.send_half("t", message, message_id=kind, client_id="c")).put_status
    at_ms = time.time_ns() // 1_000_000 + 3_600_000
    level = 18 if kind == "by a level" else 0
    put = await delivery.send_delayed("t", message, message_id=kind, deliver_at_ms=at_ms, level=level)
    return put.put_status


async def test_a_master_says_of_each_message_that_no_slave_has_it_until_one_has(tmp_path: Path) -> None:
    """Also when it is sent again. Messages with a time of their own were answered as if a slave had them."""
    async with classic_pair(tmp_path, "n1") as pair:
        program = await pair.writable("n1")
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        for _ in range(2):
            for kind in KINDS:
                assert await sent(program, kind) is Status.SLAVE_NOT_AVAILABLE, kind
        await pair.start("n2")
        await until(lambda: pair.node("n2").replication.follows)
        await pair.in_step()
        for kind in KINDS:
            assert await sent(program, kind) is None, kind


async def test_clients_of_rocketmq_5_are_told_that_no_slave_has_their_message(tmp_path: Path) -> None:
    async with classic_pair(tmp_path, "n1") as pair:
        program = await pair.writable("n1")
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        for kind in (pb.NORMAL, pb.DELAY, pb.TRANSACTION):
            message = pb.Message(topic=pb.Resource(name="t"), body=b"x")
            message.system_properties.message_id = f"id-{kind}"
            message.system_properties.message_type = kind
            if kind == pb.DELAY:
                message.system_properties.delivery_timestamp.seconds = int(time.time()) + 3_600
            request = Request("SendMessage", calls.SendMessageRequest(messages=[message]).SerializeToString())
            answer = calls.SendMessageResponse.FromString(
                await program.answering.unary(request, CallContext("c"))
            )
            assert answer.status.message.startswith(f"{Status.SLAVE_NOT_AVAILABLE:d} "), kind


@pytest.mark.parametrize("kind", ["by a level", "half"])
async def test_what_was_in_doubt_is_looked_at_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its append came to an end after who asked was told that nobody knows. It waited for the next one."""
    asked: list[Any] = []
    async with classic_pair(tmp_path) as pair:
        pair.more = {"delivery": {"check_first_ms": 1_000}}
        program = await started(pair)
        program.delivery.on_orphan(asked.append)
        put, appends = program.writer.put_together, []

        async def put_later(*what: Any, **more: Any) -> Any:
            monkeypatch.undo()
            appends.append(asyncio.create_task(put(*what, **more)))
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, "not known yet")

        monkeypatch.setattr(program.writer, "put_together", put_later)
        send = partial(half, program, "x") if kind == "half" else partial(delayed, program, "x", 1)
        with pytest.raises(PutIndeterminate):
            await send()
        await asyncio.gather(*appends)
        await until(lambda: bool(asked) if kind == "half" else bodies(program) == ["x"])


async def test_a_half_with_the_id_of_another_message_is_not_taken_for_another_half(tmp_path: Path) -> None:
    """The place of a message in its queue was looked up among the halves: who repeated an id was given the
    transaction of somebody else."""
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        message = outgoing("plain", TAGS="a")  # as `half` sends it: another content is another message
        first = await send_to(program, "t", message, message_id="plain")
        while first.queue_offset >= program.files.bounds(HALF_TOPIC, 0)[1]:
            await half(program, f"of others {program.files.bounds(HALF_TOPIC, 0)}")
            await program.files.wait_applied()
        assert read(program, HALF_TOPIC)[first.queue_offset].body != b"plain"
        assert await half(program, "plain") == ""


async def test_a_half_that_is_sent_again_before_it_is_in_its_queue_has_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who repeated it at once was told of no transaction, and could not end it."""
    may_go_on = Event()
    async with classic_pair(tmp_path) as pair:
        program = await started(pair)
        await program.files.wait_applied()
        dispatching = asyncio.create_task(pair.node("n1").feed.run(lambda: may_go_on.wait(60) or None))
        record_attempt = program.sender.record_attempt

        async def noted(*attempt: Any) -> bool:
            may_go_on.set()
            return await record_attempt(*attempt)

        monkeypatch.setattr(program.sender, "record_attempt", noted)
        try:
            first = await half(program, "x")
            assert await half(program, "x") == first != ""
        finally:
            may_go_on.set()
            await dispatching


async def test_what_is_no_message_waits_for_no_slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pops, acknowledgements, offsets and topics waited for one that stands still, behind each append."""
    answer: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()

    async with classic_pair(tmp_path, "n1") as pair:
        program = await pair.writable("n1")
        monkeypatch.setattr(pair.node("n1").commit, "acknowledged", lambda offset, timeout_ms: answer)
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        sends = [asyncio.create_task(sent(program, kind)) for kind in KINDS]
        receive = partial(program.delivery.receive, "g", "t", client_id="c", invisible_ms=60_000)
        (one,) = await receive(wait_ms=60_000)
        await program.delivery.ack("g", "t", [one.handle])
        await program.broker.commit_offsets("h", [QueueOffset("t", 0, 1)])
        assert not any(send.done() for send in sends)
        answer.set_result(None)
        assert await asyncio.gather(*sends) == [None] * len(KINDS)
