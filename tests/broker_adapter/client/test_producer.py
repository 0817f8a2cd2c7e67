"""The producer against servers that answer as a test tells them: attempts and outcomes."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count

import pytest

from broker_adapter.client import (
    ClientOptions,
    LocalTransactionState,
    Message,
    MessageQueue,
    Producer,
    SendStatus,
    TransactionProducer,
)
from broker_adapter.client import producer as producer_module
from broker_adapter.client.core import send_attempts
from broker_adapter.client.instance import Connections
from broker_adapter.errors import (
    AnswerMissing,
    IllegalMessage,
    NameServerUnavailable,
    PutIndeterminate,
    PutRefused,
    Status,
    TopicRefused,
)
from broker_adapter.remoting.codes import DUPLICATE_FILTER, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.wire.properties import split_properties
from tests.node.local import until

from .scripted import Script, ScriptedServer, route_body, serving, stored

#: No test waits for more than one time-out. It is long enough for a busy machine to connect and to be heard.
OPTIONS = ClientOptions(request_timeout=1.0, timeout=30.0)
PATIENT = ClientOptions()


@asynccontextmanager
async def world(
    *scripts: Script, options: ClientOptions = PATIENT
) -> AsyncIterator[tuple[Producer, list[ScriptedServer], ScriptedServer]]:
    """A producer, brokers, and a NameServer that knows `t`, `%RETRY%g` and `%DLQ%g` at all of them."""
    async with serving(*scripts) as brokers:

        def routes(request: RemotingCommand) -> RemotingCommand:
            if request.fields["topic"].removesuffix("%g") not in ("t", "%RETRY", "%DLQ"):
                return request.answer(17, "No topic route info in name server for the topic")
            return request.answer(0, body=route_body(brokers))

        async with (
            serving(routes) as (names,),
            Producer("g", names.server.address, options=options) as producer,
        ):
            yield producer, brokers, names


def refuse(code: int, remark: str = "") -> Script:
    return lambda request: request.answer(code, remark)


def silent(request: RemotingCommand) -> RemotingCommand | None:
    return None


async def test_a_message_goes_over_the_wire_as_a_v2_request() -> None:
    async with world(stored) as (producer, (broker,), _):
        result = await producer.send(Message("t", b"hello", tags="a"))
    (request,) = broker.seen
    assert request.code == RequestCode.SEND_MESSAGE_V2 and request.body == b"hello"
    assert (request.fields["a"], request.fields["b"], request.fields["n"]) == ("g", "t", "a")
    assert f"UNIQ_KEY\x01{result.message_id}\x02" in request.fields["i"]
    assert (result.status, result.queue, result.queue_offset) == (
        SendStatus.SEND_OK,
        MessageQueue("t", "a", 0),
        5,
    )
    assert not result.may_be_duplicate


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_late_flush_or_slave_is_a_status_and_no_error(code: int) -> None:
    def late(request: RemotingCommand) -> RemotingCommand:
        return replace(stored(request), code=code)

    async with world(late) as (producer, _, _):
        assert (await producer.send(Message("t", b"x"))).status == code


async def test_a_refused_message_goes_to_another_broker() -> None:
    async with world(refuse(14), stored) as (producer, _, _):
        results = [await producer.send(Message("t", b"x")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert not any(result.may_be_duplicate for result in results)


async def test_the_route_is_asked_for_again_after_a_failure() -> None:
    options = replace(PATIENT, poll_name_server_s=1e9)
    async with world(refuse(14), options=options) as (producer, _, names):
        producer._client.routes.min_age_s = 0.0
        with pytest.raises(PutRefused):
            await producer.send(Message("t", b"x"))
        assert len(names.seen) == 3


async def test_without_a_queue_that_takes_messages_the_route_is_asked_for_again() -> None:
    options = replace(PATIENT, poll_name_server_s=1e9)
    async with world(stored, options=options) as (producer, brokers, names):
        producer._client.routes.min_age_s = 0.0
        (script, seen), closed = (names.script, names.seen), route_body(brokers, queues=0)
        names.script = lambda request: request.answer(0, body=closed)
        for selector in (None, lambda queues, message, arg: queues[arg % len(queues)]):
            with pytest.raises(TopicRefused) as caught:
                await producer.send(Message("t", b"x"), selector=selector, arg=7)
            assert caught.value.status is Status.TOPIC_NOT_WRITABLE
        assert len(seen) == 4 - 1  # the first one has no route yet
        names.script = script
        await producer.send(Message("t", b"x"))


@pytest.mark.parametrize("why", ["no master", "no queue that takes messages"])
async def test_who_tries_again_at_once_lets_others_run(why: str) -> None:
    """Nothing is asked of anybody then, so nothing has to be waited for: a program that did so kept its event
    loop from reading what would have told it better."""
    async with world(stored) as (producer, brokers, names):
        closed = route_body(brokers, queues=0)
        body = closed if why != "no master" else route_body(brokers).replace(b'"0": ', b'"1": ')
        names.script = lambda request: request.answer(0, body=body)
        producer._client.routes.min_age_s = 1e9
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        queue = MessageQueue("t", "a", 0) if why == "no master" else None
        for _ in range(50):
            with pytest.raises(TopicRefused):
                await producer.send(Message("t", b"x"), queue=queue)
        assert turns >= 50
        other.cancel()
        assert len(names.seen) == 1


async def test_a_question_that_is_answered_is_not_waited_for() -> None:
    """Who came between its end and what follows it got its answer at once, again and again: who tried again
    at once never gave the event loop back."""
    async with world(stored) as (producer, brokers, names):
        routes, was_waiting = producer._client.routes, list[bool]()
        await routes.refresh("t")

        def come() -> None:
            asked = routes.refresh("t")
            with suppress(StopIteration):
                asked.send(None)
            was_waiting.append(asked.cr_running or asked.cr_frame is not None)
            asked.close()

        # Called at the end of the task, before all that waits for it.
        routes.on_change = lambda topic: asyncio.get_running_loop().call_soon(come)  # type: ignore[assignment]
        names.script = lambda request: request.answer(0, body=route_body(brokers, queues=7))
        await routes.refresh("t")
        assert was_waiting == [True]
        await until(lambda: len(names.seen) == 3)


async def test_an_attempt_to_connect_that_has_failed_is_made_again() -> None:
    async with world(stored) as (producer, (broker,), _):
        connections, address = producer._client.connections, broker.server.address
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(AnswerMissing(Status.ANSWER_MISSING, "refused"))
        connections._opening[address] = failed  # type: ignore[assignment]  # what follows its end is to come
        assert not (await connections.get(address)).is_closed


@pytest.mark.parametrize(
    "address", ["nowhere", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "a" * 99 + ":1"]
)
async def test_what_is_no_address_takes_no_connection(address: str) -> None:
    """A NameServer may name anything; what asks brokers again and again goes on only after a BrokerError."""
    async with world(stored) as (producer, _, _):
        with pytest.raises(PutRefused, match="NOT_CONNECTED"):
            await producer._client.connections.get(address)


@pytest.mark.parametrize("fields", [{}, {"queueId": "0", "queueOffset": "x"}])
async def test_a_success_that_cannot_be_read_may_be_stored(fields: dict[str, str]) -> None:
    async with world(lambda request: request.answer(0, fields=fields), stored) as (producer, (odd, _), _):
        with pytest.raises(PutIndeterminate):
            await producer.send(Message("t", b"x"), queue=MessageQueue("t", "a", 0))
        results = [await producer.send(Message("t", b"x")) for _ in range(2)]
        assert len(odd.seen) == 2 and {True, False} == {one.may_be_duplicate for one in results}


async def test_a_message_that_may_be_stored_twice_says_so() -> None:
    async with world(silent, stored, options=OPTIONS) as (producer, (first, _), _):
        results = [await producer.send(Message("t", b"x")) for _ in range(2)]
    assert len(first.seen) == 1  # the broker that did not answer is avoided
    assert sorted(result.may_be_duplicate for result in results) == [False, True]


@pytest.mark.parametrize("script", [silent, refuse(1, "UNKNOWN_ERROR")])
async def test_no_answer_and_no_reason_are_indeterminate(script: Script) -> None:
    async with world(script, refuse(14), options=OPTIONS) as (producer, _, _):
        with pytest.raises(PutIndeterminate, match="710 OUTCOME_UNKNOWN"):
            await producer.send(Message("t", b"x"))


@pytest.mark.parametrize("is_batch", [False, True])
async def test_all_attempts_of_a_send_have_one_id_and_one_born_timestamp(
    is_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = count(1_000)
    monkeypatch.setattr(producer_module, "now_ms", lambda: next(times))
    async with world(refuse(1), refuse(1), stored) as (producer, brokers, _):
        for _ in range(3):
            if is_batch:
                await producer.send_batch([Message("t", b"1"), Message("t", b"2")])
            else:
                await producer.send(Message("t", b"x"))
        requests = [one for broker in brokers for one in broker.seen]
    tries: dict[str, set[str]] = {}
    for request in requests:
        message_id = split_properties(request.fields["i"])["UNIQ_KEY"]
        tries.setdefault(message_id, set()).add(request.fields["g"])
    assert len(requests) > len(tries) == 3
    assert all(len(born) == 1 for born in tries.values()), tries


async def test_an_attempt_that_an_earlier_one_stored_is_no_duplicate_and_says_so() -> None:
    def known(request: RemotingCommand) -> RemotingCommand:
        answer = stored(request)
        return replace(answer, fields={**answer.fields, "duplicate": "true"})

    async with world(refuse(1), known) as (producer, _, _):
        results = [await producer.send(Message("t", b"x")) for _ in range(2)]
    assert all(result.is_duplicate and not result.may_be_duplicate for result in results)


async def test_a_message_that_may_be_stored_is_not_repeated_when_brokers_may_have_forgotten_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(send_attempts, "_REPEAT_S", 0.0)
    async with world(refuse(1), refuse(1)) as (producer, brokers, _):
        with pytest.raises(PutIndeterminate):
            await producer.send(Message("t", b"x"), timeout=1e6)
        assert sum(len(broker.seen) for broker in brokers) == 1


async def test_a_message_that_may_be_stored_stays_so_when_its_topic_has_no_route_any_more() -> None:
    """As after a crash of the only broker, which the NameServer then leaves out."""
    async with world(refuse(1)) as (producer, brokers, names):
        await producer.queues("t")
        producer._client.routes.min_age_s = 0
        names.script = lambda request: request.answer(17, "No topic route info")
        with pytest.raises(PutIndeterminate):
            await producer.send(Message("t", b"x"))
        assert len(brokers[0].seen) == 1
        with pytest.raises(TopicRefused):
            await producer.send(Message("t", b"x"))
        assert len(brokers[0].seen) == 1


async def test_refusals_alone_are_definite() -> None:
    async with world(refuse(14), refuse(2)) as (producer, brokers, _):
        with pytest.raises(PutRefused):
            await producer.send(Message("t", b"x"))
        assert sum(len(broker.seen) for broker in brokers) == 3


async def test_a_wrong_message_is_sent_once() -> None:
    async with world(refuse(13), refuse(13)) as (producer, brokers, _):
        with pytest.raises(IllegalMessage):
            await producer.send(Message("t", b"x"))
        assert sum(len(broker.seen) for broker in brokers) == 1


async def test_an_ordered_message_is_not_repeated_when_it_may_be_stored() -> None:
    async with world(silent, stored, options=OPTIONS) as (producer, (first, second), _):
        with pytest.raises(PutIndeterminate):
            await producer.send(Message("t", b"x"), selector=lambda queues, message, arg: queues[0])
    assert (len(first.seen), len(second.seen)) == (1, 0)


def in_log(name: str) -> Script:
    """Store every send, at a broker whose log stores repeated sends once."""

    def script(request: RemotingCommand) -> RemotingCommand:
        answer = stored(request)
        return replace(answer, fields={**answer.fields, DUPLICATE_FILTER: name})

    return script


async def learn_filters(producer: Producer, brokers: Sequence[ScriptedServer]) -> None:
    for number in range(len(brokers)):
        await producer.send(Message("t", b"x"), queue=MessageQueue("t", "abc"[number], 0))
        brokers[number].seen.clear()


@pytest.mark.parametrize("names_queue", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
async def test_an_ordered_send_is_repeated_in_its_queue_where_the_log_stores_it_once(
    names_queue: bool, is_batch: bool
) -> None:
    async with world(in_log("1"), in_log("2"), in_log("1")) as (producer, brokers, _):
        await learn_filters(producer, brokers)
        first, other, second = brokers
        first.script = refuse(1, "UNKNOWN_ERROR")
        wanted = MessageQueue("t", "a", 0)
        messages = [Message("t", b"1"), Message("t", b"2")][: 1 + is_batch]
        queue = wanted if names_queue else None
        selector = None if names_queue else lambda queues, message, arg: wanted
        if is_batch:
            result = await producer.send_batch(messages, queue=queue, selector=selector)
        else:
            result = await producer.send(messages[0], queue=queue, selector=selector)
    assert (len(first.seen), len(other.seen), len(second.seen)) == (1, 0, 1)
    ids = {split_properties(one.fields["i"])["UNIQ_KEY"] for one in (*first.seen, *second.seen)}
    assert len(ids) == 1
    assert not result.may_be_duplicate
    if names_queue:
        assert result.queue == wanted


async def test_an_ordered_send_that_may_be_stored_is_repeated_until_the_broker_responds() -> None:
    answers = [refuse(1), refuse(14), refuse(1), refuse(1)]
    async with world(in_log("1")) as (producer, brokers, _):
        await learn_filters(producer, brokers)
        brokers[0].script = lambda request: (answers.pop(0) if answers else in_log("1"))(request)
        result = await producer.send(Message("t", b"x"), queue=MessageQueue("t", "a", 0))
    assert len(brokers[0].seen) == 5 > send_attempts.MAX_ATTEMPTS
    assert not result.may_be_duplicate


async def test_a_send_that_may_be_stored_goes_to_the_log_that_recognizes_it() -> None:
    async with world(in_log("1"), in_log("2"), in_log("2")) as (producer, brokers, _):
        await learn_filters(producer, brokers)
        for broker in brokers[1:]:
            answers = [refuse(1)]
            broker.script = lambda request, own=answers: (own.pop() if own else in_log("2"))(request)
        results = [await producer.send(Message("t", b"x")) for _ in range(3)]
    assert not any(result.may_be_duplicate for result in results)
    attempts = [split_properties(one.fields["i"])["UNIQ_KEY"] for one in brokers[0].seen]
    assert len(attempts) == sum(result.queue.broker_name == "a" for result in results)


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
async def test_messages_without_an_id_at_the_broker_are_not_repeated(topic: str) -> None:
    async with world(in_log("1")) as (producer, brokers, _):
        await learn_filters(producer, brokers)
        brokers[0].script = refuse(1)
        with pytest.raises(PutIndeterminate):
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "a", 0))
        assert len(brokers[0].seen) == 1


async def test_an_ordered_message_stays_at_its_queue_when_it_is_refused() -> None:
    answers = [refuse(2), stored]
    async with world(lambda request: answers.pop(0)(request), stored) as (producer, (first, second), _):
        result = await producer.send(Message("t", b"x"), queue=MessageQueue("t", "a", 0))
    assert result.queue.broker_name == "a" and (len(first.seen), len(second.seen)) == (2, 0)


async def test_a_server_that_is_not_there_refuses() -> None:
    async with world(stored) as (producer, (broker,), _):
        await broker.server.stop()
        with pytest.raises(PutRefused, match="705 NOT_CONNECTED"):
            await producer.send(Message("t", b"x"))


async def test_a_batch_is_one_request_with_an_id_for_each_message() -> None:
    async with world(stored) as (producer, (broker,), _):
        result = await producer.send_batch([Message("t", b"1"), Message("t", b"2")])
    (request,) = broker.seen
    assert request.code == RequestCode.SEND_BATCH_MESSAGE and request.fields["m"] == "true"
    assert len(set(result.message_ids)) == 2
    assert all(one.encode() in request.body for one in result.message_ids)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("t", b"1"), Message("u", b"2")],
        [Message("t", b"1", delay_level=1)],
        [Message("t", bytes(4 << 20))],
    ],
)
async def test_what_is_no_batch(messages: list[Message]) -> None:
    async with world(stored) as (producer, (broker,), _):
        with pytest.raises(IllegalMessage):
            await producer.send_batch(messages)
        assert not broker.seen


@pytest.mark.parametrize("size", [4096, 1 << 20])
async def test_large_bodies_are_compressed(size: int) -> None:
    async with world(stored) as (producer, (broker,), _):
        await producer.send(Message("t", bytes(size)))
        await producer.send(Message("t", bytes(4095)))
    large, small = broker.seen
    assert zlib.decompress(large.body) == bytes(size) and large.fields["f"] == str(0x301)
    assert small.body == bytes(4095) and small.fields["f"] == "0"


async def test_a_one_way_message_has_no_answer() -> None:
    async with world(silent) as (producer, (broker,), _):
        await producer.send_oneway(Message("t", b"x"))
        await until(lambda: bool(broker.seen))
        assert broker.seen[0].is_oneway


async def test_a_topic_that_nobody_creates_is_unknown() -> None:
    async with world(stored) as (producer, _, _):
        with pytest.raises(TopicRefused, match="720 TOPIC_UNKNOWN"):
            await producer.send(Message("other", b"x"))


async def test_another_name_server_is_asked_when_one_is_away() -> None:
    async with world(stored) as (_, _, names):
        addresses = f"127.0.0.1:1;{names.server.address}"
        async with Producer("g", addresses) as producer:
            await producer.send(Message("t", b"x"))


async def test_no_name_server_at_all() -> None:
    async with Producer("g", ["127.0.0.1:1"]) as producer:
        with pytest.raises(NameServerUnavailable, match="791"):
            await producer.send(Message("t", b"x"))


async def test_calls_wait_while_too_much_is_in_flight_and_say_that_nothing_was_sent() -> None:
    options = ClientOptions(max_in_flight_bytes=10)
    async with serving(silent) as (server,):
        connections = Connections(options, Dispatch(), None)
        address = server.server.address
        first = RemotingCommand(RequestCode.SEND_MESSAGE, body=bytes(10))
        with pytest.raises(ExceptionGroup) as failed:
            async with asyncio.TaskGroup() as group:
                group.create_task(connections.invoke(address, first, 5))
                await until(lambda: bool(server.seen))
                group.create_task(connections.invoke(address, replace(first, body=b"1"), 0.01))
        (error,) = failed.value.exceptions
        assert isinstance(error, PutRefused) and error.status is Status.TOO_MANY_CALLS
        assert len(server.seen) == 1
        await connections.close()


async def test_a_broker_that_was_away_is_greeted_when_it_is_back() -> None:
    """Otherwise it has nobody to ask about transactions."""
    away: list[int] = []  # questions for the route meanwhile

    def broker(request: RemotingCommand) -> RemotingCommand:
        is_send = request.code == RequestCode.SEND_MESSAGE_V2
        return stored(request) if is_send else request.answer(0)

    async with serving(broker) as (server,):
        is_away = False

        def routes(request: RemotingCommand) -> RemotingCommand:
            if is_away:
                away.append(request.code)
                return request.answer(17, "No topic route info in name server for the topic")
            return request.answer(0, body=route_body([server]))

        options = replace(PATIENT, poll_name_server_s=0.05, heartbeat_broker_s=0.05)
        async with (
            serving(routes) as (names,),
            TransactionProducer(
                "g", names.server.address, lambda _: LocalTransactionState.UNKNOWN, options=options
            ) as producer,
        ):
            message = Message("t", b"half")
            await producer.send_in_transaction(message, lambda _: LocalTransactionState.UNKNOWN)
            is_away = True
            await until(lambda: len(away) > 2)
            greeted = len(server.seen_of(RequestCode.HEART_BEAT))
            is_away = False
            await until(lambda: len(server.seen_of(RequestCode.HEART_BEAT)) > greeted)
