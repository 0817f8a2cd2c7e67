"""One queue that a push consumer has: it is pulled, and its messages go to the listener."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from broker_adapter.client.consumer_calls import ConsumerCalls
from broker_adapter.client.core.process_queue import FlowLimits, ProcessQueue
from broker_adapter.client.core.pulling import PullStatus
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import RETRY_TOPIC, MessageExt, MessageQueue
from broker_adapter.client.instance import now_ms
from broker_adapter.client.listening import QueueListener
from broker_adapter.errors import BrokerError
from broker_adapter.format.topic_names import RETRY_PREFIX

_log = logging.getLogger(__name__)

_WAIT_S = 15.0  # RocketMQ's brokerSuspendMaxTimeMillis
_LOCK_WAIT_S = 1.0  # until it is looked whether a lock was renewed
#: Since when a queue is locked of which the broker has said that it is not.
NOT_LOCKED = -math.inf


class ConsumeStatus(Enum):
    """What a listener says of messages. None says CONSUME_SUCCESS, an exception RECONSUME_LATER."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


#: Gives messages to the listener of the program; raises nothing.
Consume = Callable[[Sequence[MessageExt]], Awaitable[ConsumeStatus]]
#: Gives a message back to the broker. BrokerError if it did not take it.
SendBack = Callable[[MessageExt], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConsumeSettings:
    """Of all queues of a consumer."""

    is_ordered: bool = False
    batch: int = 1  # messages of one call of the listener
    pull_batch: int = 32
    threads: int = 20  # calls of the listener at a time, of all queues
    limits: FlowLimits = field(default_factory=FlowLimits)
    suspend_s: float = 1.0  # an ordered queue after a failure (suspendCurrentQueueTimeMillis)
    local_retry_s: float = 5.0  # messages that could not be sent back
    lock_interval_s: float = 20.0  # locks of ordered queues are renewed (rebalance.lockInterval)
    #: A lock that was not renewed for so long is not believed (rebalance.lockMaxLiveTime); brokers keep it
    #: for 60 s.
    lock_live_s: float = 30.0
    pull_retry_s: float = 1.0  # after a pull has failed
    commit_interval_s: float = 5.0  # persistConsumerOffsetInterval


class QueueWorker:
    """`start` once, `stop` once, on one event loop."""

    def __init__(
        self,
        queue: MessageQueue,
        begin: int,
        subscription: Subscription,
        calls: ConsumerCalls,
        consume: Consume,
        send_back: SendBack | None,
        settings: ConsumeSettings,
        slots: asyncio.Semaphore,
        listener: QueueListener,
    ) -> None:
        """`send_back` None: messages that fail are not seen again (broadcasting). `slots`: calls of the
        listener that may go on, of all queues."""
        self.queue = queue
        self.state = ProcessQueue(begin)
        #: Of an ordered queue, by the event loop's clock: when the lock was asked for that it has.
        self.locked_at = NOT_LOCKED
        #: Of an ordered queue: a call of the listener that goes on from before, on a thread.
        self.after: asyncio.Future[ConsumeStatus] | None = None
        #: ms since 1970: when it was last asked for messages, and when the listener was last given some.
        self.pulled_ms = self.consumed_ms = now_ms()
        self._subscription = subscription
        self._calls = calls
        self._consume = consume
        self._send_back = send_back
        self._settings = settings
        self._slots = slots
        self._listener = listener
        self._committing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        run = asyncio.get_running_loop().create_task
        feed = self._feed_ordered() if self._settings.is_ordered else self._feed()
        self._loops = [run(self._pull()), run(feed)]

    async def stop(self, grace_s: float) -> None:
        """Pull and begin nothing more; wait for what the listener is doing."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._calls.forget(self.queue)

    async def commit(self) -> None:
        """Store the group's offset if it has changed. BrokerError."""
        async with self._committing:
            state = self.state
            offset = state.to_commit()
            if offset is None:
                return
            self._listener.committing(self.queue, offset)
            try:
                await self._calls.commit(self.queue, offset)
            except BaseException as error:
                self._listener.committed(self.queue, offset, error)
                raise
            state.committed(offset)
            self._listener.committed(self.queue, offset, None)

    # -- pulling

    async def _pull(self) -> None:
        while True:
            while self.state.is_full(self._settings.limits):
                await self._change()
            self.pulled_ms = now_ms()
            try:
                result = await self._calls.pull(
                    self.queue,
                    self.state.next_offset,
                    self._subscription,
                    most=self._settings.pull_batch,
                    wait_s=_WAIT_S,
                )
            except BrokerError as error:
                _log.info("a pull failed: queue %s, %s", self.queue, error)
                await asyncio.sleep(self._settings.pull_retry_s)
                continue
            if result.status is PullStatus.OFFSET_ILLEGAL:
                _log.info("an offset was moved: queue %s, to %s", self.queue, result.next_offset)
                self._move_to(result.next_offset)
            else:
                self.state.add(map(with_own_topic, result.messages), result.next_offset)
            self._changed.set()

    def _move_to(self, offset: int) -> None:
        """The broker has other messages from there on than those that are in memory: what is being consumed
        says nothing of them."""
        if offset < self.state.next_offset and len(self.state):
            self.state = ProcessQueue(offset)
        else:
            self.state.move_to(offset)

    # -- consuming

    async def _feed(self) -> None:
        while True:
            while not self.state.has_waiting:
                await self._change()
            await self._slots.acquire()
            if not self.state.has_waiting:  # they are not there any more
                self._slots.release()
                continue
            self._begin(self._consume_once(self.state, self._take()))

    async def _feed_ordered(self) -> None:
        """One call at a time, and only while the lock is believed."""
        if self.after is not None:
            await asyncio.wait([self.after])
        while True:
            while not self.state.has_waiting:
                await self._change()
            if not self.is_locked:
                await asyncio.sleep(min(_LOCK_WAIT_S, self._settings.lock_interval_s))
                continue
            await self._slots.acquire()
            # The listener may have been at other queues for long.
            if not self.is_locked or not self.state.has_waiting:
                self._slots.release()
                continue
            await asyncio.wait([self._begin(self._consume_in_order(self.state, self._take()))])

    @property
    def is_locked(self) -> bool:
        """Whether the lock of an ordered queue is believed."""
        return asyncio.get_running_loop().time() - self.locked_at <= self._settings.lock_live_s

    def _take(self) -> list[MessageExt]:
        self.consumed_ms = now_ms()
        return self.state.take(self._settings.batch)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _consume_once(self, state: ProcessQueue, messages: list[MessageExt]) -> None:
        try:
            status = await self._consume(messages)
        finally:
            self._slots.release()
        if status is ConsumeStatus.RECONSUME_LATER:
            messages = await self._sent_back(state, messages)
        state.done(messages)
        self._changed.set()

    async def _sent_back(self, state: ProcessQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Those that need no more here. The others are consumed again after a time."""
        if self._send_back is None:
            return messages
        gone, kept = [], []
        for message in messages:
            try:
                await self._send_back(message)
                gone.append(message)
            except BrokerError as error:
                _log.info("a message was not sent back: queue %s, %s", self.queue, error)
                kept.append(replace(message, reconsume_times=message.reconsume_times + 1))
        if kept:
            await asyncio.sleep(self._settings.local_retry_s)
            state.put_back(kept)
        return gone

    async def _consume_in_order(self, state: ProcessQueue, messages: list[MessageExt]) -> None:
        try:
            status = await self._consume(messages)
        finally:
            self._slots.release()
        if status is ConsumeStatus.RECONSUME_LATER:
            await asyncio.sleep(self._settings.suspend_s)
            state.put_back(
                [replace(message, reconsume_times=message.reconsume_times + 1) for message in messages]
            )
        else:
            state.done(messages)
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def with_own_topic(message: MessageExt) -> MessageExt:
    """A message of a retry topic has the topic to which it was sent."""
    own = message.properties.get(RETRY_TOPIC)
    return replace(message, topic=own) if own and message.topic.startswith(RETRY_PREFIX) else message
