"""A message id that comes again while nobody knows yet what became of the first one."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.commitlog.put_gathering import QueuedRecords
from broker_adapter.commitlog.record_writer import RecordBatch
from broker_adapter.errors import Busy, PutIndeterminate, Status
from broker_adapter.pop.api import Sent
from broker_adapter.pop.committer import Committer, Done, Request
from broker_adapter.pop.duplicate_filter import DuplicateFilter
from broker_adapter.pop.handles import first_id_digest, id_digest
from broker_adapter.pop.sender import Sender
from broker_adapter.pop.state import DeliveryState

DOUBT = PutIndeterminate(Status.OUTCOME_UNKNOWN, "not known yet")
MINUTE_MS = 60_000


class Desk:
    """A sender whose requests the test settles."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.ids = DuplicateFilter()
        state = SimpleNamespace(lock=threading.Lock(), ids=self.ids)
        self.sender = Sender(cast(DeliveryState, state), cast(Committer, self), cast(MessageWriter, self))

    def submit(self, request: Request) -> None:
        self.requests.append(request)

    def queue_of(self, config: TopicConfig, queue_id: int) -> int:
        return queue_id

    async def shortfall_of_all(self, timeout_ms: int) -> None:
        """It is a replicated log's."""

    def records(self, topic: str, queue_id: int, messages: Any, *, born_host: Any) -> QueuedRecords:
        return QueuedRecords(topic, queue_id, cast(RecordBatch, SimpleNamespace(sizes=[1])))

    def send(self, timeout_ms: int = MINUTE_MS) -> asyncio.Task[Sent]:
        message = OutgoingMessage(b"x")
        return asyncio.create_task(
            self.sender.send(TopicConfig("t", write_queues=4), message, "id", 2, "", timeout_ms)
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
    desk.ids.put(id_digest("t", "id"), 2, 7, 0)
    desk.requests[0].release()
    assert await asyncio.gather(*again) == [Sent(2, 7, True)] * 2
    assert len(desk.requests) == 1


async def test_what_was_sent_before_an_upgrade_is_known_by_its_older_digest() -> None:
    desk = Desk()
    desk.ids.put(first_id_digest("t", "id"), 2, 7, 0)
    assert await desk.send() == Sent(2, 7, True)
    assert not desk.requests


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
    desk.ids.put(id_digest("t", "id"), 2, 7, 0)
    desk.requests[0].release()
    assert await again == Sent(2, 7, True)
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
    desk.requests[1].settle(Done([7], []))
    assert sorted(await asyncio.gather(*again)) == [Sent(2, 7), Sent(2, 7, True)]


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
    desk.requests[0].settle(Done([7], []))
    assert await first == Sent(2, 7)


async def test_an_id_that_the_state_knows_is_not_stored_again() -> None:
    desk = Desk()
    first, again = desk.send(), desk.send()
    await steps()
    desk.ids.put(id_digest("t", "id"), 2, 7, 0)
    desk.requests[0].settle(Done([7], []))
    desk.requests[0].release()
    assert await asyncio.gather(first, again) == [Sent(2, 7), Sent(2, 7, True)]
    assert await desk.send() == Sent(2, 7, True)
    assert len(desk.requests) == 1


async def test_a_send_is_unknown_after_its_time() -> None:
    desk = Desk()
    with pytest.raises(PutIndeterminate):
        await desk.send(timeout_ms=1)
    desk.requests[0].settle(Done([7], []))
    assert await desk.send() == Sent(2, 7, True)


async def test_what_a_request_failed_with_is_raised() -> None:
    desk = Desk()
    first = desk.send()
    await steps()
    desk.requests[0].fail(DOUBT)
    with pytest.raises(PutIndeterminate) as caught:
        await first
    assert caught.value is DOUBT
