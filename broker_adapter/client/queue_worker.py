"""The worker for one queue of a push consumer, which pulls messages and passes them to the listener."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from broker_adapter.client.consumer_calls import ConsumerRequests, log_failed_pull
from broker_adapter.client.core.checks import check_fields
from broker_adapter.client.core.process_queue import FlowLimits, ProcessQueue
from broker_adapter.client.core.pulling import PullStatus
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import RETRY_TOPIC, MessageExt, MessageQueue
from broker_adapter.client.instance import now_ms
from broker_adapter.client.listening import QueueListener
from broker_adapter.errors import BrokerError
from broker_adapter.wire.topic_names import RETRY_PREFIX

_log = logging.getLogger(__name__)

_WAIT_S = 15.0  # RocketMQ's brokerSuspendMaxTimeMillis
_LOCK_WAIT_S = 1.0  # interval between checks of a missing lock
#: Grace period for running listener calls when the broker returns a lower offset (seconds), as for a revoked
#: queue.
_MOVE_GRACE_S = 1.0
#: The lock time of a queue that the broker has reported as not locked.
NOT_LOCKED = -math.inf


class ConsumeStatus(Enum):
    """The result of a listener.

    None is equivalent to CONSUME_SUCCESS, and an exception to RECONSUME_LATER.
    """

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


#: Passes messages to the listener of the program. Does not raise.
Consume = Callable[[Sequence[MessageExt]], Awaitable[ConsumeStatus]]
#: Returns a message to the broker. Raises BrokerError if that fails.
SendBack = Callable[[MessageExt], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConsumeSettings:
    """Settings for all queues of a consumer."""

    is_ordered: bool = False
    batch: int = 1  # messages per listener call
    pull_batch: int = 32
    threads: int = 20  # maximum number of concurrent listener calls, over all queues
    limits: FlowLimits = field(default_factory=FlowLimits)
    suspend_s: float = 1.0  # pause of an ordered queue after a failure (suspendCurrentQueueTimeMillis)
    local_retry_s: float = 5.0  # delay for messages that could not be sent back
    lock_interval_s: float = 20.0  # interval of lock renewals for ordered queues (rebalance.lockInterval)
    #: Time after which a lock without renewal counts as lost (rebalance.lockMaxLiveTime). Brokers keep it for
    #: 60 s.
    lock_live_s: float = 30.0
    pull_retry_s: float = 1.0  # after a failed pull
    commit_interval_s: float = 5.0  # persistConsumerOffsetInterval

    def __post_init__(self) -> None:
        """Raises TypeError for a value of another type, and ValueError for a number that is not positive."""
        check_fields(self, may_be_zero=("suspend_s", "local_retry_s", "pull_retry_s", "commit_interval_s"))


class QueueWorker:
    """Consumes one queue. Call `start` once and `stop` once, on one event loop."""

    def __init__(
        self,
        queue: MessageQueue,
        start: int,
        subscription: Subscription,
        calls: ConsumerRequests,
        consume: Consume,
        send_back: SendBack | None,
        settings: ConsumeSettings,
        slots: asyncio.Semaphore,
        listener: QueueListener,
    ) -> None:
        """`send_back`: None if failed messages are not redelivered (broadcasting).

        `slots` limits the concurrent listener calls for all queues.
        """
        self.queue = queue
        self.state = ProcessQueue(start)
        #: For an ordered queue: event-loop time of the request that acquired or renewed the lock.
        self.locked_at = NOT_LOCKED
        #: For an ordered queue: a listener call from an earlier assignment that is still running on a thread.
        self.after: asyncio.Future[ConsumeStatus] | None = None
        #: ms since 1970 of the last pull and of the last listener call.
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
        """Stop pulling and calling the listener, and wait for running calls."""
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
        """Commit the offset if it has changed. Raises BrokerError."""
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
                await self._wait_for_change()
            self.pulled_ms = now_ms()
            try:
                result = await self._calls.pull(
                    self.queue,
                    self.state.next_offset,
                    self._subscription,
                    max_messages=self._settings.pull_batch,
                    wait_s=_WAIT_S,
                )
                # Before `next_offset` changes: after a failure, these messages are pulled again.
                for message in result.unreadable:
                    await self._set_aside(message)
            except BrokerError as error:
                log_failed_pull(_log, self.queue, error)
                await asyncio.sleep(self._settings.pull_retry_s)
                continue
            if result.status is PullStatus.OFFSET_ILLEGAL:
                _log.info("the broker moved an offset: queue %s, to %s", self.queue, result.next_offset)
                await self._move_to(result.next_offset)
            else:
                self.state.add(map(with_own_topic, result.messages), result.next_offset)
            self._changed.set()

    async def _set_aside(self, message: MessageExt) -> None:
        """Send an unreadable message to the dead letters of the group. A broadcasting consumer skips it.

        The listener does not receive the message, and an ordered queue does not wait for it, because no retry
        can succeed.
        """
        if self._send_back is not None:
            await self._send_back(with_own_topic(message))

    async def _move_to(self, offset: int) -> None:
        """Continue at an offset that the broker returned.

        A lower offset follows from a reset, or from a log that has lost its tail. The worker then drops the
        messages in memory, and the queue is assigned again.
        """
        if offset >= self.state.next_offset:
            self.state.move_to(offset)
            return
        self.state = ProcessQueue(offset)
        if self._running:
            await asyncio.wait(self._running, timeout=_MOVE_GRACE_S)
        self._listener.revoked(self.queue)
        self._listener.assigned(self.queue, offset)

    # -- consuming

    async def _feed(self) -> None:
        while True:
            while not self.state.has_waiting:
                await self._wait_for_change()
            await self._slots.acquire()
            if not self.state.has_waiting:  # the messages were dropped meanwhile
                self._slots.release()
                continue
            self._start_call(self._consume_once(self.state, self._next_batch()))

    async def _feed_ordered(self) -> None:
        """Call the listener repeatedly, one call at a time, while the lock is valid."""
        if self.after is not None:
            await asyncio.wait([self.after])
        while True:
            while not self.state.has_waiting:
                await self._wait_for_change()
            if not self.is_locked:
                await asyncio.sleep(min(_LOCK_WAIT_S, self._settings.lock_interval_s))
                continue
            await self._slots.acquire()
            # The wait for a slot may have taken long.
            if not self.is_locked or not self.state.has_waiting:
                self._slots.release()
                continue
            await asyncio.wait([self._start_call(self._consume_in_order(self.state, self._next_batch()))])

    @property
    def is_locked(self) -> bool:
        """True while the lock on an ordered queue is valid."""
        return asyncio.get_running_loop().time() - self.locked_at <= self._settings.lock_live_s

    def _next_batch(self) -> list[MessageExt]:
        self.consumed_ms = now_ms()
        return self.state.take_messages(self._settings.batch)

    def _start_call(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
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
        """Send messages back to the broker, and return those that it accepted.

        The others are consumed again after a delay.
        """
        if self._send_back is None:
            return messages
        sent, kept = [], []
        for message in messages:
            try:
                await self._send_back(message)
                sent.append(message)
            except BrokerError as error:
                _log.info("a message was not sent back: queue %s, %s", self.queue, error)
                kept.append(replace(message, reconsume_times=message.reconsume_times + 1))
        if kept:
            await asyncio.sleep(self._settings.local_retry_s)
            state.put_back(kept)
        return sent

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

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def with_own_topic(message: MessageExt) -> MessageExt:
    """Return a message from a retry topic with its original topic restored."""
    own = message.properties.get(RETRY_TOPIC)
    return replace(message, topic=own) if own and message.topic.startswith(RETRY_PREFIX) else message
