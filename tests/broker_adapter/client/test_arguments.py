"""Wrong arguments of calls are refused by their name, before anything is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from broker_adapter.client import (
    Admin,
    BlockingProducer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from broker_adapter.client.core.queue_choice import QueueNumber, select_by_hash
from broker_adapter.client.transactions import TransactionProducer
from broker_adapter.errors import IllegalMessage, TopicRefused

NOBODY = "127.0.0.1:1"
MESSAGE = Message("t", b"x")
OF_ANOTHER_TOPIC = MessageQueue("other", "b", 0)
OF_TOPIC = MessageQueue("t", "b", 0)
ANY: Any = None


class WithQueues(Producer):
    async def _write_queues(self, topic: str, *, renew: bool = False) -> tuple[MessageQueue, ...]:
        return (OF_TOPIC,)


def calls(producer: Producer) -> list[Callable[..., Awaitable[object]]]:
    return [
        lambda **more: producer.send(MESSAGE, **more),
        lambda **more: producer.send_batch([MESSAGE], **more),
        lambda **more: producer.send_oneway(MESSAGE, **more),
        lambda **more: producer.request(MESSAGE, **more),
    ]


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"queue": OF_ANOTHER_TOPIC}, "does not belong to the message's topic 't'"),
        (
            {"selector": lambda queues, message, arg: OF_ANOTHER_TOPIC},
            "does not belong to the message's topic",
        ),
        ({"queue": 0}, "a queue must be MessageQueue, not int"),
        ({"queue": ("t", "b", 0)}, "a queue must be MessageQueue"),
        ({"queue": OF_TOPIC._replace(queue_id=-1)}, "is negative"),
        ({"selector": lambda queues, message, arg: None}, "must be MessageQueue, not NoneType"),
        ({"selector": lambda queues, message, arg: 3}, "must be MessageQueue, not int"),
        ({"selector": 3}, "the selector 3 cannot be called"),
        ({"queue": OF_TOPIC, "selector": select_by_hash}, "either queue or selector"),
    ],
)
async def test_a_message_goes_to_queues_of_its_topic_only(
    way: int, choice: dict[str, Any], reason: str
) -> None:
    async with WithQueues("g", NOBODY) as producer:
        with pytest.raises(IllegalMessage, match=reason):
            await calls(producer)[way](**choice)


def test_the_blocking_producer_refuses_a_queue_of_another_topic() -> None:
    with BlockingProducer("g", NOBODY) as producer:
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(IllegalMessage, match="does not belong"):
                send(MESSAGE, queue=OF_ANOTHER_TOPIC)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "3"])
async def test_a_timeout_is_above_zero(timeout: Any) -> None:
    producer = Producer("g", NOBODY)
    for send in (calls(producer)[0], calls(producer)[1], calls(producer)[3]):
        with pytest.raises(IllegalMessage, match="timeout must be a number of seconds above 0"):
            await send(queue=OF_TOPIC, timeout=timeout)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Producer(ANY, NOBODY), "group must be str"),
        (lambda: Producer("g", NOBODY, options=cast(Any, {"timeout": 3})), "options must be ClientOptions"),
        (lambda: TransactionProducer("g", NOBODY, check=ANY), "the check None"),
        (lambda: PullConsumer("g", NOBODY, consume_from=cast(Any, "FIRST")), "consume_from must be"),
        (lambda: PullConsumer("g", NOBODY, expression=ANY), "expression must be str"),
        (lambda: PullConsumer("g", NOBODY).assign(cast(Any, "ct")), "a queue must be MessageQueue, not str"),
        (lambda: PushConsumer("g", NOBODY, print, model=cast(Any, "BROADCASTING")), "model must be"),
        (lambda: PushConsumer("g", NOBODY, print, consume_from=cast(Any, "FIRST")), "consume_from must be"),
        (lambda: PushConsumer("g", NOBODY, print, settings=cast(Any, 5)), "settings must be"),
        (lambda: PushConsumer("g", NOBODY, print).subscribe("t", ANY), "expression must be str"),
        (lambda: PushConsumer("g", NOBODY, print).subscribe(ANY), "topic name must be str"),
        (lambda: Message("t", b"x", keys=cast(Any, [5])), "key of a message must be str"),
        (lambda: Message("t", b"x", keys=ANY), "keys of a message must be Sequence"),
        (lambda: QueueNumber(cast(Any, "1")), "number of a queue must be int"),
    ],
)
async def test_an_argument_of_another_type_is_refused_by_its_name(
    call: Callable[[], object], name: str
) -> None:
    with pytest.raises(IllegalMessage, match=name):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Producer("g", NOBODY).send(ANY), "a message must be Message, not NoneType"),
        (lambda: Producer("g", NOBODY).send_batch(cast(Any, [5])), "a message must be Message, not int"),
        (lambda: Producer("g", NOBODY).send_batch(ANY), "a batch must be Sequence"),
        (
            lambda: TransactionProducer("g", NOBODY, cast(Any, print)).send_in_transaction(MESSAGE, ANY),
            "execute",
        ),
        (lambda: Admin(NOBODY).view_message(ANY), "message id must be str"),
        (lambda: Admin(NOBODY).reset_offset("g", cast(Any, "q"), 0), "a queue must be MessageQueue"),
        (lambda: Admin(NOBODY).min_offset(cast(Any, 0)), "a queue must be MessageQueue, not int"),
        (lambda: PullConsumer("g", NOBODY).pull(OF_TOPIC, ANY), "offset must be int"),
        (lambda: PullConsumer("g", NOBODY).pull(cast(Any, "q"), 0), "a queue must be MessageQueue"),
        (lambda: PullConsumer("g", NOBODY).committed(cast(Any, "q")), "a queue must be MessageQueue"),
    ],
)
async def test_an_argument_of_a_call_is_refused_by_its_name(
    call: Callable[[], Awaitable[object]], name: str
) -> None:
    with pytest.raises(IllegalMessage, match=name):
        await call()


async def test_a_queue_that_is_not_assigned_is_named() -> None:
    consumer = PullConsumer("g", NOBODY)
    with pytest.raises(KeyError, match="is not assigned"):
        consumer.seek(OF_TOPIC, 0)
    with pytest.raises(KeyError, match="is not assigned"):
        consumer.position(OF_TOPIC)


def test_no_queue_for_a_key_is_an_error() -> None:
    with pytest.raises(TopicRefused, match="no broker accepts"):
        select_by_hash([], MESSAGE, "k")
