"""Messages out of queues until there are enough of them, the end is reached, or the user has had enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from broker_adapter.client import Consumer, Message, MessageQueue, PullConsumer

#: How often a member that gets nothing looks whether there is nothing left.
_LOOK_SECONDS = 0.1


class Stop:
    """Why a run ends: so many messages, an interruption. `interrupt` may be called by a signal."""

    def __init__(self, count: int | None) -> None:
        self.delivered = 0
        self.is_interrupted = False
        self._count = count
        self.event = asyncio.Event()

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.event.set()

    def delivered_one(self) -> None:
        self.delivered += 1
        if self._count is not None and self.delivered >= self._count:
            self.event.set()


class GroupRun:
    """As a member of a group. What was delivered is committed at the end; what was not is not.

    Args:
        ends: up to where to go in each queue, None: without end. Queues that others consume are theirs.
    """

    def __init__(
        self,
        consumer: Consumer,
        deliver: Callable[[Message], None],
        stop: Stop,
        ends: Mapping[tuple[str, int], int] | None,
    ) -> None:
        self._consumer = consumer
        self._deliver = deliver
        self._stop = stop
        self._ends = ends

    async def run(self) -> None:
        stopping = asyncio.create_task(self._stop.event.wait())
        messages = self._consumer.messages()
        asked = asyncio.create_task(anext(messages, None))
        try:
            while not self._stop.event.is_set():
                await asyncio.wait(
                    {asked, stopping}, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if asked.done() and not self._stop.event.is_set():
                    message = asked.result()
                    if message is None:
                        return
                    self._deliver(message)
                    self._stop.delivered_one()
                    # That it is asked for the next one says that this one was consumed.
                    asked = asyncio.create_task(anext(messages, None))
                    await asyncio.sleep(0)
                elif self._is_at_end():
                    return
        finally:
            stopping.cancel()
            await self._consumer.close()  # ends the waiting for the next message, and commits
            await asyncio.gather(asked, stopping, return_exceptions=True)
            await messages.aclose()

    def _is_at_end(self) -> bool:
        if self._ends is None or min(self._consumer.generations) < 0:
            return False  # while others come and go at the start, no queues are owned yet
        return all(
            position >= self._ends.get((queue.topic, queue.queue_id), 0)
            for queue, position in self._consumer.assignment.items()
        )


class Start(NamedTuple):
    """Where to begin with a queue."""

    queue: MessageQueue
    offset: int


async def read_queues(
    consumer: PullConsumer,
    starts: Sequence[Start],
    deliver: Callable[[Message], None],
    stop: Stop,
    *,
    tags: str,
    follow: bool,
) -> None:
    """Without a group: one queue after the other to its present end; with `follow` all beside each other."""

    async def read(start: Start) -> None:
        topic, broker, queue_id = start.queue
        reader = consumer.reader(topic, queue_id, start.offset, broker=broker, tags=tags)
        batches: AsyncGenerator[list[Message], None] = reader.batches(follow=follow)
        async with aclosing(batches):
            async for batch in batches:
                for message in batch:
                    if stop.event.is_set():
                        return
                    deliver(message)
                    stop.delivered_one()

    async def read_all() -> None:
        if not follow:
            for start in starts:
                await read(start)
            return
        async with asyncio.TaskGroup() as readers:
            for start in starts:
                readers.create_task(read(start))

    reading = asyncio.create_task(read_all())
    stopping = asyncio.create_task(stop.event.wait())
    try:
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not reading.done():
            reading.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)
    if not reading.cancelled() and (error := reading.exception()) is not None:
        raise error
