"""The client where servers mean harm, or a program asks without a pause: it goes on, and lets others run."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest

from broker_adapter.client import (
    Admin,
    ClientOptions,
    ConsumeFromWhere,
    ConsumeSettings,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueListener,
)
from broker_adapter.client.core.admin_bodies import parse_offset_table
from broker_adapter.client.core.pulling import PullResult, PullStatus, pull_result
from broker_adapter.client.core.route_data import parse_route, parse_topic_list
from broker_adapter.client.core.subscription import ALL, Subscription
from broker_adapter.client.core.values import Steps, first_messages
from broker_adapter.client.group_requests import parse_locked, parse_members
from broker_adapter.client.instance import ClientInstance
from broker_adapter.client.queue_worker import QueueWorker
from broker_adapter.client.request_reply import CORRELATION_ID
from broker_adapter.client.steps import run_in_steps
from broker_adapter.errors import Busy, FrameRefused, PutRefused, Status, StoredDataDamaged
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import MAX_FRAME, RemotingCommand
from broker_adapter.wire import message as record
from broker_adapter.wire.host import Host
from broker_adapter.wire.message_id import format_offset_id
from broker_adapter.wire.properties import join_properties, split_properties
from broker_adapter.wire.sys_flag import COMPRESSED
from tests.node.local import until

from .scripted import (
    Script,
    ScriptedServer,
    decode_messages,
    finish,
    route_body,
    route_body_of,
    serving,
    stored,
)

HOST = Host(b"\x7f\0\0\1", 10911)
QUEUE = MessageQueue("t", "a", 0)


@asynccontextmanager
async def a_broker(script: Script) -> AsyncIterator[ScriptedServer]:
    """It knows the topic `t`, and is its own NameServer."""

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.answer(0, body=route_body(servers))
        return script(request)

    async with serving(answer) as servers:
        yield servers[0]


def stored_message(offset: int, body: bytes = b"x", sys_flag: int = 0) -> bytes:
    message = record.MessageRecord("t", body, sys_flag=sys_flag, queue_offset=offset, store_host=HOST)
    return bytes(record.encode(message))


async def test_a_program_that_only_polls_gets_messages() -> None:
    def pulled(request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.PULL_MESSAGE:
            return request.answer(0, fields={"offset": "0"})
        if (offset := int(request.fields["queueOffset"])) > 2:
            return None
        fields = {"nextBeginOffset": str(offset + 1), "minOffset": "0", "maxOffset": "3"}
        return request.answer(0, fields=fields, body=stored_message(offset))

    async with (
        a_broker(pulled) as broker,
        PullConsumer(
            "g", broker.server.address, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        ) as consumer,
    ):
        turns = asyncio.create_task(asyncio.sleep(0))
        while not turns.done():
            assert await consumer.poll(0) == []  # nothing is assigned
        consumer.assign([QUEUE])
        found: list[int] = []
        while len(found) < 3:
            found += [message.queue_offset for message in await consumer.poll(0)]
        assert found == [0, 1, 2]


async def test_a_program_that_only_sends_one_way_lets_the_messages_go() -> None:
    """The broker does not read for a time: what waits for it must go when it reads again."""
    options = ClientOptions(max_in_flight_bytes=1 << 20, compress_above_bytes=1 << 30)
    async with (
        a_broker(lambda request: None) as broker,
        Producer("g", broker.server.address, options=options) as producer,
    ):
        await producer.send_oneway(Message("t", b"first"), queue=QUEUE)
        refused = sent = 0
        while sent < 100:
            try:
                await producer.send_oneway(Message("t", b"x" * (256 << 10)), queue=QUEUE)
                sent += 1
            except Busy:
                refused += 1
        assert sent == 100


class ScriptedCalls:
    """What a queue's worker asks brokers: pulls that a test answers."""

    def __init__(self, *answers: tuple[PullStatus, tuple[int, ...], int]) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []
        self.may_go_on = asyncio.Event()

    async def pull(self, queue: MessageQueue, offset: int, *_: object, **__: object) -> PullResult:
        self.asked.append(offset)
        if not self.answers:
            await asyncio.Event().wait()
        if len(self.asked) > 1:
            await self.may_go_on.wait()
        status, offsets, next_offset = self.answers.pop(0)
        messages = decode_messages(b"".join(map(stored_message, offsets)), "a")
        return PullResult(status, tuple(messages), next_offset, 0, 0)

    def forget(self, queue: MessageQueue) -> None:
        pass


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_queue_whose_end_falls_is_consumed_again_from_there(is_ordered: bool) -> None:
    """A broker has lost its tail. What was in memory counted as room for ever, and as done what was not."""
    calls = ScriptedCalls(
        (PullStatus.FOUND, (100, 101, 102), 103),
        (PullStatus.OFFSET_ILLEGAL, (), 50),
        (PullStatus.FOUND, (50, 51), 101),
        (PullStatus.FOUND, (101,), 102),
    )
    given: list[int] = []
    may_end = asyncio.Event()

    async def consume(messages: Sequence[MessageExt]) -> ConsumeStatus:
        given.extend(message.queue_offset for message in messages)
        await may_end.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    settings = ConsumeSettings(is_ordered=is_ordered, threads=1)
    worker = QueueWorker(
        QUEUE,
        100,
        Subscription("t", ALL, 0),
        cast(Any, calls),
        consume,
        None,
        settings,
        asyncio.Semaphore(1),
        QueueListener(),
    )
    worker.locked_at = 1e12
    worker.start()
    await until(lambda: given == [100])
    calls.may_go_on.set()
    await until(lambda: not calls.answers and len(calls.asked) == 5)
    assert calls.asked == [100, 103, 50, 101, 102] and worker.state.offset == 50
    may_end.set()
    await until(lambda: worker.state.offset == 102)
    assert given == [100, 50, 51, 101] and worker.state.cached == (0, 0, 0, 0)
    await worker.stop(1.0)


async def test_an_unreadable_message_that_was_not_sent_back_is_pulled_again() -> None:
    """Or a failure of the broker would lose it."""
    damaged = stored_message(1, b"no zlib", COMPRESSED)
    fields = {"nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3"}
    answer = RemotingCommand(0, fields, stored_message(0) + damaged + stored_message(2))
    subscription = Subscription("t", ALL, 0)
    asked, given = list[int](), list[int]()
    sent_back: list[MessageExt] = []

    class Calls:
        async def pull(self, queue: MessageQueue, offset: int, *_: object, **__: object) -> PullResult:
            asked.append(offset)
            if offset:
                await asyncio.Event().wait()
            return finish(pull_result(answer, queue, subscription, 32))

        def forget(self, queue: MessageQueue) -> None:
            pass

    async def send_back(message: MessageExt) -> None:
        sent_back.append(message)
        if len(sent_back) == 1:
            raise Busy(Status.DISK_FULL, "later")

    async def consume(messages: Sequence[MessageExt]) -> ConsumeStatus:
        given.extend(message.queue_offset for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    worker = QueueWorker(
        QUEUE,
        0,
        subscription,
        cast(Any, Calls()),
        consume,
        send_back,
        ConsumeSettings(pull_retry_s=0.0),
        asyncio.Semaphore(1),
        QueueListener(),
    )
    worker.start()
    await until(lambda: worker.state.offset == 3)
    await worker.stop(1.0)
    assert [one.queue_offset for one in sent_back] == [1, 1]
    assert asked == [0, 0, 3] and given == [0, 2]


async def test_bodies_that_inflate_beyond_measure_come_in_several_pulls() -> None:
    body = zlib.compress(bytes(MAX_FRAME))
    records = b"".join(stored_message(offset, body, COMPRESSED) for offset in range(200))
    fields = {"nextBeginOffset": "200", "minOffset": "0", "maxOffset": "200"}
    result = finish(pull_result(RemotingCommand(0, fields, records), QUEUE, Subscription("t", ALL, 0), 1024))
    assert [message.queue_offset for message in result.messages] == [0, 1, 2, 3] and result.next_offset == 4


FRAME = MAX_FRAME - (1 << 20)


def test_an_answer_with_more_messages_than_requested_ends_after_those() -> None:
    """A frame has room for 170,000 messages, which took seconds of the program's event loop."""
    records = b"".join(stored_message(offset) for offset in range(1000))
    records += stored_message(0) * ((FRAME - len(records)) // len(stored_message(0)))
    fields = {"nextBeginOffset": "200000", "minOffset": "0", "maxOffset": "200000"}
    result = finish(pull_result(RemotingCommand(0, fields, records), QUEUE, Subscription("t", ALL, 0), 32))
    assert [message.queue_offset for message in result.messages] == list(range(32))
    assert result.next_offset == 32


@pytest.mark.parametrize("size", [1, 30_000])
def test_large_answers_are_decoded_in_steps(size: int) -> None:
    """A step has 64 KiB of bodies and properties at most, and 64 messages, plus one message."""
    text = join_properties({f"{number:x}": "v" for number in range(size // 6)})
    one = record.MessageRecord("t", b"x", text, queue_offset=7, store_host=HOST)
    encoded = bytes(record.encode(one))
    count = min(1024, FRAME // len(encoded))
    steps = first_messages(encoded * count, "a", 1024)
    assert sum(1 for _ in steps) >= count // (1 + min(64, (64 << 10) // size))


async def test_other_tasks_run_between_the_steps_of_a_decoding() -> None:
    turns, seen = [0], list[int]()

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    def work() -> Steps[str]:
        for _ in range(10):
            seen.append(turns[0])
            yield
        return "done"

    beside = asyncio.ensure_future(others())
    assert await run_in_steps(work()) == "done"
    beside.cancel()
    assert len(set(seen)) >= 9


def test_long_json_with_keys_without_quotes_is_refused() -> None:
    """Quotes are added to its keys, which takes 0.2 s for each MiB."""
    body = b'{"a":"' + b"x" * (1 << 20) + b'",0:{}}'
    with pytest.raises(FrameRefused, match="the limit is"):
        parse_route(body)
    assert parse_route(b'{"a":"' + b"x" * (1 << 19) + b'",0:{}}').queues == ()


_LISTS = b"[]," * (FRAME // 3) + b"[]"
_STRING = b'"' + b"x" * FRAME + b'"'


@pytest.mark.parametrize("value", [b"[" + _LISTS + b"]", _STRING])
@pytest.mark.parametrize(
    ("decode", "name"),
    [
        (parse_route, "queueDatas"),
        (parse_topic_list, "topicList"),
        (parse_members, "consumerIdList"),
        (parse_locked, "lockOKMQSet"),
    ],
)
def test_json_that_takes_seconds_to_parse_is_refused(
    decode: Callable[[bytes], object], name: str, value: bytes
) -> None:
    with pytest.raises(FrameRefused, match="the limit is"):
        decode(f'{{"{name}":'.encode() + value + b"}")


def test_a_reset_of_too_many_queues_is_refused() -> None:
    with pytest.raises(FrameRefused, match="the limit is"):
        parse_offset_table(b'{"offsetTable":{' + _LISTS + b"}}", 65_536)


@asynccontextmanager
async def nobody() -> AsyncIterator[str]:
    """An address that takes no connection and refuses none: its queue is full."""
    with socket.socket() as listening, socket.socket() as first:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        first.connect(listening.getsockname())
        second = socket.socket()
        second.setblocking(False)
        with suppress(BlockingIOError):
            second.connect(listening.getsockname())
        with second:
            yield "{}:{}".format(*listening.getsockname())


LONG = ClientOptions(connect_timeout=1e6, request_timeout=1e6, timeout=1e6)


async def test_a_call_ends_in_its_time_though_nobody_takes_the_connection() -> None:
    async with nobody() as address:
        client = ClientInstance(address, LONG)
        with pytest.raises(PutRefused, match="NOT_CONNECTED"):
            await client.call(address, RemotingCommand(RequestCode.GET_MAX_OFFSET), 0.2)
        await client.close()


async def test_a_send_ends_in_its_time_though_no_name_server_answers() -> None:
    async with nobody() as address, Producer("g", address, options=LONG) as producer:
        for queue in (None, QUEUE):
            with pytest.raises(PutRefused, match="NOT_CONNECTED"):
                await producer.send(Message("t", b"x"), queue=queue, timeout=0.2)
        with pytest.raises(PutRefused, match="NOT_CONNECTED"):
            await producer.request(Message("t", b"x"), timeout=0.2)


async def test_a_broker_that_is_away_takes_half_of_the_time_of_a_request_at_most() -> None:
    def answer(request: RemotingCommand) -> RemotingCommand | None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            masters = {"a": servers[0].server.address, "b": address}
            return request.answer(0, body=route_body_of(masters, 1))
        if request.code == RequestCode.SEND_MESSAGE_V2:
            properties = split_properties(request.fields["i"])
            told = {"properties": join_properties({CORRELATION_ID: properties[CORRELATION_ID]})}
            pushed = RemotingCommand.oneway(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, told, b"answer")
            servers[0].connections[0].notify(pushed)
            return stored(request)
        return request.answer(0)

    async with (
        nobody() as address,
        serving(answer) as servers,
        Producer("g", servers[0].server.address, options=LONG) as producer,
    ):
        told = await producer.request(Message("t", b"x"), queue=QUEUE, timeout=4.0)
        assert told.body == b"answer"


async def test_a_member_leaves_in_its_time_though_brokers_are_away() -> None:
    """They were waited for one after the other, and none that answers was told meanwhile."""
    told = set[int]()

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            masters = {f"b{n}": address for n in range(50)} | {"z": servers[0].server.address}
            return request.answer(0, body=route_body_of(masters, 0))
        told.add(request.code)
        return request.answer(0)

    options = ClientOptions(connect_timeout=0.2, request_timeout=0.2, timeout=0.2)
    async with nobody() as address, serving(answer) as servers:
        names = servers[0].server.address
        consumer = PushConsumer("g", names, lambda messages: None, options=options)
        consumer.subscribe("t")
        await consumer.start()
        assert RequestCode.HEART_BEAT in told
        await consumer.close()
        assert RequestCode.UNREGISTER_CLIENT in told


async def test_a_route_without_brokers_is_none_to_consume_from() -> None:
    def answer(request: RemotingCommand) -> RemotingCommand | None:
        return request.answer(
            0, body=b'{"queueDatas":[{"brokerName":"a","readQueueNums":1,"writeQueueNums":1,"perm":6}]}'
        )

    async with serving(answer) as (names,):
        consumer = PushConsumer("g", names.server.address, lambda messages: None)
        consumer.subscribe("t")
        async with consumer:
            assert not consumer.is_balanced
            with pytest.raises(PutRefused, match="has no broker"):
                await consumer._members("t")


async def test_an_answer_without_the_message_that_was_asked_for_is_damaged() -> None:
    async with serving(lambda request: request.answer(0)) as (broker,), Admin(broker.server.address) as admin:
        port = int(broker.server.address.rpartition(":")[2])
        with pytest.raises(StoredDataDamaged):
            await admin.view_message(format_offset_id(Host(b"\x7f\0\0\1", port), 7))


async def test_a_program_that_goes_on_with_a_closed_client_lets_others_run() -> None:
    client = ClientInstance("127.0.0.1:1", LONG)
    await client.close()
    turn = asyncio.create_task(asyncio.sleep(0))
    for _ in range(9):
        with pytest.raises(PutRefused):
            await client.call("127.0.0.1:1", RemotingCommand(RequestCode.GET_MAX_OFFSET))
    assert turn.done()
