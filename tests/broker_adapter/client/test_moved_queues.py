"""A queue that the broker moves back is assigned again: its messages come a second time on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from broker_adapter.client.core.pulling import PullResult, PullStatus
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import MessageExt, MessageQueue
from broker_adapter.client.listening import QueueListener
from broker_adapter.client.queue_worker import ConsumeSettings, ConsumeStatus, QueueWorker

QUEUE = MessageQueue("t", "b", 0)


class Broker:
    """Answers pulls: messages 0 to 4, then moves the member back to 2."""

    def __init__(self) -> None:
        self.is_reset = asyncio.Event()
        self.never = asyncio.Event()
        self.moved = 0

    async def pull(self, queue: MessageQueue, offset: int, *_: object, **__: object) -> PullResult:
        if offset < 5:
            messages = tuple(message(at) for at in range(offset, 5))
            return PullResult(PullStatus.FOUND, messages, 5, 0, 5)
        await (self.never if self.moved else self.is_reset).wait()
        self.moved += 1
        return PullResult(PullStatus.OFFSET_ILLEGAL, (), 2, 0, 5)

    def forget(self, queue: MessageQueue) -> None:
        pass


def message(offset: int) -> MessageExt:
    return MessageExt("t", b"x", QUEUE, offset, 0, "", {}, 0, 0)


class Listener(QueueListener):
    def __init__(self) -> None:
        self.events: list[object] = []

    def assigned(self, queue: MessageQueue, offset: int) -> None:
        self.events.append(("assigned", offset))

    def revoked(self, queue: MessageQueue) -> None:
        self.events.append("revoked")


async def test_a_queue_that_is_moved_back_is_assigned_again_after_running_calls_end() -> None:
    broker, listener = Broker(), Listener()
    last_may_end, all_again = asyncio.Event(), asyncio.Event()

    async def consume(messages: Sequence[MessageExt]) -> ConsumeStatus:
        offset = messages[0].queue_offset
        listener.events.append(offset)
        if offset == 4 and not broker.moved:
            broker.is_reset.set()
            await last_may_end.wait()
            listener.events.append("4 ended")
        if offset == 4 and broker.moved and "revoked" in listener.events:
            all_again.set()
        return ConsumeStatus.CONSUME_SUCCESS

    worker = QueueWorker(
        QUEUE,
        0,
        Subscription("t", "*"),
        cast(Any, broker),
        consume,
        None,
        ConsumeSettings(),
        asyncio.Semaphore(20),
        listener,
    )
    worker.start()
    await broker.is_reset.wait()
    last_may_end.set()
    await all_again.wait()
    await worker.stop(1)
    assert listener.events == [0, 1, 2, 3, 4, "4 ended", "revoked", ("assigned", 2), 2, 3, 4]
