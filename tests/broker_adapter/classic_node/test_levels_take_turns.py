"""Levels of delayed messages in a classic log take turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from broker_adapter.delivery_state.commands import SystemOffset
from broker_adapter.errors import Status, error_for
from broker_adapter.put.committer import PutRequest, RequestOutcome
from broker_adapter.scheduled.system_queues import LevelDelivery
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit


class Flood:
    """All that `LevelDelivery` asks. Level 1 gets a message that is due for each one that is delivered; level
    2 has one. What the messages are is of no concern: none can be read."""

    def __init__(self) -> None:
        self.ends = Counter({0: 1, 1: 1})
        self.offsets = Counter[int]()
        self.state = self.committer = self.files = self.reader = self
        self.other_is_delivered = asyncio.get_running_loop().create_future()

    def now_ms(self) -> int:
        return 1_000_000

    async def run(self, work: Callable[[], Any], address: str) -> Any:
        await asyncio.sleep(0)
        return work()

    async def wait_applied(self) -> int:
        return 1

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, self.ends[queue_id]

    def units(self, topic: str, queue_id: int, begin: int, count: int) -> list[ConsumeQueueUnit]:
        return [ConsumeQueueUnit(0, 100, 1)] * count

    def message_at(self, physical_offset: int) -> bytes:
        raise error_for(Status.MESSAGE_NOT_FOUND, "purged")

    def system_offset(self, topic: str, queue_id: int) -> int:
        return self.offsets[queue_id]

    def submit(self, request: PutRequest) -> asyncio.Future[RequestOutcome]:
        (element,) = request.elements
        assert isinstance(element, SystemOffset)
        self.offsets[element.queue_id] = element.offset
        self.ends[0] += element.queue_id == 0
        request.done.set_result(RequestOutcome([], []))
        if element.queue_id == 1:
            self.other_is_delivered.set_result(None)
        elif self.offsets[0] == 100 and not self.other_is_delivered.done():
            self.other_is_delivered.set_exception(AssertionError("it waits behind 100 of another level"))
        return request.done


async def test_a_level_that_always_has_something_due_holds_up_no_other() -> None:
    """Whoever sends faster than one level is delivered decided when the messages of others came."""
    flood: Any = Flood()
    levels = LevelDelivery(flood)
    levels.start()
    await flood.other_is_delivered
    levels.stop()
