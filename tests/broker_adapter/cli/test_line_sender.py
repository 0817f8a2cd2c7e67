"""Lines reach each queue in their order, in batches of the lines that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker_adapter.cli.messages.line_sender import LineSender, MessageRule, StoredLines
from broker_adapter.client import Message, MessageQueue
from broker_adapter.errors import BrokerError, Busy, PutIndeterminate, PutRefused, Status, TopicRefused


class FakeProducer:
    """A topic whose sends wait while `held`. Raises `errors` instead of storing, one for each send."""

    def __init__(self, queues: int = 2) -> None:
        self.numbers = queues
        self.stored: list[list[list[str]]] = [[] for _ in range(4)]  # batches by queue
        self.errors: list[BrokerError] = []
        self.in_flight = 0
        self.held = asyncio.Event()
        self.held.set()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        if not self.numbers:
            raise TopicRefused(Status.TOPIC_UNKNOWN, topic)
        return tuple(MessageQueue(topic, "b", number) for number in range(self.numbers))

    async def send(self, message: Message, *, selector: Any, arg: object) -> Any:
        return await self.send_batch([message], selector=selector, arg=arg)

    async def send_batch(self, messages: Sequence[Message], *, selector: Any, arg: object) -> Any:
        self.numbers = self.numbers or 2
        queues = await self.queues(messages[0].topic)
        queue = selector(queues, messages[0], arg) if selector is not None else queues[0]
        self.in_flight += 1
        await self.held.wait()
        self.in_flight -= 1
        if self.errors:
            raise self.errors.pop(0)
        batches = self.stored[queue.queue_id]
        first = sum(map(len, batches))
        batches.append([message.body.decode() for message in messages])
        return Result(queue, first)

    def lines(self, queue: int) -> list[str]:
        return [line for batch in self.stored[queue] for line in batch]


class Result:
    def __init__(self, queue: MessageQueue, queue_offset: int) -> None:
        self.queue = queue
        self.queue_offset = queue_offset


def sender_of(
    producer: FakeProducer, *, max_lines: int = 100, again: bool = False, **rule: Any
) -> LineSender:
    fake: Any = producer
    return LineSender(fake, MessageRule("t", **rule), 0.5, max_lines=max_lines, again=again)


async def start(sender: LineSender, lines: Sequence[str]) -> list[asyncio.Task[StoredLines]]:
    tasks = [asyncio.create_task(sender.send(line.encode())) for line in lines]
    for _ in range(2 * len(lines) + 10):
        await asyncio.sleep(0)
    return tasks


async def test_lines_that_wait_for_a_queue_are_its_next_batch() -> None:
    producer = FakeProducer(queues=2)
    producer.held.clear()
    tasks = await start(sender_of(producer), [str(n) for n in range(10)])
    assert producer.in_flight == 2, "one request for each queue"
    producer.held.set()
    results = await asyncio.gather(*tasks)
    assert producer.stored[0] == [["0"], ["2", "4", "6", "8"]]
    assert producer.stored[1] == [["1"], ["3", "5", "7", "9"]]
    assert results[8] == StoredLines(0, 4) and results[9] == StoredLines(1, 4)


@pytest.mark.parametrize(("max_lines", "sizes"), [(1, [1] * 7), (3, [1, 3, 3])])
async def test_a_batch_has_a_limit_of_lines(max_lines: int, sizes: list[int]) -> None:
    producer = FakeProducer(queues=1)
    producer.held.clear()
    tasks = await start(sender_of(producer, max_lines=max_lines), list("abcdefg"))
    producer.held.set()
    await asyncio.gather(*tasks)
    assert [len(batch) for batch in producer.stored[0]] == sizes
    assert producer.lines(0) == list("abcdefg")


async def test_a_batch_has_a_limit_of_bytes_and_a_line_beyond_it_goes_alone() -> None:
    producer = FakeProducer(queues=1)
    producer.held.clear()
    large = "x" * (200 << 10)
    tasks = await start(sender_of(producer), ["a", large, "b", 2 * large, "c"])
    producer.held.set()
    await asyncio.gather(*tasks)
    assert producer.stored[0] == [["a"], [large, "b"], [2 * large], ["c"]]


async def test_a_batch_has_the_lines_of_one_key_if_keys_determine_queues() -> None:
    producer = FakeProducer(queues=1)
    producer.held.clear()
    # Aa and BB have the same hash code
    lines = ["Aa 1", "Aa 2", "Aa 3", "BB 4", "Aa 5"]
    tasks = await start(sender_of(producer, key_field=1, ordered=True), lines)
    assert producer.in_flight == 1
    producer.held.set()
    await asyncio.gather(*tasks)
    assert producer.stored[0] == [["Aa 1"], ["Aa 2", "Aa 3"], ["BB 4"], ["Aa 5"]]


async def test_the_first_line_creates_the_topic_and_the_others_find_its_queues() -> None:
    producer = FakeProducer(queues=0)
    await asyncio.gather(*await start(sender_of(producer), list("abcde")))
    assert producer.lines(0)[0] == "a"
    assert sorted(producer.lines(0)[1:] + producer.lines(1)) == list("bcde")
    assert len(producer.lines(1)) == 2


async def test_a_batch_that_was_not_stored_is_repeated_before_later_lines() -> None:
    producer = FakeProducer(queues=1)
    producer.errors = [Busy(Status.TOO_MANY_CALLS, "later"), PutRefused(Status.NOT_MASTER, "no master")]
    await asyncio.gather(*await start(sender_of(producer), list("abc")))
    assert producer.lines(0) == list("abc")


async def test_after_a_batch_in_doubt_nothing_else_is_sent_and_each_line_has_its_own_outcome() -> None:
    producer = FakeProducer(queues=2)
    producer.held.clear()
    tasks = await start(sender_of(producer), [str(n) for n in range(6)])
    producer.errors = [PutIndeterminate(Status.OUTCOME_UNKNOWN, "no response")]
    producer.held.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], PutIndeterminate)
    assert outcomes[1] == StoredLines(1, 0), "it was in flight"
    for outcome in outcomes[2:]:
        assert isinstance(outcome, PutRefused), "certainly not stored"
        assert "not sent" in outcome.message and "no response" in outcome.message
    assert producer.stored[:2] == [[], [["1"]]]


async def test_lines_in_doubt_are_sent_again_on_request() -> None:
    producer = FakeProducer(queues=1)
    producer.errors = [PutIndeterminate(Status.OUTCOME_UNKNOWN, "no response")]
    await asyncio.gather(*await start(sender_of(producer, again=True), list("ab")))
    assert producer.lines(0) == list("ab")


def test_keys_are_taken_from_the_field_of_a_line() -> None:
    assert MessageRule("t", keys=("k",)).keys_of(b"any") == ("k",)
    assert MessageRule("t", key_field=2).keys_of(b"a  b c") == ("b",)
    assert MessageRule("t", keys=("k",), key_field=1, separator=",").keys_of(b"x,y") == ("k", "x")
    assert MessageRule("t", key_field=3).keys_of(b"only one") == ()
