"""A message id that comes again while nobody knows yet what became of the first one."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.api import PERM_READ, OutgoingMessage, TopicConfig
from broker_adapter.delivery_state.duplicate_filter import DEFERRED, DuplicateFilter, send_identity
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Busy, IllegalMessage, PutIndeterminate, Status, TopicRefused
from broker_adapter.put.committer import Committer, PutRequest, RequestOutcome
from broker_adapter.put.message_writer import MessageWriter, QueuedRecords, StoredAt
from broker_adapter.put.record_writer import RecordBatch
from broker_adapter.put.sender import PutResult, Send, Sender
from dledger.testing.virtual.clock import VirtualClock
from dledger.testing.virtual.event_loop import virtual_loop

DOUBT = PutIndeterminate(Status.OUTCOME_UNKNOWN, "not known yet")
MINUTE_MS = 60_000
SPAN_MS, BORN_MS = 15_000, 1_000
IDENTITY = send_identity("t", "id", [OutgoingMessage(b"x")], BORN_MS)
#: The number of a half that 0.1.0 has rolled back.
ROLLED_BACK = 77
#: The queue of sends that name none.
ANY_QUEUES = 3
TOO_LARGE = b"too large"


class Desk:
    """A sender whose requests the test settles."""

    def __init__(self, retry_span_ms: int = SPAN_MS) -> None:
        self.requests: list[PutRequest] = []
        self.ids = DuplicateFilter()
        self.now_ms = 5_000
        self.topic = TopicConfig("t", write_queues=4)
        self.refusal: Busy | None = None
        self.put_status: Status | None = None
        deferred = SimpleNamespace(has_ended_unstored=lambda number: number == ROLLED_BACK)
        state = SimpleNamespace(lock=threading.Lock(), ids=self.ids, deferred=deferred)
        self.sender = Sender(
            cast(DeliveryState, state),
            cast(Committer, self),
            cast(MessageWriter, self),
            now_ms=lambda: self.now_ms,
            retry_span_ms=retry_span_ms,
            timeout_ms=MINUTE_MS,
        )

    def submit(self, request: PutRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)

    def check_master(self) -> tuple[int, int]:
        return 1, 1

    def queue_of(self, config: TopicConfig, queue_id: int) -> int:
        return ANY_QUEUES if queue_id == -1 else queue_id

    steps_ms = 0

    async def put_status_of_all(self, timeout_ms: int) -> Status | None:
        return self.put_status

    def records(self, topic: str, queue_id: int, messages: Any, *, born_host: Any, own: Any) -> QueuedRecords:
        if messages[0].body == TOO_LARGE:
            raise IllegalMessage(Status.BODY_TOO_LARGE, "too large")
        return QueuedRecords(topic, queue_id, cast(RecordBatch, SimpleNamespace(sizes=[1])))

    def send(
        self, timeout_ms: int = MINUTE_MS, *, body: bytes = b"x", born_ms: int = BORN_MS
    ) -> asyncio.Task[PutResult]:
        message = OutgoingMessage(body, born_timestamp=born_ms)
        return asyncio.create_task(
            self.sender.send_one(Send(self.topic, [message], "id", 2, timeout_ms=timeout_ms))
        )


async def steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def in_doubt() -> Desk:
    desk = Desk()
    first = desk.send()
    await steps()
    desk.requests[0].fail(DOUBT)
    with pytest.raises(PutIndeterminate):
        await first
    return desk


async def test_it_waits_for_the_outcome_and_is_stored_once() -> None:
    desk = await in_doubt()
    again = [desk.send(), desk.send()]
    await steps()
    assert not any(task.done() for task in again)
    desk.ids.put(IDENTITY, 2, 7, 0)
    desk.requests[0].release()
    assert await asyncio.gather(*again) == [PutResult(2, 7, True)] * 2
    assert len(desk.requests) == 1


async def test_what_0_1_0_stored_is_known_by_its_id_alone() -> None:
    desk = Desk()
    desk.ids.put_first(IDENTITY.id_digest, 2, 7, 0)
    assert await desk.send(body=b"anything", born_ms=99_999_999) == PutResult(2, 7, True)
    assert not desk.requests


async def test_what_0_1_0_rolled_back_is_sent_again() -> None:
    desk = Desk()
    desk.ids.put_first(IDENTITY.id_digest, DEFERRED, ROLLED_BACK, 0)
    desk.send()
    await steps()
    assert len(desk.requests) == 1


async def test_a_late_attempt_of_an_ended_send_is_refused() -> None:
    """A delayed message that was recalled. The attempt that arrives after its due time needs no delay."""
    desk = Desk()
    desk.ids.put(IDENTITY, DEFERRED, 7, 0)
    desk.ids.end_deferred(7, 0)
    for born_ms in (BORN_MS - 1, BORN_MS):
        with pytest.raises(IllegalMessage) as refused:
            await desk.send(born_ms=born_ms)
        assert refused.value.status is Status.SEND_ENDED
    assert not desk.requests
    desk.send(born_ms=BORN_MS + 1)
    await steps()
    assert len(desk.requests) == 1


async def test_another_content_or_a_later_birth_is_another_message() -> None:
    """Whether the state knows the first one, or it is still on its way."""
    desk = Desk()
    desk.send()
    await steps()
    desk.send(body=b"y")
    desk.send(born_ms=BORN_MS + SPAN_MS + 1)
    await steps()
    assert len(desk.requests) == 3
    desk = Desk()
    desk.ids.put(IDENTITY, 2, 7, 0)
    desk.send(body=b"y")
    desk.send(born_ms=BORN_MS + SPAN_MS + 1)
    await steps()
    assert len(desk.requests) == 2 and not desk.sender.duplicates


@pytest.mark.parametrize("is_over", ["the first send", "the leadership"])
async def test_sends_of_one_id_and_content_that_are_on_their_way_are_forgotten_one_by_one(
    is_over: str,
) -> None:
    desk, births = Desk(), (BORN_MS, BORN_MS + SPAN_MS + 1)
    for born_ms in births:
        desk.send(born_ms=born_ms)
    await steps()
    if is_over == "the leadership":
        desk.sender.clear()
    else:
        desk.requests[0].release()
    for born_ms in births:
        desk.send(born_ms=born_ms)
    await steps()
    again = [request.identity.born_ms for request in desk.requests[2:] if request.identity]
    assert again == ([*births] if is_over == "the leadership" else [BORN_MS])


async def test_a_message_that_says_no_birth_was_born_when_it_came() -> None:
    desk = Desk()
    first = desk.send(born_ms=0)
    await steps()
    desk.now_ms += SPAN_MS
    again = desk.send(born_ms=0)
    await steps()
    desk.now_ms += 1
    desk.send(born_ms=0)
    await steps()
    assert len(desk.requests) == 2
    desk.requests[0].settle(RequestOutcome([7], []))
    assert await asyncio.gather(first, again) == [PutResult(2, 7), PutResult(2, 7, True)]


async def test_duplicates_are_counted_by_topic() -> None:
    desk = Desk()
    desk.ids.put(IDENTITY, 2, 7, 0)
    await desk.send()
    await desk.send()
    assert desk.sender.duplicates == {"t": 2}


async def test_without_a_span_every_send_is_stored() -> None:
    desk = Desk(retry_span_ms=0)
    desk.send()
    desk.send()
    await steps()
    assert [request.identity for request in desk.requests] == [None, None]


async def test_it_waits_no_longer_than_it_may() -> None:
    desk = await in_doubt()
    with pytest.raises(PutIndeterminate):
        await desk.send(timeout_ms=1)
    assert len(desk.requests) == 1


async def test_what_comes_during_the_first_one_waits_through_its_doubt() -> None:
    desk = Desk()
    first, again = desk.send(), desk.send()
    await steps()
    desk.requests[0].fail(DOUBT)
    await steps()
    assert first.done() and not again.done()
    desk.ids.put(IDENTITY, 2, 7, 0)
    desk.requests[0].release()
    assert await again == PutResult(2, 7, True)
    with pytest.raises(PutIndeterminate):
        await first


async def test_the_end_of_the_leadership_ends_the_doubt() -> None:
    """What is not in the log by then is sent anew: by one of those who wait, and to the next master."""
    desk = await in_doubt()
    again = [desk.send(), desk.send()]
    await steps()
    desk.sender.clear()
    await steps()
    assert len(desk.requests) == 2
    desk.requests[1].settle(RequestOutcome([7], []))
    assert sorted(await asyncio.gather(*again)) == [PutResult(2, 7), PutResult(2, 7, True)]


async def test_a_refusal_of_the_first_one_is_theirs_too() -> None:
    desk = Desk()
    first, again = desk.send(), desk.send()
    await steps()
    desk.requests[0].fail(Busy(Status.DISK_FULL, "full"))
    for task in (first, again):
        with pytest.raises(Busy):
            await task


async def test_a_send_is_answered_when_its_request_is_settled() -> None:
    desk = Desk()
    first = desk.send()
    await steps()
    assert not first.done()
    desk.requests[0].settle(RequestOutcome([7], []))
    assert await first == PutResult(2, 7)


async def test_an_id_that_the_state_knows_is_not_stored_again() -> None:
    desk = Desk()
    first, again = desk.send(), desk.send()
    await steps()
    desk.ids.put(IDENTITY, 2, 7, 0)
    desk.requests[0].settle(RequestOutcome([7], []))
    desk.requests[0].release()
    assert await asyncio.gather(first, again) == [PutResult(2, 7), PutResult(2, 7, True)]
    assert await desk.send() == PutResult(2, 7, True)
    assert len(desk.requests) == 1


async def test_a_send_is_unknown_after_its_time() -> None:
    desk = Desk()
    with pytest.raises(PutIndeterminate):
        await desk.send(timeout_ms=1)
    desk.requests[0].settle(RequestOutcome([7], []))
    assert await desk.send() == PutResult(2, 7, True)


async def test_what_a_request_failed_with_is_raised() -> None:
    desk = Desk()
    first = desk.send()
    await steps()
    desk.requests[0].fail(DOUBT)
    with pytest.raises(PutIndeterminate) as caught:
        await first
    assert caught.value is DOUBT


async def test_sends_of_a_list_are_submitted_in_one_step_and_each_has_its_own_outcome() -> None:
    desk = Desk()
    desk.ids.put(IDENTITY, 2, 7, 0)
    stored, new = OutgoingMessage(b"x", born_timestamp=BORN_MS), OutgoingMessage(b"new")
    sends = [
        Send(desk.topic, [new], "new", 1),
        Send(TopicConfig("read only", perm=PERM_READ), [new], "refused"),
        Send(desk.topic, [stored], "id"),
        Send(desk.topic, [new], "new", 1),
        Send(desk.topic, [new], "other", 3),
    ]
    answers = asyncio.create_task(desk.sender.send(sends))
    await asyncio.sleep(0)
    assert [request.queued[0].queue_id for request in desk.requests] == [1, 3]
    desk.requests[0].fail(Busy(Status.TOO_MANY_PENDING_BYTES, "no room"))
    desk.requests[1].settle(RequestOutcome([4], []))
    first, refused, before, again, other = await answers
    assert isinstance(refused, TopicRefused) and refused.status is Status.TOPIC_NOT_WRITABLE
    assert (before, other) == (PutResult(2, 7, True), PutResult(3, 4))
    assert isinstance(first, Busy) and again is first


def test_each_send_of_a_list_waits_for_its_own_timeout_from_the_start_of_the_list() -> None:
    clock = VirtualClock()
    loop = virtual_loop(clock.after, lambda: clock.now_ms, Random(1))
    answers: list[Any] = []

    async def send() -> None:
        desk = Desk()
        messages = [OutgoingMessage(b"x", born_timestamp=BORN_MS)]
        timeouts_ms = {"long": 300, "longer": 500, "short": 100, "stored": 100}
        sends = [Send(desk.topic, messages, name, 0, timeout_ms=ms) for name, ms in timeouts_ms.items()]
        sending = asyncio.ensure_future(desk.sender.send(sends))
        await steps()
        desk.requests[3].settle(RequestOutcome([7], []))
        answers.extend(await sending)

    loop.entered(lambda: loop.create_task(send()))
    clock.run_until(490)
    assert not answers
    clock.run_until(510)
    assert [isinstance(one, PutIndeterminate) for one in answers] == [True, True, True, False]
    assert answers[3] == PutResult(0, 7)
    loop.close()


async def test_a_send_that_the_committer_refuses_leaves_no_trace() -> None:
    """Otherwise each retry would wait for a request that never ends."""
    desk = Desk()
    desk.refusal = Busy(Status.TOO_MANY_PENDING_BYTES, "try again later")
    with pytest.raises(Busy):
        await desk.send()
    desk.refusal = None
    again = desk.send()
    await steps()
    desk.requests[0].settle(RequestOutcome([7], []))
    assert await again == PutResult(2, 7)


async def test_a_send_that_replaces_an_earlier_attempt_uses_the_queue_of_its_answer() -> None:
    desk = await in_doubt()
    message = OutgoingMessage(b"x", born_timestamp=BORN_MS)
    again = asyncio.create_task(desk.sender.send_one(Send(desk.topic, [message], "id")))
    await steps()
    desk.sender.clear()
    await steps()
    assert desk.requests[1].queued[0].queue_id == ANY_QUEUES
    desk.requests[1].settle(RequestOutcome([7], []))
    assert await again == PutResult(ANY_QUEUES, 7)


async def test_a_duplicate_that_names_another_queue_gets_the_position_of_the_first_one() -> None:
    """Also its put status, which the sender of the duplicate has not been told."""
    desk = Desk()
    first = desk.send()
    await steps()
    message = OutgoingMessage(b"x", born_timestamp=BORN_MS)
    again = asyncio.create_task(desk.sender.send_one(Send(desk.topic, [message], "id", 1)))
    await steps()
    status = Status.FLUSH_SLAVE_TIMEOUT
    desk.requests[0].settle(RequestOutcome([7], [], [StoredAt(7, 700, 70, 3, [700])], status))
    stored = PutResult(2, 7, False, 700, 70, 3, status, [700])
    assert await asyncio.gather(first, again) == [stored, stored._replace(is_repeated=True)]


async def test_a_duplicate_reports_the_put_status_that_the_log_has_now() -> None:
    desk = Desk()
    desk.ids.put(IDENTITY, 2, 7, 0)
    desk.put_status = Status.SLAVE_NOT_AVAILABLE
    assert await desk.send() == PutResult(2, 7, True, put_status=Status.SLAVE_NOT_AVAILABLE)


async def test_an_invalid_message_of_a_list_costs_no_other_message() -> None:
    desk = Desk()
    sends = [Send(desk.topic, [OutgoingMessage(body)], "", 1) for body in (b"a", TOO_LARGE, b"b")]
    answers = asyncio.create_task(desk.sender.send(sends))
    await steps()
    for offset, request in enumerate(desk.requests):
        request.settle(RequestOutcome([offset], []))
    first, refused, last = await answers
    assert (first, last) == (PutResult(1, 0), PutResult(1, 1))
    assert isinstance(refused, IllegalMessage) and refused.status is Status.BODY_TOO_LARGE
