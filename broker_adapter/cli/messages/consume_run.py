"""Messages out of queues until there are enough of them, the end is reached, or the user has had enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from broker_adapter.client import MessageExt, MessageQueue, PullConsumer, PullStatus, PushConsumer
from broker_adapter.errors import ReadFailed, Status

#: How often a member that gets nothing looks whether there is nothing left.
_LOOK_SECONDS = 0.05
#: A broker waits so long for a message.
_WAIT_SECONDS = 15.0


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
    """As a member of a group. What was delivered is committed at the end; what was not is not."""

    def __init__(
        self,
        deliver: Callable[[MessageExt], None],
        stop: Stop,
        ends: Mapping[MessageQueue, int] | None,
    ) -> None:
        """`ends`: up to where to go in each queue, None: without end. What others consume is theirs."""
        self._deliver = deliver
        self._stop = stop
        self._ends = ends
        self._error: Exception | None = None

    async def listener(self, messages: Sequence[MessageExt]) -> None:
        """What comes when there is enough waits until the member leaves, and is not committed."""
        if not self._stop.event.is_set():
            try:
                self._deliver(messages[0])
            except Exception as error:  # who reads is gone: the listener's failures would come again
                self._error = error
                self._stop.event.set()
            else:
                self._stop.delivered_one()
                return
        await asyncio.Event().wait()

    async def run(self, consumer: PushConsumer) -> None:
        """Raises what `deliver` raised."""
        await consumer.start()
        try:
            while not self._stop.event.is_set() and not self._is_at_end(consumer):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._stop.event.wait()
        finally:
            await consumer.close(grace_s=0.0)
        if self._error is not None:
            raise self._error

    def _is_at_end(self, consumer: PushConsumer) -> bool:
        if self._ends is None or not consumer.is_balanced:
            return False
        return all(position >= self._ends.get(queue, 0) for queue, position in consumer.positions.items())


class Start(NamedTuple):
    """Where to begin with a queue."""

    queue: MessageQueue
    offset: int


async def read_queues(
    consumer: PullConsumer,
    starts: Sequence[Start],
    deliver: Callable[[MessageExt], None],
    stop: Stop,
    *,
    tags: str,
    follow: bool,
) -> None:
    """Without a group: one queue after the other to its present end; with `follow` all beside each other."""

    async def read(start: Start) -> None:
        at = start.offset
        end = None if follow else await consumer.max_offset(start.queue)
        while end is None or at < end or at > end:
            wait_s = _WAIT_SECONDS if follow else 0.0
            result = await consumer.pull(start.queue, at, expression=tags, wait_s=wait_s)
            if result.status is PullStatus.OFFSET_ILLEGAL:
                above = at > result.max_offset
                status = Status.OFFSET_ABOVE_MAXIMUM if above else Status.OFFSET_BELOW_MINIMUM
                text = f"the queue has {result.min_offset} to {result.max_offset - 1}, and not {at}"
                raise ReadFailed(status, text)
            for message in result.messages:
                if stop.event.is_set():
                    return
                deliver(message)
                stop.delivered_one()
            at = result.next_offset

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
